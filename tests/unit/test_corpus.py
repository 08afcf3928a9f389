"""`read_corpus`: the counts of the files wherever they are cut; what is damaged is named by file and line."""

import bz2
import gzip
import io
import re
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from daskstrads import read_corpus
from daskstrads.partition import spans
from daskstrads.partition.spans import Span

FORMATS = ("svmlight", "blei", "uci", "mm")
SUFFIX = {"svmlight": "svm", "blei": "ldac", "uci": "uci", "mm": "mtx"}
BANNER = "%%MatrixMarket matrix coordinate integer general\n"


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def write(tmp_path):
    def write(text, name):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / name)

    return write


def counts(paths, *args, **kwargs):
    """The counts, dense, of blocks that are as the array says."""
    X = read_corpus(paths, *args, **kwargs)
    assert isinstance(X, da.Array)
    blocks = dask.compute(*X.to_delayed().ravel())
    for block, rows in zip(blocks, X.chunks[0], strict=True):
        assert isinstance(block, sp.csr_matrix)
        assert block.has_canonical_format
        assert block.dtype == X.dtype == X._meta.dtype == np.int64
        assert np.isnan(rows) or block.shape == (rows, X.shape[1])
    return sp.vstack(blocks).toarray()


def entries(A):
    return [(i + 1, j + 1, v) for i, row in enumerate(A.tolist()) for j, v in enumerate(row) if v]


def document(row, base):
    return [f"{j + base}:{v}" for j, v in enumerate(row.tolist()) if v]


def written(A, format):
    """Counts, documents x words, as text."""
    n, p = A.shape
    found = entries(A)
    match format:
        case "svmlight":
            return "".join(" ".join(["0", *document(row, 1)]) + "\n" for row in A)
        case "blei":
            return "".join(" ".join([str(np.count_nonzero(row)), *document(row, 0)]) + "\n" for row in A)
        case "uci":
            head = f"{n}\n{p}\n{len(found)}\n"
        case "mm":
            head = f"{BANNER}% a comment\n\n{n} {p} {len(found)}\n"
    return head + "".join("{} {} {}\n".format(*entry) for entry in found)


A = np.array(
    [[0, 0, 0, 0], [1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0],
     [3, 0, 4, 5], [0, 1, 0, 0], [0, 0, 0, 7], [0, 0, 0, 0]]
)  # fmt: skip


# ---- any corpus, anywhere cut ----


@pytest.mark.parametrize("format", FORMATS)
def test_every_blocksize(write, format):
    text = written(A, format)
    path = write(text, f"a.{SUFFIX[format]}")
    for blocksize in (None, *range(1, len(text) + 2)):
        np.testing.assert_array_equal(counts(path, n_features=4, blocksize=blocksize), A)


@st.composite
def corpora(draw):
    n, p = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    count = st.one_of(st.just(0), st.just(0), st.integers(1, 12), st.integers(2**31, 2**53 - 1))
    A = np.array(draw(st.lists(st.lists(count, min_size=p, max_size=p), min_size=n, max_size=n)))
    A[draw(st.integers(0, n - 1)), p - 1] = 1  # the last word occurs: files without a header say it so
    return A


@settings(max_examples=60)
@given(
    A=corpora(),
    format=st.sampled_from(FORMATS),
    blocksize=st.one_of(st.none(), st.integers(1, 60)),
    piece=st.integers(1, 50),
    data=st.data(),
)
def test_any_corpus_in_any_blocks(tmp_path_factory, A, format, blocksize, piece, data):
    noise, tail = (
        st.sampled_from(["", "\n", " \t\n", "# none\n"]),
        st.sampled_from(["", " ", "\r", "\t ", " # 1"]),
    )
    lines = written(A, format).splitlines()
    heads = {"uci": 3, "mm": 4}.get(format, 0)
    text = "".join(line + data.draw(st.sampled_from(["\n", "\r\n", "  \n"])) for line in lines[:heads])
    body = [data.draw(noise) + line + data.draw(tail) for line in lines[heads:]]
    text += "\n".join(body) + ("\n" if data.draw(st.booleans()) else "")
    path = tmp_path_factory.getbasetemp() / f"any.{SUFFIX[format]}"
    path.write_text(text, newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "PIECE", piece)
        np.testing.assert_array_equal(counts(path, blocksize=blocksize), A)


@settings(max_examples=40)
@given(A=corpora(), blocksize=st.one_of(st.none(), st.integers(1, 60)), data=st.data())
def test_entries_in_any_order(tmp_path_factory, A, blocksize, data):
    lines = written(A, "uci").splitlines()
    path = tmp_path_factory.getbasetemp() / "any_order.uci"
    path.write_text("\n".join([*lines[:3], *data.draw(st.permutations(lines[3:]))]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*any_order.uci: documents are out of order")
        np.testing.assert_array_equal(counts(path, blocksize=blocksize), A)


def test_words_in_any_order(write):
    path = write("3 9:1 0:2 4:3\n0\n2 1:1 0:5\n", "a.lda-c")
    X = counts(path)
    np.testing.assert_array_equal(X[:, [0, 1, 4, 9]], [[2, 0, 3, 1], [0] * 4, [5, 1, 0, 0]])
    assert X.sum() == 12
    path = write("2\n3\n4\n1 3 1\n1 1 2\n2 2 3\n2 1 4\n", "b.uci")
    assert read_corpus(path, blocksize=13).numblocks[0] == 2  # documents are in order
    np.testing.assert_array_equal(counts(path, blocksize=13), [[2, 0, 1], [4, 3, 0]])


# ---- where blocks end ----


def test_blocks_end_with_a_document(write):
    path = write(written(A, "uci"), "a.uci")  # 8 bytes a line, 6 of them the header
    X = read_corpus(path, blocksize=12)
    # Rows without words are in the block of the document before them, those at the start in the first block.
    assert X.chunks == ((4, 1, 1, 2), (4,))
    assert read_corpus(path, blocksize=1).chunks == X.chunks
    assert read_corpus(path).chunks == ((8,), (4,))
    np.testing.assert_array_equal(X.blocks[1].compute().toarray(), A[4:5])


def test_a_file_that_is_out_of_order_is_one_block(write):
    B = sp.random(30, 20, density=0.2, format="csc", rng=np.random.default_rng(0))
    B.data = np.ceil(B.data * 9)
    text = io.BytesIO()
    scipy.io.mmwrite(text, B)
    path = write(text.getvalue(), "csc.mtx")
    np.testing.assert_array_equal(counts(path), B.toarray())
    with pytest.warns(UserWarning, match=r"csc\.mtx: documents are out of order, so .* one block") as warned:
        X = read_corpus(path, blocksize=40)
    assert warned[0].filename == __file__
    assert X.chunks == ((30,), (20,))
    np.testing.assert_array_equal(X.compute().toarray(), B.toarray())


def test_laziness(write, monkeypatch):
    paths = {format: write(written(A, format), f"a.{SUFFIX[format]}") for format in FORMATS}

    def read(span):
        raise AssertionError("read too early")

    monkeypatch.setattr(Span, "text", read)
    for format in ("svmlight", "blei"):
        X = read_corpus(paths[format], n_features=4, blocksize=20)
        assert X.numblocks[0] > 1
        assert np.isnan(X.chunks[0]).all()
    for format in ("uci", "mm"):
        assert read_corpus(paths[format]).chunks == ((8,), (4,))


def test_a_changed_file_is_other_data(write):
    names = {read_corpus(write(text, "a.uci")).name for text in ("1\n1\n1\n1 1 1\n", "1\n1\n1\n1 1 11\n")}
    assert len(names) == 2
    path = write("1 1:1\n", "a.svm")
    assert read_corpus(path).name == read_corpus(path).name
    assert (
        len({read_corpus(path, **options).name for options in ({}, {"n_features": 3}, {"zero_based": True})})
        == 3
    )


def test_a_file_that_changes_before_it_is_computed(write):
    path = write(written(A, "uci"), "a.uci")
    X = read_corpus(path, blocksize=12)
    write(written(A, "uci").replace("\n5 4 5\n", "\n4 4 5\n"), "a.uci")
    with pytest.raises(
        ValueError, match=r"a\.uci, line 8: document 4, .* the file has changed, read it again"
    ):
        X.compute()


def test_the_threaded_scheduler(write):
    B = np.random.default_rng(0).poisson(0.3, (200, 30))
    path = write(written(B, "mm"), "b.mm")
    with dask.config.set(scheduler="threads"):
        np.testing.assert_array_equal(counts(path, blocksize=100), B)


# ---- counts ----


@pytest.mark.parametrize("format", FORMATS)
def test_counts_as_they_may_be_written(write, format):
    B = np.array([[11, 12, 13, 14]])
    text = written(B, format)
    for old, new in {"11": "2.0", "12": "+3e0", "13": "0", "14": "9007199254740991"}.items():
        text = re.sub(rf"{old}\b", new, text)
    path = write(text, f"a.{SUFFIX[format]}")
    np.testing.assert_array_equal(counts(path), [[2, 3, 0, 2**53 - 1]])
    assert read_corpus(path).blocks[0].compute().nnz == 3  # 0 is not stored


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("count", "message"),
    [
        ("0.5", "is no whole number"),
        ("-1", "is negative"),
        ("nan", "is no whole number"),
        ("inf", "is no whole number"),
        ("9007199254740992", "is too large: counts are read up to 2^53 - 1"),
        ("1e300", "is too large"),
        ("1_0", "is no number"),
        ("many", "is no number"),
        ("0x1", "is no number"),
        ("1e-9", "is no whole number"),
    ],
)
def test_counts_that_are_none(write, format, count, message):
    lines = written(np.full((9, 2), 3), format).splitlines()
    for place in (-1, -5, -9):  # lines from the end: in the last block, the middle, the first
        damaged = [*lines]
        damaged[place] = re.sub(r"3$", count, damaged[place])
        path = write("\n".join(damaged), f"a.{SUFFIX[format]}")
        where = rf"a\.{SUFFIX[format]}, line {len(lines) + place + 1}: "
        wanted = rf"{where}.*{re.escape(repr(count))}.* {re.escape(message)}"
        for blocksize in (None, 20):
            with pytest.raises(ValueError, match=wanted):
                counts(path, blocksize=blocksize)


# ---- damaged lines ----


@pytest.mark.parametrize(
    ("format", "line", "message"),
    [
        ("svmlight", "1 31 111", "'31' is no pair word:count"),
        ("svmlight", "1 3:1 2:1", "column index 2 after 3: the indices of a line must rise"),
        ("svmlight", "1 0:1", "column index 0, but zero_based=False"),
        ("blei", "2 0:1", "it says that '2' words follow, and 1 do"),
        ("blei", "1 0:1 1:1", "it says that '1' words follow, and 2 do"),
        ("blei", "1.5 0:1", "it says that '1.5' words follow"),
        ("blei", "x 0:1", "its number of words 'x' is no number"),
        ("blei", "1 qid:3 0:1", "'qid' in 'qid:3' is no column index"),
        ("blei", "2 0:1 0:2", "column index 0 more than once: add its counts up"),
        ("uci", "2 1", "'2 1' is no line `document word count`"),
        ("uci", "2 1 1 1", "is no line `document word count`"),
        ("uci", "0 1 1", "its document '0' is no whole number from 1 on"),
        ("uci", "2 0 1", "its word '0' is no whole number from 1 on"),
        ("uci", "2 1.0 1", "its word '1.0' is no whole number"),
        ("uci", "-2 1 1", "its document '-2' is no whole number"),
        ("uci", "2 1234567890123456789 1", "its word '1234567890123456789' is no whole number"),
        ("uci", "10 1 1", "document 10, but the header says that there are 9"),
        ("uci", "2 8 1", "word 8, but the header says that there are 7"),
        ("uci", "2 1 0.00000000000000000000e0", ""),
        ("uci", "2 1 1.0000000000000000000000", "has more digits than a count needs"),
        ("mm", "2:1 1 1", "its document '2:1' is no whole number"),
        ("uci", "1 1 3", "word 1 of document 1 was there before: add its counts up"),
    ],
)
def test_damage(write, format, line, message):
    first = {"svmlight": "1 1:1", "blei": "1 0:1"}.get(format, "1 1 1")
    head = {"uci": "9\n7\n3\n", "mm": BANNER + "9 7 3\n"}.get(format, "")
    last = {"svmlight": "1 1:1", "blei": "1 0:1"}.get(format, "9 1 1")
    path = write(f"{head}{first}\n{line}\n{last}\n", f"a.{SUFFIX[format]}")
    number = head.count("\n") + 2
    for blocksize in (None, 6, 1):
        if not message:
            counts(path, n_features=7, blocksize=blocksize)
            continue
        with pytest.raises(ValueError, match=rf"a\.{SUFFIX[format]}, line {number}: .*{re.escape(message)}"):
            counts(path, n_features=7, blocksize=blocksize)


def test_the_first_word_that_occurs_twice(write):
    lines = ["3 2 1", "# 1 1", "", "1 1 1", "2 2 1 # 1 1 1", "1 2 1", "2 2 5", "1 1 7", "3 2 1"]
    path = write("3\n2\n7\n" + "\n".join(lines), "a.uci")
    with pytest.raises(ValueError, match=r"a\.uci, line 10: word 2 of document 2 was there before"):
        counts(path)


def test_a_pattern(write):
    text = BANNER.replace("integer", "pattern") + "2 3 3\n1 3\n2 1\n2 2\n"
    for blocksize in (None, 4):
        np.testing.assert_array_equal(
            counts(write(text, "a.mm"), blocksize=blocksize), [[0, 0, 1], [1, 1, 0]]
        )
    with pytest.raises(ValueError, match=r"a\.mm, line 4: '2 1 5' is no line `document word`"):
        counts(write(text.replace("2 1\n", "2 1 5\n"), "a.mm"))


@pytest.mark.parametrize("blocksize", [None, 9])
@pytest.mark.parametrize(("said", "hint"), [(29, "is the file complete?"), (2, "correct the number")])
def test_a_header_with_another_number_of_entries(write, blocksize, said, hint):
    found = np.count_nonzero(A)
    for name, line in (("a.uci", 3), ("a.mm", 4)):
        text = written(A, name[2:]).replace(f"{found}\n", f"{said}\n", 1)
        wanted = (
            rf"{name}, line {line}: it says that {said} entries follow, and {found} do; {re.escape(hint)}"
        )
        with pytest.raises(ValueError, match=wanted):
            counts(write(text, name), blocksize=blocksize)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.uci", "", "line 1: '' is no number of documents, which the head of a UCI file says"),
        ("a.uci", "3\n4 5\n", "line 2: '4 5' is no number of words"),
        ("a.uci", "3\n4\n-1\n", "line 3: '-1' is no number of entries"),
        ("a.mm", "", "line 1: '' is no head of a Matrix Market file"),
        ("a.mm", "3 4 5\n", "line 1: '3 4 5' is no head of a Matrix Market file"),
        ("a.mm", BANNER + "% only\n", "line 1: no line `documents words entries` follows"),
        ("a.mm", BANNER + "%\n3 4\n", "line 3: '3 4' is no line `documents words entries`"),
        ("a.mm", BANNER.replace("general", "symmetric"), "line 1: .* is `general`, not 'symmetric'"),
        (
            "a.mm",
            BANNER.replace("coordinate", "array"),
            "'matrix array integer'; scipy.io.mmread reads others",
        ),
        ("a.mm", BANNER.replace("integer", "complex"), "'matrix coordinate complex'"),
    ],
)
def test_damaged_headers(write, name, text, message):
    with pytest.raises(ValueError, match=rf"{re.escape(name)}, .*{message}"):
        read_corpus(write(text, name))


@pytest.mark.parametrize(
    "head", ["0\n0\n0\n", "0\n0\n0", "3\n2\n0\n\n", BANNER + "3 2 0", BANNER.upper() + "0 0 0\n"]
)
def test_nothing_but_a_header(write, head):
    path = write(head, "a.mm" if "%" in head else "a.uci")
    for blocksize in (None, 1):
        assert counts(path, blocksize=blocksize).shape in ((0, 0), (3, 2))


@pytest.mark.parametrize("format", ["svmlight", "blei"])
def test_nothing_at_all(write, format):
    for text in ("", "\n# none\n"):
        assert counts(write(text, "a.txt"), format).shape == (0, 0)


# ---- columns ----


def test_base_and_width(write):
    from_one = write("2 1:5 3:6\n", "a.ldac")
    np.testing.assert_array_equal(counts(from_one), [[0, 5, 0, 6]])
    np.testing.assert_array_equal(counts(from_one, zero_based=False), [[5, 0, 6]])
    np.testing.assert_array_equal(counts(from_one, zero_based="auto"), [[5, 0, 6]])
    np.testing.assert_array_equal(counts(from_one, n_features=6), [[0, 5, 0, 6, 0, 0]])
    both = [from_one, write("1 0:7\n", "b.ldac")]
    np.testing.assert_array_equal(counts(both, zero_based="auto", blocksize=6), [[0, 5, 0, 6], [7, 0, 0, 0]])
    np.testing.assert_array_equal(counts(write("9 1:5\n", "a.svm"), zero_based=True), [[0, 5]])
    with pytest.raises(ValueError, match=r"a\.ldac, line 1: column index 3 is beyond n_features=3"):
        read_corpus(from_one, n_features=3).compute()
    uci = [write("1\n2\n1\n1 2 5\n", "a.uci"), write("1\n4\n1\n1 1 6\n", "b.uci")]
    np.testing.assert_array_equal(counts(uci), [[0, 5, 0, 0], [6, 0, 0, 0]])
    np.testing.assert_array_equal(counts(uci, n_features=5), [[0, 5, 0, 0, 0], [6, 0, 0, 0, 0]])
    with pytest.raises(ValueError, match=r"a\.uci, line 4: word 2 is beyond n_features=1"):
        read_corpus(uci[0], n_features=1).compute()
    with pytest.raises(ValueError, match="zero_based is True, but uci files count from 1: leave it out"):
        read_corpus(uci, zero_based=True)


def test_wide_files(write):
    X = read_corpus(write("1\n3000000000\n1\n1 3000000000 4\n", "a.uci"))
    assert X.shape == (1, 3_000_000_000)
    assert X.compute()[0, 2_999_999_999] == 4


# ---- paths and formats ----


def test_patterns_lists_and_compressed_files(write, tmp_path):
    for i, pack in enumerate((bytes, gzip.compress, bz2.compress)):
        suffix = ("", ".gz", ".bz2")[i]
        for format in FORMATS:
            write(pack(written(A + i, format).encode()), f"{i}.{SUFFIX[format]}{suffix}")
    wanted = np.vstack([A, A + 1, A + 2])
    for suffix in SUFFIX.values():
        np.testing.assert_array_equal(counts(str(tmp_path / f"*.{suffix}*"), blocksize=25), wanted)
        listed = [tmp_path / f"0.{suffix}", str(tmp_path / f"[12].{suffix}.*")]
        np.testing.assert_array_equal(counts(listed), wanted)
    with pytest.raises(ValueError, match=r"0\.svm is svmlight, .*0\.uci is uci: read them apart"):
        read_corpus([tmp_path / "0.svm", tmp_path / "0.uci"])
    damaged = write(gzip.compress(b"1\n1\n1\n1 1 x\n"), "docword.txt.gz")
    with pytest.raises(ValueError, match=r"docword\.txt\.gz, line 4: its count 'x' is no number"):
        read_corpus(damaged).compute()


def test_a_compressed_file_that_is_not_complete(write):
    packed = gzip.compress(b"1\n1\n3000\n" + b"1 1 1\n" * 3000)
    X = read_corpus(write(packed[:-9], "a.uci.gz"))
    with pytest.raises(ValueError, match=r"a\.uci\.gz: Compressed file ended before"):
        X.compute()


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("name", ["a.uci", "a.ldac", "a"])
def test_a_file_that_is_not_compressed(write, name, packing):
    path = write(b"1 0:2\n" * 30, f"{name}.{packing}")
    with pytest.raises(ValueError, match=rf"{name}\.{packing}: "):
        read_corpus(path)


def test_paths_and_options_that_are_wrong(write, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.uci"):
        read_corpus(tmp_path / "no.uci")
    with pytest.raises(IsADirectoryError, match="is a directory"):
        read_corpus(tmp_path)
    path = write("1 1:1\n", "a.svm")
    for options, message in [
        ({"format": "csv"}, "format must be one of 'svmlight', 'uci', 'blei', 'mm' or None, got 'csv'"),
        ({"n_features": 0}, "n_features must be"),
        ({"zero_based": "yes"}, "zero_based must be"),
        ({"blocksize": 0}, "blocksize must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_corpus(path, **options)


@pytest.mark.parametrize("format", FORMATS)
def test_the_format_by_the_name(write, format):
    text = written(A, format)
    names = {
        "svmlight": ["a.svmlight", "a.SVM", "a.libsvm"],
        "uci": ["a.uci", "docword.a.txt", "docword"],
        "blei": ["a.blei", "a.ldac", "a.lda-c"],
        "mm": ["a.mm", "a.mtx"],
    }
    for name in names[format]:
        np.testing.assert_array_equal(counts(write(text, name), n_features=4), A)
    np.testing.assert_array_equal(counts(write(text, "a.ldac" if format == "mm" else "a.mm"), format, 4), A)


@pytest.mark.parametrize(
    ("text", "format"),
    [
        (written(A, "svmlight"), "svmlight"),
        (written(A, "blei"), "blei"),
        (written(A, "uci"), "uci"),
        (written(A, "mm"), "mm"),
        ("2 1:1\n", "svmlight"),
        ("1 0:1\n", "blei"),
        ("1 3:1\n2 1:1 2:1\n3 1:1 2:1 3:1\n", "blei"),
        ("1\n2\n3\n1 1:1 2:1\n", "svmlight"),
    ],
)
def test_the_format_by_the_first_lines(write, text, format):
    path = write(text, "a.txt")
    assert read_corpus(path).name.startswith("read-corpus")
    np.testing.assert_array_equal(counts(path), counts(path, format))


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        ("1 3:1\n", "svmlight or blei"),
        ("1 3:1\n2 1:1 2:1\n", "svmlight or blei"),
        ("0\n0\n0\n", "uci or svmlight or blei"),
        ("3\n2\n0\n", "uci or svmlight"),
        ("a b c\n", "none of svmlight, uci, blei, mm"),
        ("1 1 1\n", "none of"),
        ("", "none of"),
    ],
)
def test_a_format_that_is_not_clear(write, text, may_be):
    with pytest.raises(
        ValueError, match=rf"a\.txt: by its name .* may be {may_be}.*; pass format=, one of 'svmlight'"
    ):
        read_corpus(write(text, "a.txt"))
