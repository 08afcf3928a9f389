"""What workers run for a factorisation of dask collections: tasks that need no scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..partition import Slab
from ..partition.arrays import compress
from ..partition.collections_dask import scipy_block
from .factors import RatingPart
from .ratings import Triples, matrix_of, places, to_csr, triples_of, unique_ids


def rank_part(slab: Slab, counts: np.ndarray, mean: float, rows: Any, columns: Any) -> RatingPart:
    """A rank's part, made where its slab is."""
    return RatingPart(slab, counts, mean, rows, columns)


def rating_block(block: Any, at: tuple[int, ...] = ()) -> sp.csr_array:
    """A block as a checked CSR matrix; `at`: its place, to be named in errors.

    Raises:
        TypeError: a dense block, which does not say what is rated. ValueError: as `matrix_of`.
    """
    block = scipy_block(block)
    if not sp.issparse(block):
        raise TypeError(
            "ratings have a dense block; which of its entries are ratings? "
            "X.map_blocks(scipy.sparse.csr_array) takes those that are not zero"
        )
    try:
        return sp.csr_array(matrix_of(block))
    except ValueError as error:
        raise ValueError(f"in block {at}: {error}" if at else str(error)) from None


def block_row(blocks: Sequence[Any]) -> sp.csr_array:
    """Blocks side by side."""
    return sp.csr_array(sp.hstack(blocks, format="csr")) if len(blocks) > 1 else blocks[0]


def told_of(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a piece of rows: ratings a row, ratings a column; entries, their sum and sum of squares."""
    values = matrix.data.astype(np.float64)
    sums = np.array([len(values), values.sum(), np.square(values).sum()])
    return np.diff(matrix.indptr), np.bincount(matrix.indices, minlength=matrix.shape[1]), sums


def first_of(told: tuple, place: int) -> Any:
    """One field of a tuple."""
    return told[place]


def rows_of(matrix: Any, start: int, stop: int) -> Any:
    """Rows [start, stop) of a piece."""
    return matrix[start:stop]


def columns_of(matrix: Any, start: int, stop: int) -> Any:
    """Columns [start, stop) of a piece."""
    return matrix[:, start:stop]


def stacked(pieces: list[Any], axis: int, start: int, stop: int, width: int) -> Slab:
    """A rank's slab of the rows (columns) [start, stop), from pieces one below the other."""
    whole = sp.vstack(pieces, format="csr" if axis == 0 else "csc") if pieces else sp.csr_array((0, width))
    return Slab(compress(whole, 0, stop - start, axis, owned=True), axis, start, stop)


def partition_triples(part: Any, names: Any) -> Triples:
    """Triples of a partition. Raises: as `triples_of`."""
    return triples_of(part, names)


def unique_of(triples: Triples, place: int) -> np.ndarray:
    """The different ids of a partition's users (`place` 0) or items (1)."""
    return unique_ids(triples[place])[0]


def coded_triples(triples: Triples, user_ids: np.ndarray, item_ids: np.ndarray) -> Triples:
    """Triples with places instead of ids."""
    return Triples(places(triples.users, user_ids), places(triples.items, item_ids), triples.ratings)


def counted(triples: Triples, axis: int, length: int) -> np.ndarray:
    """Ratings of every user (`axis` 0) or item (1)."""
    return np.bincount(triples[axis], minlength=length)


def cut_triples(triples: Triples, axis: int, bounds: list[int]) -> list[Triples]:
    """The triples of each rank's users (`axis` 0) or items (1)."""
    owner = np.searchsorted(bounds, triples[axis], side="right") - 1
    assert triples.ratings is not None
    return [Triples(*(field[owner == rank] for field in triples)) for rank in range(len(bounds) - 1)]


def joined(pieces: list[Triples], axis: int, start: int, stop: int, width: int) -> sp.csr_array:
    """Rows [start, stop) of the larger side, from all partitions' triples of them, in their order."""
    fields = [np.concatenate([piece[place] for piece in pieces]) for place in (axis, 1 - axis, 2)]
    return to_csr(fields[0] - start, fields[1], fields[2], (stop - start, width))


def side_slab(parts: list[Any], axis: int, start: int, stop: int) -> Slab:
    """A rank's slab, from pieces whose rows are what ranks own: users (`axis` 0) or items (1)."""
    whole = sp.csr_array(sp.vstack(parts, format="csr"))
    made = compress(whole, 0, stop - start, 0, owned=True)
    return Slab(made, axis, start, stop)
