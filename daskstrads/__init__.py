"""Model-parallel training: schedule / push / pull (STRADS) over sparse sums (SparCML)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Names load on first use: importing the package pulls in neither numba nor scikit-learn.
_HOMES = {
    "DynamicPriority": "schedule",
    "ElasticNet": "algos.lasso",
    "Gather": "engine.program",
    "Lasso": "algos.lasso",
    "LatentDirichletAllocation": "algos.lda",
    "MatrixFactorization": "algos.mf",
    "Pass": "engine.program",
    "Program": "engine.program",
    "Report": "schedule",
    "Rotate": "engine.program",
    "Rotation": "schedule",
    "RoundRobin": "schedule",
    "Run": "engine.run",
    "Scatter": "engine.program",
    "Stream": "sparse_reduce",
    "Sum": "engine.program",
    "launch": "engine.run",
    "read_corpus": "partition.corpus_dask",
    "read_svmlight": "partition.svmlight_dask",
    "run": "engine.run",
}

__all__ = [
    "DynamicPriority",
    "ElasticNet",
    "Gather",
    "Lasso",
    "LatentDirichletAllocation",
    "MatrixFactorization",
    "Pass",
    "Program",
    "Report",
    "Rotate",
    "Rotation",
    "RoundRobin",
    "Run",
    "Scatter",
    "Stream",
    "Sum",
    "launch",
    "read_corpus",
    "read_svmlight",
    "run",
]

if TYPE_CHECKING:
    from .algos.lasso import ElasticNet, Lasso
    from .algos.lda import LatentDirichletAllocation
    from .algos.mf import MatrixFactorization
    from .engine.program import Gather, Pass, Program, Rotate, Scatter, Sum
    from .engine.run import Run, launch, run
    from .partition.corpus_dask import read_corpus
    from .partition.svmlight_dask import read_svmlight
    from .schedule import DynamicPriority, Report, Rotation, RoundRobin
    from .sparse_reduce import Stream


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
