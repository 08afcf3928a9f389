"""Counts documents x words: the Linux kernel's documentation, two generated corpora, and three real sets.

kernel     .rst and .txt files of Debian's linux-doc less the translations, a file a document: 4 760 of them,
           10 593 words and 1.29 M tokens (runs of three or more letters a-z, lower case) after rare and
           frequent words are dropped; other versions of the package differ a little. It is read where it is
           installed, else fetched by apt-get.
zipf10m    50 000 documents of Poisson(200) tokens, 50 000 words, 200 topics: one Zipf base for all, each word
           times Gamma(0.1) in each topic; mixtures Dirichlet(0.1)
phrase79m  3.9 M documents, 79 M tokens, 21.8 M words, every one of which occurs: like bigrams of abstracts. A
           word belongs to one of 1 000 topics, and its rank there has a Zipf-Mandelbrot frequency; a document
           has three topics, 15 % of the tokens are of any topic
ap, reuters395, news20: word counts in `$DASKSTRADS_DATA`

`scale` divides the number of documents (of phrase79m: of words and topics, too).
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numba import njit
from problems import real_folder
from workloads import default_cache

REAL = {"ap": "ap", "reuters395": "reuters395", "news20": "news20_train"}
"""File of each real set, less .npz."""

PACKAGE = "linux-doc"

RARE, FREQUENT = 5, 0.1  # words of fewer documents, or of a larger part of them, are dropped

WORD = re.compile(rb"[a-z]{3,}")

STRAY = 0.15  # tokens of phrase79m that are of any topic


class Corpus(NamedTuple):
    """Counts (documents x words; integers), and the words of the columns where they are known."""

    counts: sp.csr_array
    words: list[str] | None = None

    @property
    def tokens(self) -> int:
        """How many."""
        return int(self.counts.sum(dtype=np.int64))


class Held(NamedTuple):
    """Tokens of held-out documents, shuffled: document d has words[offsets[d] : offsets[d + 1]]."""

    offsets: np.ndarray
    words: np.ndarray

    def halves(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """First and second half of the tokens of each document that has two or more."""
        for start, end in pairwise(self.offsets):
            if end - start > 1:
                middle = (start + end) // 2
                yield self.words[start:middle], self.words[middle:end]


def load_corpus(name: str, scale: int = 1, cache: Path | None = None) -> Corpus:
    """Corpus `name`; what is generated or taken from packages is kept in the cache folder.

    Raises:
        ValueError: there is no such corpus.
        FileNotFoundError: what it is made of is not here, and what to do.
    """
    if name in REAL:
        return _part(_real(REAL[name]), scale)
    if name not in MAKERS:
        raise ValueError(f"no corpus {name!r}; there are {', '.join([*MAKERS, *REAL])}")
    whole = 1 if name == "kernel" else scale
    place = Path(cache or default_cache()) / f"corpus-{name}-{whole}"
    if not place.is_dir():
        _keep(MAKERS[name](whole), place)
    return _part(_read(place), scale if name == "kernel" else 1)


def hold_out(counts: sp.csr_array, seed: int = 0, most: int = 500) -> tuple[sp.csr_array, Held]:
    """Nine tenths of the documents to train on; the tokens of the others (at most `most`), shuffled."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(counts.shape[0])
    n_held = min(most, counts.shape[0] // 10)
    offsets, words = tokens_of(counts[np.sort(order[:n_held])])
    for start, end in pairwise(offsets):
        rng.shuffle(words[start:end])
    return counts[np.sort(order[n_held:])], Held(offsets, words)


def tokens_of(counts: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of the documents (int64), and one word a token (int32), by document and word."""
    cumulative = np.zeros(counts.nnz + 1, np.int64)
    np.cumsum(counts.data, out=cumulative[1:])
    return cumulative[counts.indptr], np.repeat(counts.indices.astype(np.int32), counts.data)


def _part(corpus: Corpus, scale: int) -> Corpus:
    """One document in `scale`, and the words that occur in them."""
    if scale == 1:
        return corpus
    counts = corpus.counts[::scale]
    used = np.unique(counts.indices)
    words = None if corpus.words is None else [corpus.words[j] for j in used]
    return Corpus(sp.csr_array(counts[:, used]), words)


def _real(file: str) -> Corpus:
    path = real_folder(None) / f"{file}.npz"
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: name its folder by $DASKSTRADS_DATA")
    with np.load(path) as stored:
        arrays = stored["data"].astype(np.int32), stored["indices"], stored["indptr"]
        counts = sp.csr_array(arrays, shape=tuple(map(int, stored["shape"])))
    listed = path.with_name(f"{file.partition('_')[0]}.vocab.txt.gz")
    words = gzip.decompress(listed.read_bytes()).decode().split("\n") if listed.is_file() else None
    return Corpus(counts, words[: counts.shape[1]] if words else None)


def _keep(corpus: Corpus, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete: an interrupted run leaves no half-written corpus behind.
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        for part in ("data", "indices", "indptr"):
            np.save(partial / f"{part}.npy", getattr(corpus.counts, part))
        np.save(partial / "shape.npy", corpus.counts.shape)
        if corpus.words is not None:
            (partial / "words.txt").write_text("\n".join(corpus.words))
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read(place: Path) -> Corpus:
    arrays = tuple(np.load(place / f"{part}.npy") for part in ("data", "indices", "indptr"))
    counts = sp.csr_array(arrays, shape=tuple(map(int, np.load(place / "shape.npy"))))
    counts.has_canonical_format = True
    listed = place / "words.txt"
    return Corpus(counts, listed.read_text().split("\n") if listed.is_file() else None)


def make_kernel(scale: int = 1) -> Corpus:
    """The kernel's documentation, documents by path and words by the alphabet."""
    texts = dict(_installed() or _downloaded())
    documents = [WORD.findall(texts[path].lower()) for path in sorted(texts)]
    seen = Counter(word for document in documents for word in set(document))
    most = FREQUENT * len(documents)
    words = sorted(word for word, n in seen.items() if RARE <= n <= most)
    column = {word: j for j, word in enumerate(words)}
    kept = [[column[word] for word in document if word in column] for document in documents]
    kept = [document for document in kept if document]
    offsets = np.cumsum([0, *map(len, kept)])
    found = np.concatenate([np.array(document, np.int32) for document in kept])
    return Corpus(_counted(offsets, found, len(words), np.int32), [word.decode() for word in words])


def _wanted(path: str) -> bool:
    below = path.partition("/Documentation/")[2].removesuffix(".gz")
    return below.endswith((".rst", ".txt")) and not below.startswith("translations/")


def _plain(path: str, content: bytes) -> tuple[str, bytes]:
    """Path below Documentation, and text."""
    text = gzip.decompress(content) if path.endswith(".gz") else content
    return path.partition("/Documentation/")[2].removesuffix(".gz"), text


def _installed() -> list[tuple[str, bytes]]:
    """Texts of an installed package; the newest, where there are several."""
    folders = sorted(Path("/usr/share/doc").glob(f"{PACKAGE}*/Documentation"))
    files = [file for folder in folders[-1:] for file in folder.rglob("*") if _wanted(str(file))]
    return [_plain(str(file), file.read_bytes()) for file in files if file.is_file()]


def _downloaded() -> list[tuple[str, bytes]]:
    """Texts of the package that apt-get downloads; nothing is installed or kept."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            described = subprocess.run(
                ["apt-cache", "depends", PACKAGE], check=True, capture_output=True, text=True
            )
            depends = re.search(rf"Depends: ({PACKAGE}\S+)", described.stdout)
            package = depends[1] if depends else PACKAGE
            subprocess.run(["apt-get", "download", package], check=True, capture_output=True, cwd=folder)
            (archive,) = Path(folder).glob("*.deb")
            texts = _unpacked(archive)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        said = said.decode() if isinstance(said, bytes) else str(said)
        raise FileNotFoundError(f"{_remedy()} ({said.strip()})") from error
    if not texts:
        raise FileNotFoundError(f"{_remedy()} ({package} has no .rst or .txt files)")
    return texts


def _remedy() -> str:
    return (
        f"no kernel documentation: install Debian's {PACKAGE} (with its files in /usr/share/doc), or run "
        "`apt-get update` so that it can be downloaded"
    )


def _unpacked(archive: Path) -> list[tuple[str, bytes]]:
    texts = []
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as files,
    ):
        for member in files:
            content = files.extractfile(member) if member.isfile() and _wanted(member.name) else None
            if content is not None:
                texts.append(_plain(member.name, content.read()))
    return texts


def make_zipf10m(scale: int = 1) -> Corpus:
    """Topics over one Zipf base."""
    n_documents, n_words, n_topics = 50_000 // scale, 50_000, 200
    rng = np.random.default_rng(1)
    base = rng.permutation(1 / (np.arange(n_words) + 2.7))
    topics = base * rng.gamma(0.1, 1, (n_topics, n_words))
    np.cumsum(topics, axis=1, out=topics)
    offsets = np.zeros(n_documents + 1, np.int64)
    np.cumsum(np.maximum(rng.poisson(200, n_documents), 1), out=offsets[1:])
    mixtures = np.cumsum(rng.gamma(0.1, 1, (n_documents, n_topics)) + 1e-12, axis=1)
    words = np.empty(offsets[-1], np.int32)
    _draw_words(offsets, mixtures, topics, words, rng)
    return Corpus(_counted(offsets, words, n_words))


def make_phrase79m(scale: int = 1) -> Corpus:
    """Many rare words; takes about 1.4 GiB of memory and 25 s."""
    n_documents, n_tokens = 3_900_000 // scale, 79_000_000 // scale
    n_topics = max(1_000 // scale, 10)
    per_topic = 21_800_000 // scale // n_topics
    n_words = per_topic * n_topics
    rng = np.random.default_rng(2)
    more = rng.multinomial(n_tokens - n_documents, np.full(n_documents, 1 / n_documents))
    offsets = np.zeros(n_documents + 1, np.int64)
    np.cumsum(more + 1, out=offsets[1:])
    own = rng.integers(0, n_topics, (n_documents, 3), dtype=np.int32)
    frequencies = (np.arange(per_topic) + 20.0) ** -0.75
    words = np.empty(n_tokens, np.int32)
    _draw_phrases(offsets, own, np.cumsum(frequencies / frequencies.sum()), n_topics, words, rng)
    _use_all(words, n_words, n_topics, rng)
    return Corpus(_counted(offsets, words, n_words))


MAKERS = {"kernel": make_kernel, "zipf10m": make_zipf10m, "phrase79m": make_phrase79m}


def _use_all(words: np.ndarray, n_words: int, n_topics: int, rng: np.random.Generator) -> None:
    """Put each word that does not occur in the place of a random token of its topic, of a word that occurs
    more than three times; in place.
    """
    occur = np.bincount(words, minlength=n_words).astype(np.int32)
    missing = rng.permutation(np.flatnonzero(occur == 0).astype(np.int32))
    missing = missing[np.argsort(missing % n_topics, kind="stable")]
    starts = np.searchsorted(missing % n_topics, np.arange(n_topics + 1))
    often = occur > 3
    candidates = np.where(often, occur, 0).reshape(-1, n_topics).sum(axis=0, dtype=np.int64)
    left = _replace(words, occur, often, candidates, missing, starts, rng)
    if left:
        raise ValueError(f"{left} words found no token to take the place of: too large a `scale`")


def _counted(offsets: np.ndarray, words: np.ndarray, n_words: int, dtype=None) -> sp.csr_array:
    """Counts of tokens, in the smallest dtype without one given; `words` is overwritten."""
    counts = np.empty(len(words), np.int16)
    longest = int(np.diff(offsets).max())
    if longest > np.iinfo(np.int16).max:
        counts = np.empty(len(words), np.int32)
    kept = np.zeros(len(offsets), np.int32)
    _merge(offsets, words, counts, kept)
    n = kept[-1]
    dtype = dtype or np.min_scalar_type(-int(counts[:n].max()) - 1)
    matrix = sp.csr_array(
        (counts[:n].astype(dtype), words[:n].copy(), kept), shape=(len(offsets) - 1, n_words)
    )
    matrix.has_canonical_format = True
    return matrix


@njit(cache=True)
def _draw_words(offsets, mixtures, topics, words, rng):
    """A topic by the document's mixture, a word by the topic (both cumulative)."""
    for i in range(len(offsets) - 1):
        mixture = mixtures[i]
        for token in range(offsets[i], offsets[i + 1]):
            k = min(np.searchsorted(mixture, rng.random() * mixture[-1]), len(mixture) - 1)
            topic = topics[k]
            words[token] = min(np.searchsorted(topic, rng.random() * topic[-1]), len(topic) - 1)


@njit(cache=True)
def _draw_phrases(offsets, own, ends, n_topics, words, rng):
    """A topic of the document's own, or any; a rank in it (`ends`: cumulative)."""
    for i in range(len(offsets) - 1):
        for token in range(offsets[i], offsets[i + 1]):
            k = own[i, rng.integers(0, own.shape[1])]
            if rng.random() < STRAY:
                k = rng.integers(0, n_topics)
            rank = min(np.searchsorted(ends, rng.random()), len(ends) - 1)
            words[token] = rank * n_topics + k


@njit(cache=True)
def _replace(words, occur, often, candidates, missing, starts, rng):
    """Selection sampling: a random choice among the candidates of each topic, in one pass; how many of
    `missing` found no place.
    """
    n_topics = len(candidates)
    taken = starts[:-1].copy()
    for token in range(len(words)):
        word = words[token]
        if not often[word]:
            continue
        k = word % n_topics
        need = starts[k + 1] - taken[k]
        if need > 0 and occur[word] > 1 and rng.random() * candidates[k] < need:
            occur[word] -= 1
            words[token] = missing[taken[k]]
            taken[k] += 1
        candidates[k] -= 1
    return (starts[1:] - taken).sum()


@njit(cache=True)
def _merge(offsets, words, counts, kept):
    """Sort the words of each document and join equal ones, in place: the arrays of a CSR matrix."""
    n = 0
    for i in range(len(offsets) - 1):
        start, end = offsets[i], offsets[i + 1]
        words[start:end].sort()
        for token in range(start, end):
            if n > kept[i] and words[n - 1] == words[token]:
                counts[n - 1] += 1
            else:
                words[n] = words[token]
                counts[n] = 1
                n += 1
        kept[i + 1] = n
