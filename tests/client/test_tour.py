"""The tour as a notebook: executed by Jupyter's client where it is installed, else its cells one after the other."""

from __future__ import annotations

import importlib.util
import json
import linecache
import shutil
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess
from stoker import client

pytestmark = [pytest.mark.xdist_group("client-commands"), pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"


def cells() -> list[str]:
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def executed_by_jupyter(directory: Path) -> list[str]:
    """What the cells show as text."""
    import nbclient
    import nbformat

    notebook = nbformat.read(directory / "tour.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(directory)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [str(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs]


def executed_here() -> list[str]:
    """The same without Jupyter: magics as what they stand for."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(cells()):
        text = "\n".join(line for line in cell.split("\n") if not line.startswith("%load_ext"))
        if text.startswith("%%stoker sql"):
            text = f"client.sql({text.partition(chr(10))[2]!r})"
        file = f"/tmp/ipykernel_tour/{number}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        *body, last = text.rstrip().split("\n")
        try:
            exec(compile("\n".join(body), file, "exec"), names)
            shown.append(repr(eval(compile(last, file, "eval"), names)))
        except SyntaxError:
            exec(compile(text, file, "exec"), names)
    return shown


@pytest.mark.filterwarnings("ignore")
@pytest.mark.nightly  # each call of it by day in the other files here
def test_the_tour_runs(live: DaemonProcess, connected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tour.ipynb", "plain_script.py"):
        shutil.copy(EXAMPLES / name, connected)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    jupyter = all(importlib.util.find_spec(name) is not None for name in ("nbclient", "ipykernel"))
    shown = executed_by_jupyter(connected) if jupyter else executed_here()
    assert any("['completed', 'completed', 'completed']" in text for text in shown), shown
    assert any("[['3.14'], ['12.57']]" in text for text in shown), shown
    assert any("waited" in text and "wide" in text for text in shown), shown
    assert {job.name for job in client.jobs()} >= {"plain", "digits", "wide"}
