import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import daskstrads

HEAVY = {"numba", "distributed", "dask", "sklearn", "scipy", "pandas", "joblib"}


def loaded_by(statement):
    """Which heavy packages a fresh interpreter has loaded after `statement`."""
    root = str(Path(daskstrads.__file__).parents[1])
    script = f"import json, sys; sys.path.insert(0, {root!r}); {statement}; print(json.dumps([*sys.modules]))"
    names = json.loads(subprocess.check_output([sys.executable, "-c", script], env=os.environ))
    return {name.split(".")[0] for name in names} & HEAVY


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import daskstrads; dir(daskstrads)") == set()


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("import daskstrads.comm.local, daskstrads.schedule, daskstrads.engine.run", set()),
        ("from daskstrads import Program, Stream, Sum, RoundRobin, run, launch", set()),
        ("import daskstrads.partition", {"scipy"}),
    ],
)
def test_rooms_load_what_they_need(statement, wanted):
    # What workers load: no scikit-learn, and numba only with the first kernel.
    assert loaded_by(statement) <= wanted


def test_every_public_name_resolves():
    assert sorted(daskstrads.__all__) == sorted(daskstrads._HOMES)
    for name in daskstrads.__all__:
        assert getattr(daskstrads, name).__name__ == name
        assert name in dir(daskstrads)


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'Laso'"):
        daskstrads.Laso  # noqa: B018
