"""The Python of docs/coming_from.md runs, and what it asserts is so."""

import importlib.util
import warnings
from pathlib import Path

import pytest

from daskstrads import Lasso

TEXT = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text()
APART = "<!-- needs a current Client -->"


def blocks(text):
    return [part.split("```")[0] for part in text.split("```python\n")[1:]]


def ran(text, names):
    """The names after running the blocks of `text`, but for those that need what is not installed."""
    missing = [name for name in ("dask_ml",) if importlib.util.find_spec(name) is None]
    if not hasattr(Lasso, "set_callbacks"):  # scikit-learn before 1.9
        missing.append("set_callbacks")
    for block in blocks(text):
        if not any(name in block for name in missing):
            with warnings.catch_warnings():
                if "dask_ml" in block:
                    warnings.simplefilter("ignore")  # its own
                exec(block, names)
    return names


@pytest.fixture(scope="module")
def names():
    return ran(TEXT.partition(APART)[0], {})


def test_the_page_runs_without_a_cluster(names):
    assert {"theirs", "path", "alpha", "lazy"} <= set(names)


def test_its_last_block_runs_with_a_client(names, client):
    fits = ran(TEXT.partition(APART)[2], dict(names))
    assert fits["model"].dual_gap_ <= 1e-8 * fits["y_tall"].var()
