"""Functions as jobs: what is sent of a module's, a script's and a notebook's, what is refused, and that importing submits nothing."""

from __future__ import annotations

import functools
import importlib
import linecache
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stoker import client
from stoker.client.sent_functions import cells, sent, unpacked

pytestmark = pytest.mark.xdist_group("client-submitting")

SCRIPT = """
import sys
from stoker import client

def train(steps, /, lr=0.1, **more):
    print("trained", steps, lr, more, __name__)

if __name__ == "__main__":
    job = client.submit(train, args=(3,), kwargs={"note": "x"}, gpus=1)
    print(job.id, job.wait(60).state, list(job.logs()))
"""


@pytest.fixture(autouse=True)
def at_home(connected: Path) -> Path:
    return connected


def python(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, file.name], cwd=file.parent, capture_output=True, text=True, check=False)


def test_a_scripts_function_is_run_with_its_arguments_as_params(at_home: Path) -> None:
    (at_home / "my_script.py").write_text(SCRIPT)
    done = python(at_home / "my_script.py")
    number, state, lines = done.stdout.split(" ", 2)
    assert (state, lines) == ("completed", "[\"trained 3 0.1 {'note': 'x'} my_script\"]\n"), done.stderr
    row = client.job(int(number)).row
    assert row["name"] == "train" and client.jobs(name="train")[0].id == int(number)
    assert client.sql(f"SELECT spec ->> 'params' AS p FROM jobs WHERE id = {number}")["p"] == ['{"steps":3,"note":"x"}']


@pytest.mark.parametrize("how", ["whole", "array"])
def test_a_modules_function_is_imported_by_its_name(at_home: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    package = at_home / f"pack_{how}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("WIDTH = 4\n")
    (package / "work.py").write_text("from .parts import WIDTH\ndef fit(a, b=2):\n    print(a, b, WIDTH)\n")
    monkeypatch.syspath_prepend(str(at_home))
    work = importlib.import_module(f"pack_{how}.work")
    if how == "whole":
        assert list(client.submit(work.fit, args=([1, {"x": None}],)).wait(60).logs()) == ["[1, {'x': None}] 2 4"]
    else:
        job = client.submit(work.fit, args=(1,), array={"b": [5, 6]}, name="fits").wait(60)
        assert [list(task.logs()) for task in job.tasks] == [["1 5 4"], ["1 6 4"]]


def test_a_script_that_submits_while_it_is_imported_submits_nothing_more(at_home: Path) -> None:
    (at_home / "careless.py").write_text(
        SCRIPT.split("if __name__", maxsplit=1)[0] + "print(client.submit(train, args=(1,), name='careless').id)\n"
    )
    done = python(at_home / "careless.py")
    job = client.job(int(done.stdout))
    with pytest.raises(client.JobFailed):
        job.wait(60)
    assert job.exit_code == 2 and "put what submits below 'if __name__" in "\n".join(job.logs())
    assert len(client.jobs(name="careless", all=True)) == 1


def test_an_entrypoints_module_that_submits_is_refused_too(at_home: Path) -> None:
    (at_home / "entry.py").write_text("from stoker import client\nclient.submit(command='true', name='twice')\ndef task():\n    pass\n")
    job = client.submit(entrypoint="entry:task", name="entry")
    assert job.wait(120, check=False).state == "failed" and "imports this file to run what is in it" in "\n".join(job.logs())
    assert len(client.jobs(name="twice", all=True)) == 0


def test_a_function_that_fails_is_a_failed_job_with_its_traceback(at_home: Path) -> None:
    (at_home / "fails.py").write_text("def bad(x):\n    raise ValueError(f'no {x}')\n")
    sys.path.insert(0, str(at_home))
    try:
        job = client.submit(importlib.import_module("fails").bad, args=("luck",))
    finally:
        sys.path.remove(str(at_home))
    assert job.wait(60, check=False).state == "failed" and list(job.logs())[-1] == "ValueError: no luck"


# -- What cannot be sent ---------------------------------------------------------------------------------------------------


def whole(a: int, b: int = 2) -> None:
    pass


def starred(*values: int) -> None:
    pass


async def awaited() -> None:
    pass


def within(file: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return file.read()

    return inner


def one_by_one() -> Iterator[int]:
    yield 1


class Holder:
    def method(self) -> None:
        pass


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (lambda: 1, {}, "a lambda has no name"),
    (within(sys.stdin), {}, "inner is written within another function, and uses file of it"),
    (Holder().method, {}, "method belongs to an object"),
    (Holder, {}, "Holder is a type, not a function"),
    (print, {}, "print is a builtin_function_or_method"),
    (3, {}, "int is a int, not a function"),
    (functools.partial(whole, 1), {}, "a partial is not sent"),
    (awaited, {}, "awaited is async"),
    (one_by_one, {}, "one_by_one is a generator, of which nothing runs"),
    (starred, {"args": (1,)}, "takes *args"),
    (whole, {}, "needs a"),
    (whole, {"args": (1, 2, 3)}, "too many positional arguments"),
    (whole, {"args": (1,), "kwargs": {"c": 1}}, "unexpected keyword argument 'c'"),
    (whole, {"args": (object(),)}, "args: a: Object of type object is not JSON serializable"),
    (whole, {"args": (float("nan"),)}, "args: a: Out of range float values are not JSON compliant"),
    (whole, {"args": (1,), "params": {"a": 2}}, "'a' is given in params or array as well"),
    (whole, {"args": (1,), "array": {"z": [1]}}, "has no parameter 'z'"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "options", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_what_cannot_be_sent_is_one_exception_and_no_job(function: Any, options: dict[str, Any], words: str) -> None:
    before = client.sql("SELECT count(*) AS n FROM jobs")["n"]
    with pytest.raises(client.UsageError) as raised:
        client.submit(function, **options)
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert client.sql("SELECT count(*) AS n FROM jobs")["n"] == before


# -- Notebooks -------------------------------------------------------------------------------------------------------------


def notebook(*texts: str) -> dict[str, Any]:
    """The names of a notebook after its cells: their code is in `linecache` alone, and their module is __main__."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, text in enumerate(texts):
        file = f"/tmp/ipykernel_1/{number}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), names)
    return names


CELLS = (
    "import math as m\nfrom pathlib import Path\nSCALE = {'x': [1, 2]}\n",
    "def helper(n):\n    return m.sqrt(n) * SCALE['x'][1]\n",
    "class Point:\n    def __init__(self, n):\n        self.n = helper(n)\n",
    "opened = open(__import__('os').devnull)\ndef leaks():\n    return opened.read()\n",
    "def train(n, lr=0.5):\n    print(Point(n).n, lr, Path('a').name)\n",
)


def test_a_notebooks_function_is_sent_with_what_it_uses(at_home: Path) -> None:
    names = notebook(*CELLS)
    job = client.submit(names["train"], args=(16,), name="cell").wait(60)
    assert list(job.logs()) == ["8.0 0.5 a"]
    text = cells(names["train"])
    assert "leaks" not in text and "opened" not in text and text.index("def helper") < text.index("class Point") < text.index("def train")
    fields = sent(names["train"], (1,), {}, {}, local=True)
    packed = fields["command"][fields["command"].index("--source") + 1]
    assert unpacked(packed) == text and not set("{}") & set(packed)
    with pytest.raises(client.UsageError, match="leaks uses opened, an open file of this notebook"):
        client.submit(names["leaks"])
    names["opened"].close()


def test_names_of_a_functions_own_are_not_the_notebooks() -> None:
    """A notebook's ``x`` is as often a tensor or a frame as a function's ``x`` is a parameter."""
    own = notebook(
        "x = f = row = sys = other = object()\nBASE = 2\nTIMES = 3\n",
        "def add(x, *, f=BASE):\n"
        "    import sys\n"
        "    def inner(row):\n"
        "        return [other * TIMES for other in (x, f, row)]\n"
        "    return inner(sys.maxsize)\n",
        "class Both:\n    BASE = BASE\n    def read(self):\n        return self.BASE\n",
        "def both():\n    return Both().read()\n",
    )
    assert cells(own["add"]).splitlines()[:3] == ["BASE = 2", "TIMES = 3", ""]
    assert cells(own["both"]).splitlines()[:2] == ["BASE = 2", ""], "a class has the notebook's until it has its own"


def test_a_function_of_a_prompt_has_no_source() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def typed(): pass", names)
    assert isinstance(names["typed"], types.FunctionType)
    with pytest.raises(client.UsageError, match="the source of typed is not known, as it was written at a prompt"):
        client.submit(names["typed"])


def test_what_runs_functions_says_what_it_lacks(capfd: pytest.CaptureFixture[str]) -> None:
    from stoker.client import called

    assert called.main(["--file", "/nowhere/x.py", "train"]) == 2
    assert "there is no file /nowhere/x.py on this host" in capfd.readouterr().err
