"""The README's code is the examples' code, and it runs; so does that of docs/coming_from.md."""

import importlib.util
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMING_FROM = (ROOT / "docs" / "coming_from.md").read_text().partition("<!-- needs a current Client -->")
SMALLER = {  # what an example is given here, and not by its readers
    "words_of_python": ["--modules", "40"],
    "topics_of_python": ["--sweeps", "5"],
}


def blocks(language, text=README):
    return [part.split("```")[0].split("\n", 1)[1] for part in text.split(f"```{language}")[1:]]


def test_user_program_of_the_readme_is_the_example():
    example = (ROOT / "examples" / "nnls_program.py").read_text().split('"""\n', 1)[1].strip()
    assert example in [block.strip() for block in blocks("python")]


def test_recommender_block_of_the_readme_runs():
    import numpy as np
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    ratings = sp.random_array((40, 30), density=0.3, format="csr", rng=rng)
    names = {"ratings": ratings, "users": [0, 5]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 100 components for 360 ratings
        exec(blocks("python")[1], names)
    assert len(names["ids"]) == len(names["scores"]) == 2


def test_topics_block_of_the_readme_runs():
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer()
    counts = vectorizer.fit_transform(["cats and dogs", "dogs and cats", "stocks fell", "stocks rose"] * 3)
    names = {"counts": counts, "vectorizer": vectorizer}
    exec(blocks("python")[2], names)
    assert names["lda"].topic_word_.shape == (1000, 6)


def test_first_python_block_of_the_readme_runs():
    from sklearn.datasets import make_regression

    X, y = make_regression(50, 80, random_state=0)
    names = {"X": X, "y": y}
    exec(blocks("python")[0], names)
    assert names["model"].dual_gap_ <= 1e-4 * y.var()


def test_cluster_block_of_the_readme_runs(tmp_path):
    (tmp_path / "cluster.py").write_text(blocks("python")[3])
    done = subprocess.run(
        [sys.executable, "cluster.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "dask.array" in done.stdout


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    if "dask_jobqueue" in example.read_text():
        pytest.skip("needs Slurm: tests/cluster/test_slurm.py brings one up")
    if "matplotlib" in example.read_text():
        pytest.importorskip("matplotlib", reason="draws a picture: pip install '.[examples]'")
    done = subprocess.run(
        [sys.executable, example, *SMALLER.get(example.stem, [])],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT)}


def test_user_program_agrees_with_scipy():
    import numpy as np
    from scipy.optimize import nnls

    from daskstrads import run

    NNLS = runpy.run_path(str(ROOT / "examples" / "nnls_program.py"))["NNLS"]
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((60, 5)), rng.standard_normal(60)
    fit = run(NNLS(5, tol=1e-10), [(X[:20], y[:20]), (X[20:], y[20:])])
    np.testing.assert_allclose(fit.shards[0].coef, nnls(X, y)[0], atol=1e-8)
    np.testing.assert_array_equal(fit.shards[0].coef, fit.shards[1].coef)


@pytest.fixture(scope="module")
def coming_from():
    """The names that docs/coming_from.md has defined where it turns to clusters: its assertions hold."""
    from daskstrads import Lasso

    missing = [] if importlib.util.find_spec("dask_ml") else ["dask_ml"]
    if not hasattr(Lasso, "set_callbacks"):  # scikit-learn before 1.9
        missing.append("set_callbacks")
    names = {}
    for block in blocks("python", COMING_FROM[0]):
        if not any(name in block for name in missing):
            with warnings.catch_warnings():
                if "dask_ml" in block:
                    warnings.simplefilter("ignore")  # its own
                exec(block, names)
    return names


def test_page_for_users_of_others_runs(coming_from):
    assert {"theirs", "path", "alpha", "lazy"} <= set(coming_from)


def test_last_block_of_that_page_runs_with_a_client(coming_from):
    from distributed import Client

    [block] = blocks("python", COMING_FROM[2])
    names = dict(coming_from)
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None):
        exec(block, names)
    assert names["model"].dual_gap_ <= 1e-8 * names["y_tall"].var()
    assert len(names["model"].shards_) == 2
