"""A byte range of a text file; what is damaged in it is named by file and line."""

from __future__ import annotations

import copy
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fsspec.utils import read_block

__all__ = ["Span", "damaged", "is_number", "pieces", "shown", "unpacking"]

PIECE = 2**20  # bytes parsed at a time: what the kernel writes stays in the cache


@contextmanager
def unpacking(file: Any) -> Iterator[None]:
    """Raise ValueError with its name where a compressed file is damaged, not complete, or not compressed."""
    try:
        yield
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        # bz2 raises a bare OSError; others are the file system's.
        if isinstance(error, OSError) and type(error) not in (OSError, gzip.BadGzipFile):
            raise
        if getattr(error, "errno", None) is not None:
            raise
        raise ValueError(f"{file.path}: {error}") from error


@dataclass(frozen=True)
class Span:
    """The lines of a file (`fsspec` OpenFile) that start in `length` bytes after `start`; None: all of them.

    A line that runs over or up to the start belongs to the span before, however long it is.
    """

    file: Any
    start: int = 0
    length: int | None = None

    def text(self) -> bytes:
        """Its lines, the last with a newline.

        Raises:
            ValueError: a compressed file that is damaged or not complete.
        """
        with unpacking(self.file), copy.copy(self.file) as file:
            text = read_block(file, self.start, self.length, b"\n")
        return text if text.endswith(b"\n") or not text else text + b"\n"

    def line_number(self, text: bytes, place: int) -> int:
        """The line of the file, from 1, in which `text[place]` is; reads all that comes before."""
        newlines, left = text.count(b"\n", 0, place), self.start
        with copy.copy(self.file) as file:
            while left and (read := file.read(min(left, PIECE))):
                newlines += read.count(b"\n")
                left -= len(read)
        # The line that runs over the start ends before `text` begins.
        return newlines + 1 + (self.start > 0)


def pieces(text: bytes) -> Iterator[tuple[int, int]]:
    """Where pieces of whole lines start and end, of PIECE bytes or of one longer line."""
    start = 0
    while start < len(text):
        end = text.rfind(b"\n", start, start + PIECE) + 1 or text.index(b"\n", start) + 1
        yield start, end
        start = end


def damaged(span: Span, text: bytes, start: int, damage: Callable[[bytes], str]) -> ValueError:
    """The error that names the first line from `text[start]` on of which `damage` has something to say."""
    while start < len(text):
        end = text.index(b"\n", start)
        if what := damage(text[start:end]):
            return ValueError(f"{span.file.path}, line {span.line_number(text, start)}: {what}")
        start = end + 1
    raise AssertionError(f"nothing is wrong with {span.file.path}")  # the kernel and `damage` disagree


def is_number(token: bytes) -> bool:
    """Whether float() reads it, without the underscores of Python's source."""
    try:
        float(token)
    except ValueError:
        return False
    return b"_" not in token


def shown(token: bytes) -> str:
    """A token as a message quotes it."""
    return repr(token[:40].decode("ascii", "backslashreplace")) + ("..." if len(token) > 40 else "")
