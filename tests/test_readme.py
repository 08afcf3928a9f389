"""The README's code is the examples' code, and it runs."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SMALLER = {"words_of_python": ["--modules", "40"]}  # what an example is given here, and not by its readers


def blocks(language, text=README):
    return [part.split("```")[0].split("\n", 1)[1] for part in text.split(f"```{language}")[1:]]


def test_user_program_of_the_readme_is_the_example():
    example = (ROOT / "examples" / "nnls_program.py").read_text().split('"""\n', 1)[1].strip()
    assert example in [block.strip() for block in blocks("python")]


def test_first_python_block_of_the_readme_runs():
    from sklearn.datasets import make_regression

    X, y = make_regression(50, 80, random_state=0)
    names = {"X": X, "y": y}
    exec(blocks("python")[0], names)
    assert names["model"].dual_gap_ <= 1e-4 * y.var()


def test_cluster_block_of_the_readme_runs(tmp_path):
    (tmp_path / "cluster.py").write_text(blocks("python")[1])
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
