"""Policies of one's own: what their code is, that an edit is loaded when they are set, and that a broken one is refused."""

from __future__ import annotations

import compileall
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e import DaemonProcess, RunnerProcess, until
from stoker.engine.cli.main import run
from stoker.engine.home import Home
from stoker.policies import own, registry

POLICY = '''
from dataclasses import dataclass

from {module} import WHY
from stoker.policies.contract import Plan, Reason, Waiting, tunable


class Never:
    """Nobody ever starts."""

    @dataclass(frozen=True)
    class Config:
        patience: float = tunable(5.0, "seconds of nothing", low=1, high=60)

    name = "never"

    def __init__(self, config):
        self.config = config

    def plan(self, view):
        import {later}

        return Plan({{}}, [Waiting(Reason("never", WHY + {later}.MORE), view.jobs.id.tolist())])
'''


class Folder:
    """A folder of the import path with a policy and what it imports: at once, and only when it plans."""

    def __init__(self, path: Path, package: str = "") -> None:
        self.path = path
        self.inside = path / package
        self.inside.mkdir(parents=True, exist_ok=True)
        dot = f"{package}." if package else ""
        self.name = f"{dot}mine:Never"
        self.write("mine", POLICY.format(module=f"{dot}words_of_mine", later=f"{dot}more_of_mine"))
        self.write("words_of_mine", "WHY = 'one'")
        self.write("more_of_mine", "MORE = ''")

    def write(self, module: str, text: str) -> None:
        """An edit that leaves size and time as they were: no bytecode is out of date for it."""
        file = self.inside / f"{module}.py"
        file.write_text(text)
        os.utime(file, (1e9, 1e9))


@pytest.fixture(params=["", "ours", "nested"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A module beside others, a package without an __init__, and one with."""
    made = Folder(tmp_path / "lib", request.param)
    if request.param == "nested":
        made.write("__init__", "")
    monkeypatch.syspath_prepend(made.path)
    before, finders = set(sys.modules), list(sys.meta_path)
    yield made
    sys.meta_path[:] = finders
    registry._loaded.pop(made.name, None)
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("mine", "words_of_mine", "more_of_mine", "ours", "nested"):
            del sys.modules[name]


def why(name: str) -> str:
    """The reason that a policy gives, of an instance as it is made now."""
    from views import Job, make_view

    return str(registry.create(name, {}).plan(make_view([1], [Job(1)])).waiting[0].reason.text)


def anew(name: str) -> own.Loaded:
    with registry.anew(name) as loaded:
        return loaded


def test_an_edit_is_loaded_when_that_is_asked_for(folder: Folder) -> None:
    first = registry.loaded(folder.name)
    assert why(folder.name) == "one" and len(first.code) == 12
    assert compileall.compile_dir(folder.path, quiet=1)  # as a test of the policy leaves it behind
    folder.write("words_of_mine", "WHY = 'two'")
    assert (why(folder.name), registry.loaded(folder.name)) == ("one", first)
    second = anew(folder.name)
    assert why(folder.name) == "two" and second.code != first.code
    folder.write("more_of_mine", "MORE = '+'")  # no part of its code: it is imported later
    assert anew(folder.name).code == second.code and why(folder.name) == "two+"
    folder.write("words_of_mine", "WHY = 'one'")
    assert anew(folder.name).code == first.code
    assert [name.rpartition(".")[2] for name in first.modules if name not in ("ours", "nested")] == ["mine", "words_of_mine"]


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        ("mine", "class Never:\n    def plan(self", "fails when it is imported: SyntaxError: '(' was never closed"),
        ("mine", "class Never:\n    name = 'never'\n    Config = None", "is no policy: it lacks plan"),
        ("mine", "import nowhere_at_all", "cannot import"),
        ("mine", "import stoker.policies.nowhere", "(No module named 'stoker.policies.nowhere'); see docs/writing-a-policy.md"),
        ("mine", "raise SystemExit(3)", "fails when it is imported: SystemExit: 3"),
        ("words_of_mine", "WHY = 1 / 0", "fails when it is imported: ZeroDivisionError"),
        ("words_of_mine", "WHY = ", "fails when it is imported: SyntaxError: invalid syntax"),
    ],
)
def test_a_broken_edit_leaves_what_was_loaded(folder: Folder, module: str, text: str, says: str) -> None:
    first = registry.loaded(folder.name)
    assert why(folder.name) == "one"
    folder.write(module, text)
    with pytest.raises(ValueError, match="policy: ") as refused:
        anew(folder.name)
    assert says in str(refused.value) and "\n" not in str(refused.value)
    assert registry.loaded(folder.name) == first and why(folder.name) == "one"
    module_of = sys.modules[first.policy.__module__]
    assert first.policy is module_of.Never


def test_what_is_done_with_a_new_load_decides_whether_it_stays(folder: Folder) -> None:
    first = registry.loaded(folder.name)
    folder.write("words_of_mine", "WHY = 'two'")
    with pytest.raises(KeyError), registry.anew(folder.name):
        assert why(folder.name) == "two"
        raise KeyError
    assert registry.loaded(folder.name) == first


def test_two_policies_of_a_folder_do_not_change_each_other(folder: Folder) -> None:
    first = registry.loaded(folder.name)
    other = folder.name.replace("mine:", "other:")
    folder.write(
        "other", "from dataclasses import dataclass\nclass Never:\n    name = 'o'\n    plan = Config = dataclass(type('C', (), {}))"
    )
    loaded = registry.loaded(other)
    try:
        assert all("mine" not in module for module in loaded.modules) and loaded.code != first.code
        assert registry.loaded(folder.name) == first and anew(folder.name).code == first.code
    finally:
        registry._loaded.pop(other)


def test_modules_that_others_have_imported_and_installed_neighbours_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Folder(tmp_path, "ours")
    (tmp_path / "ours-1.0.dist-info").mkdir()
    (tmp_path / "neighbour_of_ours.py").write_text("")
    made.write("words_of_mine", "import neighbour_of_ours\nWHY = 'one'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", sys.modules)
    registry.loaded(made.name)
    neighbour = sys.modules["neighbour_of_ours"]
    again = anew(made.name)
    assert sys.modules["neighbour_of_ours"] is neighbour and "neighbour_of_ours" not in again.modules
    registry._loaded.pop(made.name)
    for name in ("ours", *again.modules, "neighbour_of_ours"):
        sys.modules.pop(name, None)


def test_a_tree_of_stoker_in_the_folder_of_a_policy_is_no_part_of_it() -> None:
    """Else what a policy or the daemon imports late would be loaded anew, and its classes be others than those in use."""
    beside = own._Place(Path(own.__file__).parents[2], "", frozenset())
    assert [name for name in beside.loaded() if name.startswith("stoker")] == []


def test_ours_have_no_code_of_their_own() -> None:
    assert registry.loaded("stoker.policies.fifo:Fifo") == own.Loaded(registry.load("fifo"))


@pytest.fixture
def daemon(start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess], tmp_path: Path) -> DaemonProcess:
    """A daemon whose import path has a folder that this process has not."""
    Folder(tmp_path / "lib")
    started = start_daemon(env={"PYTHONPATH": os.pathsep.join([str(tmp_path / "lib"), os.environ.get("PYTHONPATH", "")])})
    start_runner()
    return started


@pytest.mark.slow
def test_a_policy_of_ones_own_is_edited_while_jobs_wait(
    home: Home, daemon: DaemonProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stoker(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["--home", str(home.path), *arguments])
        return code, *capsys.readouterr()

    def answer(*arguments: str) -> dict:
        code, out, err = stoker(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    lib, name, client = Folder(tmp_path / "lib"), "mine:Never", daemon.client()
    # Known to the daemon alone, and not yet in force.
    shown = answer("policy", "show", name)
    assert shown["doc"] == "Nobody ever starts." and shown["history"] == shown["pools"] == []
    assert [(key["name"], key["type"], key["default"], key["low"], key["high"]) for key in shown["config"]] == [
        ("patience", "float", 5.0, 1, 60)
    ]

    first = answer("policy", "set", name, "patience=7")
    assert (first["code"], first["modules"], first["code_before"]) == (shown["code"], ["mine", "words_of_mine"], None)
    stoker("submit", "--name", "waits", "--", "true")
    until(lambda: (client.get("/v1/jobs/waits")["waiting"] or {}).get("reason") == "one")
    code, out, _ = stoker("policy", "show", name)
    table = [line.split() for line in out.splitlines()]
    assert code == 0 and ["KEY", "TYPE", "DEFAULT", "IN", "FORCE", "RANGE", "MEANING"] in table
    assert ["patience", "float", "5.0", "7.0", "1", "to", "60", "seconds", "of", "nothing"] in table

    # The same words after an edit.
    lib.write("words_of_mine", "WHY = 'two'")
    code, out, _ = stoker("policy", "set", name, "patience=7")
    second = until(lambda: (pool := answer("policy", "show", name)["pools"][0])["code"] != first["code"] and pool)["code"]
    assert code == 0 and f"code    {second} of mine, words_of_mine; it was {first['code']}\n" in out
    until(lambda: client.get("/v1/jobs/waits")["waiting"]["reason"] == "two")
    assert ", as before" in stoker("policy", "set", name, "patience=7")[1]

    # A broken edit.
    until(lambda: (shown := answer("policy", "show", name))["pools"][0]["ts"] == shown["history"][0]["ts"])
    before = answer("policy", "show", name)
    lib.write("mine", "class Never:\n    def plan(self")
    code, out, err = stoker("policy", "set", name, "patience=7")
    assert (
        (code, out) == (2, "")
        and err.startswith("stoker: error: policy: 'mine' fails when it is imported: SyntaxError")
        and err.count("\n") == 1
    )
    assert answer("policy", "show", name) == before and before["pools"][0]["code"] == second
    stoker("submit", "--name", "waits-too", "--", "true")
    until(lambda: (client.get("/v1/jobs/waits-too")["waiting"] or {}).get("reason") == "two")
    assert [(row["code"], row["config"], row["set_by"] != "daemon") for row in before["history"]] == [
        (second, {"patience": 7.0}, True), (second, {"patience": 7.0}, True), (first["code"], {"patience": 7.0}, True)
    ]  # fmt: skip
    query = "SELECT DISTINCT h.code FROM decisions d JOIN policy_history h ON h.id = d.config_id WHERE d.policy = 'mine:Never'"
    decided = client.post("/v1/sql", {"query": query})
    assert {code for (code,) in decided["rows"]} == {first["code"], second}
    told = client.get("/v1/jobs/waits/explain")["decisions"]
    assert {(one["policy"], one["code"]) for one in told} <= {(name, first["code"]), (name, second)}
    _restarted_on_other_code(home, daemon, Folder(tmp_path / "lib"), second)


def _restarted_on_other_code(home: Home, daemon: DaemonProcess, lib: Folder, before: str) -> None:
    """What a daemon loads when it starts is told as well."""
    lib.write("words_of_mine", "WHY = 'six'")
    daemon.stop()
    client = daemon.start()
    (now,) = client.get("/v1/policy")["pools"]
    newest = client.get("/v1/policy")["history"][0]
    assert now["code"] not in ("", before)
    assert (newest["code"], newest["set_by"], newest["config"]) == (now["code"], "daemon", {"patience": 7.0})
    count = len(client.get("/v1/policy")["history"])
    daemon.stop()
    assert len(daemon.start().get("/v1/policy")["history"]) == count


def test_policies_are_told_without_a_daemon(home: Home, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    def stoker(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["--home", str(home.path), "policy", *arguments])
        return code, *capsys.readouterr()

    code, out, err = stoker("list")
    assert (code, err) == (0, "") and all(name in out for name in registry.POLICIES)
    assert "In force\nnot known: no daemon answers" in out
    assert json.loads(stoker("list", "--json")[1])["pools"] is None
    code, out, _ = stoker("show", "srtf")
    assert code == 0 and "hysteresis" in out and "never set" not in out
    code, out, _ = stoker("show", folder.name)
    assert code == 0 and "patience" in out and "Nobody ever starts." in out
    code, _, err = stoker("show", "nowhere_at_all:Policy")
    assert code == 3 and "cannot import 'nowhere_at_all'" in err and err.count("\n") == 1
    assert stoker("show", "srft")[2].startswith("stoker: error: no policy 'srft' (did you mean 'srtf'?); there are: chronus")
    assert stoker("set", "fifo")[0] == 6
