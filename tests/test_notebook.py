"""The README's cluster example and its program in a notebook, as a kernel runs them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = "nbconvert", "nbformat", "ipykernel"


def python_blocks():
    return [
        part.partition("```")[0].strip() for part in (ROOT / "README.md").read_text().split("```python")[1:]
    ]


def executed(cells, tmp_path):
    """What each cell prints."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: pip install nbconvert ipykernel")
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, tmp_path / "asked.ipynb")
    places = "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"
    environment = os.environ | {name: str(tmp_path / name) for name in (*places, "DASK_TEMPORARY_DIRECTORY")}
    command = "nbconvert --to notebook --execute --ExecutePreprocessor.timeout=60 --output done asked.ipynb"
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    cells = nbformat.read(tmp_path / "done.ipynb", as_version=4).cells
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


@pytest.mark.timeout(110)
def test_cluster_block_of_the_readme_runs_in_a_notebook(tmp_path):
    cluster = next(block for block in python_blocks() if "Client(" in block)
    told, gap = executed([cluster, "print(model.dual_gap_ / (0.5 * float(y.var().compute())))"], tmp_path)
    assert "dask.array" in told
    assert 0 <= float(gap) <= 1e-3


@pytest.mark.timeout(110)
def test_program_that_a_notebook_defines_runs_on_workers(tmp_path):
    start = """
        from dask.distributed import Client
        client = Client(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    """
    program = next(block for block in python_blocks() if "(Program)" in block)
    processes = """
        import os
        from daskstrads import launch
        print(len({os.getpid(), *launch(lambda group, _: os.getpid(), [0, 1])}))
    """
    cells = [dedent(start), program, dedent(processes), "client.close()"]
    _, told, count, _ = executed(cells, tmp_path)
    assert "coefficients above 0" in told
    assert float(told.split()[-1]) < 1e-6
    assert count == "3\n"
