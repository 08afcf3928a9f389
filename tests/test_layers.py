"""The architecture as a test: which way imports go, and which file may depend on what."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BELOW = {  # room -> the rooms it may import, besides itself
    "algos": {"engine", "schedule", "partition", "sparse_reduce", "comm"},
    "engine": {"schedule", "partition", "sparse_reduce", "comm"},
    "schedule": {"comm"},
    "sparse_reduce": {"comm"},
    "partition": set(),
    "comm": set(),
}
KERNELS, DASK, ALGOS = "_kernels.py", "_dask.py", "algos/"
ONLY_IN = {"numba": KERNELS, "dask": DASK, "distributed": DASK, "sklearn": ALGOS, "joblib": ALGOS}
VAGUE = {"utils", "helpers", "common"}


def imported(node, package):
    """The dotted names that `node` imports, relative ones resolved from `package`."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = package[: len(package) - level + 1] if level else []
            return [".".join([*base, *([module] if module else []), alias.name]) for alias in names]
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            if ast.unparse(function).split(".")[-1] in {"import_module", "__import__"}:
                level = len(name) - len(name.lstrip("."))
                return [".".join([*package[: len(package) - level + 1], name[level:]]) if level else name]
    return []


def eager(tree):
    """The nodes that run on import: those outside functions and `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if not typing_only and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from eager(node)


def breaches(path, source):
    """What is wrong with the file at `path` (relative to daskstrads/), a sentence each."""
    room, front, tree = path.partition("/")[0], path == "__init__.py", ast.parse(source)
    if not front and room not in BELOW:
        return [f"{path}: not in one of the rooms {', '.join(BELOW)}"]
    early, found = set(eager(tree)), []
    for node in ast.walk(tree):
        for name in imported(node, ["daskstrads", *path.split("/")[:-1]]):
            library, target = [*name.split("."), ""][:2]
            home = ONLY_IN.get(library)
            if f"{name}.".startswith("sklearn.linear_model."):
                why = "which takes seconds"
            elif front and node in early and (home or library == "daskstrads"):
                why = "at once; leave that to __getattr__"
            elif not front and library == "daskstrads" and target not in BELOW[room] | {room}:
                why = f"but {room} may import {', '.join(sorted(BELOW[room])) or 'no other room'}"
            elif not front and home and not path.startswith(home) and not path.endswith(home):
                why = f"allowed in {home} alone"
            else:
                continue
            found.append(f"{path}:{node.lineno}: imports {name}, {why}")
    return found


def test_every_import_goes_down():
    package = ROOT / "daskstrads"
    files = sorted(package.rglob("*.py"))
    assert files
    found = [
        line for f in files for line in breaches(f.relative_to(package).as_posix(), f.read_text("utf-8"))
    ]
    assert not found, "\n".join(["", *found])


def test_file_names_say_something():
    folders = ("daskstrads", "tests", "examples", "benchmarks")
    files = [f.relative_to(ROOT) for folder in folders for f in (ROOT / folder).rglob("*.py")]
    assert not [str(f) for f in files if VAGUE & {part.strip("_") for part in f.with_suffix("").parts}]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("comm/local.py", "from daskstrads.engine import Program"),
        ("comm/local.py", "import daskstrads.engine.program as p"),
        ("comm/local.py", "from .. import engine"),
        ("comm/local.py", "def f():\n    from ..sparse_reduce.stream import Stream"),
        ("comm/__init__.py", "from ..partition import split"),
        ("partition/blocks.py", "from ..comm import LocalGroup"),
        ("schedule/priority.py", "from daskstrads import Lasso"),
        ("sparse_reduce/deep/stream.py", "from ...schedule import RoundRobin"),
        ("engine/loop.py", "import importlib\nimportlib.import_module('..algos.lasso', __package__)"),
        ("engine/loop.py", "def f():\n    import numba"),
        ("engine/loop.py", "from dask.base import tokenize"),
        ("engine/loop.py", "import distributed.worker"),
        ("engine/session_dask.py", "from sklearn.base import clone"),
        ("engine/loop.py", "from joblib import Parallel"),
        ("algos/lasso.py", "from numba import njit"),
        ("algos/lasso.py", "from sklearn import linear_model"),
        ("algos/lasso.py", "def f():\n    from sklearn.linear_model._base import LinearModel"),
        ("__init__.py", "from .algos import Lasso"),
        ("__init__.py", "def __getattr__(name):\n    import sklearn.linear_model"),
        ("misc/tools.py", ""),
    ],
)
def test_a_breach_is_found(path, source):
    assert len(breaches(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("comm/local.py", "import threading\nimport numpy as np\nfrom .group import Group"),
        ("comm/__init__.py", "from daskstrads.comm.local import LocalGroup"),
        ("comm/mesh_dask.py", "from distributed import get_worker\nimport dask"),
        ("sparse_reduce/merge_kernels.py", "from numba import njit\nfrom ..comm import Group"),
        ("engine/loop.py", "from .. import comm, schedule\nfrom ..sparse_reduce import Stream"),
        ("algos/lasso.py", "from sklearn.base import BaseEstimator\nfrom ..engine import run\nimport joblib"),
        ("algos/deep/lasso.py", "from ... import partition\nfrom ..lasso_kernels import sweep"),
        ("__init__.py", "if TYPE_CHECKING:\n    from .algos import Lasso"),
        ("__init__.py", "def __getattr__(name):\n    from .algos import Lasso\n    return Lasso"),
    ],
)
def test_a_lawful_import_passes(path, source):
    assert breaches(path, source) == []
