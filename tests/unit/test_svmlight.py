"""`read_svmlight`: the rows of the files wherever they are cut; what is damaged is named by file and line."""

import bz2
import gzip
import io
import pickle
import re
from itertools import accumulate

import dask
import dask.array as da
import fsspec
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from daskstrads import Lasso, read_svmlight
from daskstrads.partition import spans
from daskstrads.partition.spans import Span


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def write(tmp_path):
    def write(text, name="train.svm"):
        (tmp_path / name).write_bytes(text)
        return str(tmp_path / name)

    return write


def both(paths, *args, **kwargs):
    """X dense and y, computed together."""
    X, y = dask.compute(*read_svmlight(paths, *args, **kwargs))
    assert X.has_canonical_format
    return X.toarray(), y


def written(A, labels, base):
    """A csr matrix and its labels as svmlight text, the last line without a newline."""
    lines = [repr(label) for label in labels.tolist()]
    for i in range(A.shape[0]):
        row = A[i].sorted_indices()
        lines[i] += "".join(f" {j + base}:{v!r}" for j, v in zip(row.indices, row.data.tolist(), strict=True))
    return "\n".join(lines).encode()


# ---- random files, anywhere cut ----

blanks = st.sampled_from([" ", "  ", "\t"])
noise = st.sampled_from(["", "\n", "# a comment 3:4\n", " \t\n"])
tail = st.sampled_from(["", " ", "\r", " # 7:8", "#"])


@st.composite
def files(draw, width=6):
    """Files as text, and the labels and rows that are in them."""
    texts, labels, rows = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        text = ""
        for _ in range(draw(st.integers(0, 6))):
            label = draw(st.floats(allow_nan=False))
            row = draw(st.dictionaries(st.integers(0, width - 1), st.floats(), max_size=width))
            tokens = [repr(label), *draw(st.sampled_from([[], ["qid:3"]]))]
            tokens += [f"{column + 1}:{row[column]!r}" for column in sorted(row)]
            text += draw(noise) + "".join(token + draw(blanks) for token in tokens) + draw(tail) + "\n"
            labels.append(label)
            rows.append(row)
        texts.append((text[:-1] if draw(st.booleans()) else text).encode())
    X = np.zeros((len(rows), width))
    for i, row in enumerate(rows):
        X[i, list(row)] = list(row.values())
    return texts, X, np.array(labels, float)


def stored(texts):
    """The texts as files in memory, in a folder of their own."""
    memory = fsspec.filesystem("memory")
    if memory.exists("/svmlight"):
        memory.rm("/svmlight", recursive=True)
    for i, text in enumerate(texts):
        memory.pipe(f"/svmlight/{i}.svm", text)
    return [f"memory://svmlight/{i}.svm" for i in range(len(texts))]


@settings(max_examples=60)
@given(case=files(), blocksize=st.one_of(st.none(), st.integers(1, 60)), piece=st.integers(1, 50))
def test_any_file_in_any_blocks(case, blocksize, piece):
    texts, X, y = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "PIECE", piece)
        found, labels = both(stored(texts), n_features=6, blocksize=blocksize)
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(labels, y)


@settings(max_examples=30)
@given(
    shape=st.tuples(st.integers(1, 20), st.integers(1, 12)),
    seed=st.integers(0, 2**32 - 1),
    blocksize=st.integers(40, 2000),
    zero_based=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_what_scikit_learn_reads(shape, seed, blocksize, zero_based, dtype):
    rng = np.random.default_rng(seed)
    A = sp.random(*shape, density=0.4, format="csr", rng=rng)
    text = written(A, rng.normal(size=shape[0]), 0 if zero_based else 1)
    wanted, labels = load_svmlight_file(
        io.BytesIO(text), n_features=shape[1], zero_based=zero_based, dtype=dtype
    )
    X, y = read_svmlight(stored([text]), shape[1], zero_based=zero_based, dtype=dtype, blocksize=blocksize)
    found = X.compute()
    assert found.dtype == X.dtype == X._meta.dtype == dtype
    assert (found != wanted).nnz == 0
    np.testing.assert_array_equal(found.indptr, wanted.indptr)
    np.testing.assert_array_equal(y.compute(), labels)


GOOD = [b"1 1:1 5:2\n", b"-1\n", b"\n", b"2.5 3:1e-3 # 1:2\n", b"# a comment\n", b"1 2:7\r\n"]


@settings(max_examples=60)
@given(
    before=st.lists(st.sampled_from(GOOD), max_size=8),
    after=st.lists(st.sampled_from(GOOD), max_size=3),
    blocksize=st.one_of(st.none(), st.integers(1, 40)),
    piece=st.integers(1, 30),
)
def test_a_damaged_line_is_named_wherever_it_is(before, after, blocksize, piece):
    paths = stored([b"".join(GOOD), b"".join([*before, b"1 1:1 2:x\n", *after])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "PIECE", piece)
        with pytest.raises(ValueError, match=rf"/1\.svm, line {len(before) + 1}: 'x' in '2:x' is no number"):
            both(paths, 5, blocksize=blocksize)


# ---- damaged lines, case 73 ----


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 31 111", "'31' is no pair index:value"),
        ("1 3:1 -4:1", "'-4' in '-4:1' is no column index, a whole number from 1 on"),
        ("1 3.0:1", "'3.0' in '3.0:1' is no column index"),
        ("1 :1", "'' in ':1' is no column index"),
        ("1 1234567890123456789:1", "'1234567890123456789' in .* is no column index"),
        ("1 3: 4", "'' in '3:' is no number"),
        ("1 3:4:5", "'4:5' in '3:4:5' is no number"),
        ("1 3:0x1", "'0x1' in '3:0x1' is no number"),
        ("1 3:é", r"'\\\\xc3\\\\xa9' in '3:\\\\xc3\\\\xa9' is no number"),
        ("1 4:1 3:1", "column index 3 after 4: the indices of a line must rise"),
        ("1 3:1 3:1", "column index 3 after 3"),
        ("1 0:1 3:1", "column index 0, but zero_based=False.*pass zero_based=True"),
        ("3:1 4:1", "its label '3:1' is no number"),
        ("a 4:1", "its label 'a' is no number"),
        ("1,2 4:1", r"its label '1,2' is no number \(lines of several labels are not read\)"),
        ("1 3:1 qid:4", "'qid' in 'qid:4' is no column index"),
        ("x" * 100, "'" + "x" * 40 + r"'\.\.\."),
    ],
)
def test_damage(write, line, message):
    path = write(f"1 1:1\n{line}\n1 1:x\n".encode())
    with pytest.raises(ValueError, match=rf"train\.svm, line 2: .*{message}"):
        read_svmlight(path)
    X, _ = read_svmlight(path, 5)  # lazy: it is found when it is read
    with pytest.raises(ValueError, match=r"train\.svm, line 2: "):
        X.compute()


def test_text_without_colons_is_an_error_not_large_columns(write):
    lines = [b"-1 " + b" ".join(b"%d1" % i for i in range(3, 120, 9)) for _ in range(4)]
    with pytest.raises(ValueError, match="line 1: '31' is no pair index:value"):
        read_svmlight(write(b"\n".join(lines)))


def test_an_index_beyond_n_features(write):
    path = write(b"1 1:1\n1 6:1\n")
    with pytest.raises(ValueError, match="line 2: column index 6 is beyond n_features=5, counted from 1"):
        both(path, 5)
    assert both(path, 6)[0].shape == (2, 6)
    with pytest.raises(ValueError, match="line 2: column index 6 is beyond n_features=6, counted from 0"):
        both(path, 6, zero_based=True)
    other = write(b"1 0:1\n", "other.svm")
    with pytest.raises(
        ValueError, match=r"train\.svm, line 2: column index 6 is beyond n_features=6, counted from 0"
    ):
        read_svmlight([other, path], 6, zero_based="auto")  # the files are read: here


def test_odd_lines_are_rows(write):
    X, y = both(write(b"1\n-1 \n\n \n2 \t 2:1 \n#\n3#\n4 1:1"))
    np.testing.assert_array_equal(y, [1, -1, 2, 3, 4])
    np.testing.assert_array_equal(X, [[0, 0], [0, 0], [0, 1], [0, 0], [1, 0]])


def test_nan_and_infinity_are_read_and_refused_by_a_fit(write):
    path = write(b"1 1:nan 2:-inf 3:Infinity\n2 1:1e400\n")
    X, _ = both(path, dtype=np.float32)
    np.testing.assert_array_equal(X, np.float32([[np.nan, -np.inf, np.inf], [np.inf, 0, 0]]))
    with pytest.raises(ValueError, match="contains NaN"):
        Lasso().fit(*read_svmlight(path))


# ---- base and width, case 71 ----


def test_one_base_and_one_width_for_all(write):
    ones, zero = write(b"1 1:1 3:2\n", "ones.svm"), write(b"1 0:1 4:2\n1 2:3\n", "zero.svm")
    np.testing.assert_array_equal(both(ones)[0], [[1, 0, 2]])
    np.testing.assert_array_equal(both(ones, zero_based=True)[0], [[0, 1, 0, 2]])
    np.testing.assert_array_equal(both(ones, zero_based="auto")[0], [[1, 0, 2]])
    for blocksize in (None, 8):  # the block without an index 0 has the same base
        X, _ = read_svmlight([ones, zero], zero_based="auto", blocksize=blocksize)
        wanted = [[0, 1, 0, 2, 0], [1, 0, 0, 0, 2], [0, 0, 3, 0, 0]]
        np.testing.assert_array_equal(X.compute().toarray(), wanted)
    assert both(ones, 7)[0].shape == (1, 7)
    assert both(ones, 7, zero_based="auto")[0].shape == (1, 7)
    with pytest.raises(ValueError, match=r"zero\.svm, line 1: column index 0"):
        read_svmlight([ones, zero])


def test_wide_files_have_64_bit_indices(write):
    path = write(b"1 3000000000:1\n2 1:1\n")
    X, _ = read_svmlight(path)
    assert X.shape == (2, 3_000_000_000)
    found = X.compute()
    assert found.indices.dtype == found.indptr.dtype == np.int64
    assert found[0, 2_999_999_999] == 1
    assert read_svmlight(path, 2**31)[0].blocks[0]._meta.dtype == np.float64


# ---- chunks ----


def test_chunks_and_laziness(write, monkeypatch):
    path = write(b"".join(b"%d %d:1\n" % (i, i) for i in range(1, 10)))  # 6 bytes a line
    X, y = read_svmlight(path, blocksize=18)
    assert isinstance(X, da.Array)
    assert X.shape == (9, 9)
    assert X.chunks[0] == y.chunks[0] == (4, 3, 2)  # a line that starts where a block ends belongs to it
    for i, rows in enumerate(X.chunks[0]):
        assert X.blocks[i].compute().shape == (rows, 9)
        assert isinstance(X.blocks[i].compute(), sp.csr_matrix)
    assert X[3:5].compute().toarray()[0, 3] == 1
    assert "train.svm" in str(dict(X.dask))
    assert read_svmlight(path, blocksize="1MiB")[0].numblocks == (1, 1)

    def read(span):
        raise AssertionError("read too early")

    monkeypatch.setattr(Span, "text", read)
    X, y = read_svmlight(path, 9, blocksize=18)
    assert X.numblocks[0] == y.numblocks[0] == 3
    assert np.isnan(X.chunks[0]).all()
    assert np.isnan(y.chunks[0]).all()
    monkeypatch.undo()
    assert X.compute_chunk_sizes().shape == (9, 9)


def test_the_threaded_scheduler(write):
    path = write(b"".join(b"%d %d:1\n" % (i, i) for i in range(1, 200)))
    with dask.config.set(scheduler="threads"):
        X, y = both(path, blocksize=100)
    np.testing.assert_array_equal(X, np.eye(199))
    np.testing.assert_array_equal(y, np.arange(1.0, 200))


def test_a_changed_file_is_other_data(write):
    names = {read_svmlight(write(text), 5)[0].name for text in (b"1 1:1\n", b"1 1:1\n1 2:1\n")}
    assert len(names) == 2
    same = write(b"1 1:1\n")
    assert read_svmlight(same, 5)[0].name == read_svmlight(same, 5)[0].name
    different = {
        read_svmlight(same, 5, **options)[1].name for options in ({}, {"dtype": "f4"}, {"zero_based": True})
    }
    assert len(different) == 3


@pytest.mark.parametrize(("text", "shape"), [(b"", (0, 0)), (b"\n# none\n", (0, 0)), (b"1", (1, 0))])
def test_files_without_rows_or_entries(write, text, shape):
    X, y = read_svmlight(write(text))
    assert X.compute().shape == shape
    assert y.compute().shape == shape[:1]
    assert both(write(text), 3)[0].shape == (shape[0], 3)
    both_files = [write(text, "a.svm"), write(b"1 2:1\n", "b.svm")]
    assert both(both_files)[0].shape == (shape[0] + 1, 2)


# ---- paths ----


def test_patterns_lists_and_compressed_files(write, tmp_path):
    write(b"1 1:1\n", "a.svm")
    write(gzip.compress(b"2 2:1\n3 3:1\n"), "b.svm.gz")
    write(bz2.compress(b"4\n"), "c.svm.bz2")
    for paths in (str(tmp_path / "*"), [tmp_path / "a.svm", tmp_path / "b.svm.gz", str(tmp_path / "c*")]):
        X, y = both(paths, blocksize=6)
        np.testing.assert_array_equal(y, [1, 2, 3, 4])
        np.testing.assert_array_equal(X, np.eye(4, 3))
    named = write(gzip.compress(b"1 1:1\n1 1:x\n"), "d.txt")
    with pytest.raises(ValueError, match=r"d\.txt, line 2: 'x' in '1:x'"):
        read_svmlight(named, compression="gzip")


def test_paths_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "no.svm"))):
        read_svmlight(tmp_path / "no.svm", 5)
    with pytest.raises(FileNotFoundError, match=r"no file matches .*no\*\.svm"):
        read_svmlight(str(tmp_path / "no*.svm"), 5)
    with pytest.raises(FileNotFoundError, match="paths is empty"):
        read_svmlight([], 5)
    with pytest.raises(IsADirectoryError, match=r"pass a pattern like .*\*\.svm"):
        read_svmlight(tmp_path, 5)
    with pytest.raises(TypeError, match="paths must be a path, a glob pattern or a list of them, got 3"):
        read_svmlight(3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_features": 0}, "n_features must be a whole number above 0 or None, got 0"),
        ({"n_features": 2.5}, "n_features must be"),
        ({"zero_based": "yes"}, "zero_based must be True, False or \"auto\", got 'yes'"),
        ({"dtype": int}, "dtype must be float32 or float64, got int64"),
        ({"blocksize": 0}, "blocksize must be at least 1 byte or None, got 0"),
    ],
)
def test_wrong_options(write, options, message):
    with pytest.raises(ValueError, match=message):
        read_svmlight(write(b"1 1:1\n"), **options)


# ---- a span ----


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(0, 9), max_size=8), size=st.integers(1, 12), end=st.booleans())
def test_spans_hold_every_line_once(lengths, size, end):
    text = b"".join(b"%d" % (i % 10) * length + b"\n" for i, length in enumerate(lengths))
    text = text if end or not text else text[:-1]
    (path,) = stored([text])
    file = fsspec.open(path, "rb")
    starts = range(0, max(len(text), 1), size)
    texts = [Span(file, start, min(size, len(text) - start)).text() for start in starts]
    assert b"".join(texts) == (text if text.endswith(b"\n") or not text else text + b"\n")
    whole = b"".join(texts)
    for start, found, place in zip(starts, texts, accumulate(map(len, texts), initial=0), strict=False):
        for i in range(len(found)):
            assert Span(file, start, size).line_number(found, i) == whole.count(b"\n", 0, place + i) + 1


def test_a_span_travels():
    (path,) = stored([b"1 1:1\n"])
    span = pickle.loads(pickle.dumps(Span(fsspec.open(path, "rb"))))
    assert span.text() == b"1 1:1\n"


def test_a_fit_on_what_was_read(write):
    rng = np.random.default_rng(0)
    A = sp.random(80, 30, density=0.3, format="csr", rng=rng)
    y = A @ rng.normal(size=30) + 1
    path = write(written(A, y, 1))
    model = Lasso(0.001, n_shards=2, tol=1e-10)
    wanted = model.fit(A, y).coef_
    for n_features in (None, 30):  # rows known and unknown
        X, labels = read_svmlight(path, n_features, blocksize=1000)
        np.testing.assert_allclose(model.fit(X, labels).coef_, wanted, atol=1e-8)
