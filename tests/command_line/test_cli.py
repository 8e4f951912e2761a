"""The command line without a daemon: help, examples, laziness, errors in one line, the reference."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from reference import commands, policies, reference
from stoker.engine import errors
from stoker.engine.cli import main as entry
from stoker.engine.cli.foreign_words import COMMANDS, OPTIONS, WITH_A_JOB
from stoker.engine.cli.main import EXIT_CODES, SECTIONS, cli, run

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "duckdb", "matplotlib", "starlette", "uvicorn", "sqlglot", "numpy", "ortools", "apscheduler", "rich", "msgspec", "yaml"}

Stoker = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Stoker:
    """Run one command line on an empty home; exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["--home", str(tmp_path), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def everything() -> list[tuple[str, click.Command]]:
    context = click.Context(cli, info_name="stoker")
    return [(path, command) for path, command, _ in commands(cli, context)]


ALL = everything()
LEAVES = [(path, command) for path, command in ALL if not isinstance(command, click.Group)]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_help_has_an_example(stoker: Stoker, path: str, command: click.Command) -> None:
    code, out, err = stoker(*path.split()[1:], "--help")
    assert (code, err) == (0, "")
    assert "Examples:" in out
    assert out.startswith(f"Usage: {path} ")
    assert command.help and command.get_short_help_str(200)


def command_lines(example: str) -> Iterator[list[str]]:
    """The arguments of each `stoker` in a line of shell."""
    words: list[str] = []
    for word in [*shlex.split(example), "|"]:
        if word not in {"|", ">", "<"}:
            words.append(word)
            continue
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if words[:1] == ["stoker"]:
            yield words[1:]
        words = []


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[path for path, _ in LEAVES])
def test_examples_parse(path: str, command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that the command itself would refuse is worse than none."""
    (tmp_path / "query.sql").write_text("SELECT 1")
    monkeypatch.chdir(tmp_path)
    own = 0
    for line in [line for example in command.examples for line in command_lines(example)]:  # type: ignore[attr-defined]
        root = click.Context(cli, info_name="stoker")
        words = line[2:] if line[0] in ("--url", "--home") else line
        name, found, rest = cli.resolve_command(root, words)
        while isinstance(found, click.Group):
            name, found, rest = found.resolve_command(root, rest)
        assert found is not None
        own += found is command
        with found.make_context(name, rest, parent=root):
            pass
    assert own, f"no example shows {path} itself"


def test_commands_that_hints_name_parse() -> None:
    for hint in [*COMMANDS.values(), *WITH_A_JOB.values(), *(hint for hints in OPTIONS.values() for hint in hints.values())]:
        words = shlex.split(hint.command.format(jobs="17", words="true"))[1:]
        root = click.Context(cli, info_name="stoker")
        name, found, rest = cli.resolve_command(root, words)
        assert found is not None
        with found.make_context(name, rest, parent=root):
            pass
    assert not COMMANDS.keys() & cli.list_commands(click.Context(cli))


def test_undrain_is_not_answered_with_drain(stoker: Stoker) -> None:
    assert stoker("undrain", "gpu1")[2].count("stoker runner resume NODE") == 1


def test_lists_of_commands_are_not_cut(stoker: Stoker) -> None:
    for path, command in ALL:
        if isinstance(command, click.Group):
            lines = stoker(*path.split()[1:], "--help")[1].splitlines()
            assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage:")], path


def test_the_help_of_import_lists_the_formats(stoker: Stoker) -> None:
    from stoker.engine.traces.formats.known_formats import FAMILIES, IMPORTED

    said = " ".join(stoker("trace", "import", "--help")[1].split())
    assert all(f" {name} {FAMILIES[name].title} " in said for name in IMPORTED) and "pai-jobs" not in said


def test_list_of_commands_says_what_each_command_says() -> None:
    """The list imports no command, so its words are written twice: they must be the same."""
    for section in SECTIONS.values():
        for name, lazy in section.items():
            if importlib.util.find_spec(f"stoker.engine.cli.{lazy.target.split(':')[0]}") is not None:
                command = cli.get_command(click.Context(cli), name)
                assert command is not None and command.name == name, name
                assert lazy.help.endswith(".") and len(lazy.help) < 60


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ps", "--help"], ["up", "--help"], ["top", "--help"]])
def test_start_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys, json; from stoker.engine.cli.main import run\n"
        f"code = run({arguments!r})\n"
        f"print(json.dumps([code, sorted(set(sys.modules) & {HEAVY!r})]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


def test_submitting_a_command_imports_no_framework() -> None:
    program = (
        "import sys; from stoker.engine.cli.main import run; code = run(['--home', '/nonexistent', 'submit', '--', 'true']);"
        "heavy = {'torch', 'duckdb', 'matplotlib', 'starlette', 'sqlglot', 'numpy', 'ortools'} & set(sys.modules);"
        "print(code, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "6 []"


def test_reference_is_up_to_date() -> None:
    assert (ROOT / "docs/cli.md").read_text() == reference(cli), "write it anew with: python docs/reference.py"


def test_page_of_the_policies_is_up_to_date() -> None:
    assert (ROOT / "docs/policies.md").read_text() == policies(), "write it anew with: python docs/reference.py"


def test_every_kind_of_error_has_a_documented_exit_code() -> None:
    assert {kind.exit_code for kind in errors.KINDS.values()} <= set(EXIT_CODES)
    assert errors.JobFailed.exit_code in EXIT_CODES
    context = click.Context(cli, info_name="stoker")
    text = cli.get_help(context)
    assert all(meaning in text for meaning in EXIT_CODES.values())


BAD: list[tuple[list[str], int, str]] = [
    (["ui", "--port", "0"], 2, "0 is not in the range 1<=x<=65535"),
    (["up", "--ui", "65536"], 2, "65536 is not in the range"),
    (["ps", "--url", "ftp://x:1"], 2, "http://HOST:PORT"),
    (["ps", "--url", "http://x:99999"], 2, "http://HOST:PORT"),
    (["ask", "tagger"], 2, "give a text, or --file FILE with a request a line"),
    (["ask", "tagger", "text", "--file", "f"], 2, "not both"),
    (["ask", "tagger", "text", "--timeout", "0"], 2, "--timeout"),
    (["bogus"], 2, "no such command 'bogus'"),
    (["submitt"], 2, "did you mean 'submit'"),
    (["ps", "--stat", "x"], 2, "--stat"),
    (["ps", "--state", "runing"], 2, "did you mean 'running'"),
    (["ps", "--limit", "0"], 2, "--limit"),
    (["submit"], 2, "nothing to run"),
    (["submit", "--"], 2, "nothing follows '--'"),
    (["swap", "plan", "job.yml", "--cap", "1MiB"], 3, "no such file"),
    (["swap", "plan", "job.yml", "--cap", "0"], 2, "must be at least one byte"),
    (["submit", "train.py"], 3, "stoker submit -- python train.py"),
    (["submit", "-g", "2", "train.py", "--lr", "1"], 2, "stoker submit -- python train.py --lr 1"),
    (["submit", str(Path(__file__)), "-v"], 2, "; a command and its options stand after '--': stoker submit -- python "),
    (["submit", str(Path(__file__))], 2, "is a program, not a file of jobs"),
    (["submit", "--memory", "4GiB", "job.yaml"], 2, "stoker submit --set memory.cap=8GiB"),
    (["prompt", "tune", "--mem=4GiB", "job.yaml"], 2, "stoker submit --set memory.cap=8GiB"),
    (["rerun", "17"], 2, "stoker retry 17"),
    (["await", "bert"], 2, "stoker wait bert"),
    (["retry"], 2, "JOB"),
    (["wait"], 2, "JOB"),
    (["wait", "1", "--timeout", "soon"], 2, "--timeout"),
    (["ps", "--label", "team"], 2, "--label: must be KEY=VALUE"),
    (["ps", "--since", "yesterday"], 2, "--since"),
    (["cancel", "17", "--user", "ann"], 2, "name the jobs, or say what they are"),
    (["cancel", "--state", "runing"], 2, "did you mean 'running'"),
    (["logs", "17", "-n", "1.5"], 2, "'1.5' is not a valid integer; see"),
    (["logs", "17", "--grep", "("], 2, "--grep: '(' is not a regular expression"),
    (["logs", "17", "--since", "1m", "-n", "5"], 2, "give one of them"),
    (["clean", "x"], 2, "unexpected extra argument"),
    (["prune"], 2, "stoker clean"),
    (["kill", "-9", "17", "18"], 2, "stoker cancel 17 18"),
    (["squeue", "-u", "ann"], 2, "stoker ps"),
    (["run", "train.py", "--lr", "1"], 2, "stoker submit -- python train.py --lr 1"),
    (["ps", "bert"], 2, "stoker show bert"),
    (["priority", "bert", "x y", "-5"], 2, "the priority comes first: stoker priority -5 bert 'x y'"),
    (["submit", "job.yml"], 3, "no such file"),
    (["submit", "--gpus", "x", "--", "true"], 2, "--gpus"),
    (["submit", "--recipe", "digits-cn"], 2, "digits-cnn"),
    (["submit", "--follow", "--json", "--", "true"], 2, "--wait --json"),
    (["submit", "--array", "x=1,2", "--follow", "--", "true"], 2, "--follow shows one job"),
    (["submit", "--cron", "* * * * *", "--wait", "--", "true"], 2, "never ends"),
    (["show"], 2, "JOB"),
    (["show", "1", "--events", "-1"], 2, "--events"),
    (["explain"], 2, "JOB"),
    (["pipeline"], 2, "JOB"),
    (["pipeline", "1", "--plot", "plot.pdf"], 2, "--plot: plot.pdf must end in .png"),
    (["logs"], 2, "JOB"),
    (["cancel"], 2, "JOB"),
    (["hold"], 2, "JOB"),
    (["release"], 2, "JOB"),
    (["move"], 2, "JOB"),
    (["priority", "high", "one"], 2, "NUMBER"),
    (["schedule"], 2, "missing command"),
    (["schedule", "remove", "x"], 2, "ID"),
    (["top", "--interval", "0"], 2, "--interval"),
    (["sql", "-f", "missing.sql"], 3, "missing.sql"),
    (["sql", "SELECT 1", "-o", "xml"], 2, "-o"),
    (["sql", ""], 2, "empty"),
    (["sql", "SELECT 1", "--watch", "1", "-o", "csv"], 2, "--watch"),
    (["report", "--since", "yesterday"], 2, "--since"),
    (["up", "--slots", "0"], 2, "--slots"),
    (["runner", "lst"], 2, "did you mean 'list'"),
    (["runner", "stop"], 2, "NODE"),
    (["runner", "slurm", "--partition", "gpu", "--time", "90s"], 2, "--time: '90s' is too short"),
    (["runner", "slurm", "--partition", "gpu", "--time", "240"], 2, "--time: '240' has no unit"),
    (["runner", "slurm", "--partition", "gpu", "--time", "1h"], 2, "--url"),
    (["runner", "slurm", "up", "--time", "1h"], 2, "--partition"),
    (["runner", "slurm", "--partition", "gpu", "--time", "1h", "--", "--comment=x"], 2, "--comment: a pilot has its own"),
    (["runner", "slurm", "--partition", "gpu", "--time", "1h", "--", "vision"], 2, "'vision' is no option of sbatch"),
    (["runner", "slurm", "--partition", "g\np", "--time", "1h"], 2, "--partition"),
    (["runner", "slurm", "--partition", "gpu", "--time", "1h", "--pool", "../x"], 2, "--pool"),
    (["runner", "slurm", "dwn"], 2, "did you mean 'down'"),
    (["runner", "ray", "up", "--slots", "1"], 2, "--nodes"),
    (["runner", "ray", "up", "--nodes", "2", "--slots", "1", "--gpus", "1"], 2, "--gpus, --slots: give one of them"),
    (["runner", "ray", "up", "--nodes", "2"], 2, "--url"),
    (["runner", "ray", "down", "--pool", "../x"], 2, "--pool"),
    (["simulate", "missing.csv", "-p", "fifo", "-n", "1x2", "--on", "rya"], 2, "--on"),
    (["tune", "default", "--on", "ray"], 2, "--on: goes with --trace"),
    (["drain"], 2, "NODE"),
    (["policy", "set"], 2, "POLICY"),
    (["policy", "set", "fifo", "interval"], 2, "KEY=VALUE"),
    (["policy", "set", "fifo", "--interval", "0"], 2, "--interval"),
    (["token", "create", "x", "--role", "king"], 2, "--role"),
    (["tls", "--name", "x y"], 2, "--name: 'x y' is neither an address nor the name of a host"),
    (["token", "revoke", "x"], 2, "ID"),
    (["backup", "."], 2, "directory"),
    (["compact", "x"], 2, "unexpected extra argument"),
    (["serve-sql", "--file", "nothing.duckdb"], 3, "no such file"),
    (["doctor", "x"], 2, "unexpected extra argument"),
    (["service", "--bogus"], 2, "--bogus"),
    (["completion", "tcsh"], 2, "tcsh"),
    (["down", "--timeout", "x"], 2, "--timeout"),
    (["status", "x"], 2, "unexpected extra argument"),
    (["schema", "a", "b"], 2, "unexpected extra argument"),
    (["trace"], 2, "missing command"),
    (["trace", "import"], 2, "FILE"),
    (["trace", "import", "missing.csv"], 3, "no such file"),
    (["trace", "show"], 2, "NAME"),
    (["trace", "drop"], 2, "NAME"),
    (["simulate", "missing.csv", "-p", "fifo", "-n", "1x2"], 3, "no such file"),
    (["simulate", "missing.csv", "-p", "fifo", "-n", "8"], 2, "NODESxGPUS"),
    (["replay", "-p", "fifo", "--since", "yesterday"], 2, "--since"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_a_mistake_gets_one_line(stoker: Stoker, arguments: list[str], code: int, words: str) -> None:
    got, out, err = stoker(*arguments)
    assert out == ""
    assert err.startswith("stoker: error: ") and err.count("\n") == 1, err
    assert words in err
    assert got == code


NEEDS_DAEMON = [
    "ps", "status", "show 1", "explain 1", "pipeline 1", "logs 1", "ask 1 text",
    "cancel 1", "cancel --user ann", "retry 1", "wait 1", "clean", "export tensorboard 1",
    "export mlflow 1", "hold 1", "release 1", "move 1 --restart", "priority 1 1", "schedule list",
    "schedule remove 1",
    "ui", "ui --port 7466",
    "top --once", "top --json", "sql SELECT", "schema", "report", "down", "runner list", "runner stop a", "runner resume a",
    "runner forget a", "drain a", "policy set fifo", "tune default --dry-run", "tune history", "pool warm default minilm",
    "token create a --role read", "token list",
    "token revoke 1", "backup", "compact", "serve-sql", "submit -- true", "trace list", "trace show a", "trace drop a",
    "trace export a", "simulate week -p fifo -n 1x2", "prompt bank stats", "prompt bank search a", "prompt bank show 1",
    "prompt bank build", "prompt bank add --text a",
    "replay -p fifo", "adapters --all",
]  # fmt: skip


@pytest.mark.parametrize("line", NEEDS_DAEMON)
def test_without_a_daemon_the_remedy_is_named(stoker: Stoker, line: str) -> None:
    code, out, err = stoker(*line.split())
    assert (code, out, err.count("\n")) == (6, "", 1)
    assert "stoker up --detach" in err


def test_every_command_is_tried_with_bad_input() -> None:
    tried = {case[0][0] for case in BAD} | {line.split()[0] for line in NEEDS_DAEMON}
    names = {path.split()[1] for path, _ in ALL} - {"demo"}
    assert names <= tried


def test_debug_shows_the_traceback(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_DEBUG", "1")
    _, _, err = stoker("ps")
    assert err.startswith("Traceback") and err.splitlines()[-1].startswith("stoker: error: ")


def test_our_own_faults_get_one_line_too(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("oh\nno")

    monkeypatch.setattr(entry.cli, "main", broken)
    code, _, err = stoker("ps")
    assert code == 1 and err.count("\n") == 1 and "RuntimeError: oh no" in err and "STOKER_DEBUG" in err


def test_interrupt_is_130(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.engine.client.Client.get", interrupted)
    code, out, err = stoker("ps")
    assert (code, out, err.strip()) == (130, "", "")


def test_no_arguments_shows_help() -> None:
    done = subprocess.run([sys.executable, "-m", "stoker"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Usage: stoker" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("line", ["completion bash", "service"])
def test_a_closed_pipe_is_quiet(line: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run([sys.executable, "-m", "stoker", *line.split()], stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("line", ["--version", "trace --help", "completion bash"])
@pytest.mark.parametrize(("output", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_an_output_that_cannot_be_written_gets_one_line(line: str, output: str, why: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m stoker {line} {output}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"stoker: error: cannot write the output: {why}\n")


@pytest.mark.parametrize("line", ["submit -", "sql", "submit --dry-run -"])
def test_a_closed_standard_input_is_an_empty_one(tmp_path: Path, line: str) -> None:
    said = []
    for given in ("<&-", "</dev/null"):
        command = f"{shlex.quote(sys.executable)} -m stoker {line} {given}"
        environment = {**os.environ, "STOKER_HOME": str(tmp_path)}
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=environment)
        assert "report it" not in done.stderr
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]


@pytest.mark.parametrize("line", ["backup b.duckdb", "submit -- true", "trace import t.csv", "submit job.yaml"])
def test_a_current_directory_that_was_removed_is_named(tmp_path: Path, line: str) -> None:
    command = f"cd gone; rmdir ../gone; {shlex.quote(sys.executable)} -P -m stoker {line}"
    (tmp_path / "gone").mkdir()
    environment = {**os.environ, "STOKER_HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode not in (0, 1)
    assert "report it" not in done.stderr


def test_who_closes_stderr_gets_the_answer_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("key,submitted,duration,gpus_min\na,0,1,1\n")
    command = f"{shlex.quote(sys.executable)} -m stoker trace import t.csv --dry-run 2>&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "t: 1 job would be imported (format stoker)\n")


def test_sigterm_runs_what_is_to_be_done_at_the_end() -> None:
    program = (
        "import os, sys; from stoker.engine.client import Client; from stoker.engine.cli.main import main\n"
        "def get(*_, **__):\n    try: os.kill(os.getpid(), 15)\n    finally: print('done')\n"
        "Client.get = get; sys.argv[1:] = ['ps']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "done\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(stoker: Stoker, shell: str) -> None:
    code, out, err = stoker("completion", shell)
    assert (code, err) == (0, "")
    assert "_STOKER_COMPLETE" in out


def complete(line: str, home: Path) -> list[str]:
    """What bash would offer at the end of ``line``."""
    words = line.split(" ")
    environment = {"_STOKER_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "STOKER_HOME": str(home)}
    done = subprocess.run([sys.executable, "-m", "stoker"], capture_output=True, text=True, check=False, env=environment)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_completion_of_commands_and_silence_without_a_daemon(tmp_path: Path) -> None:
    assert complete("stoker su", tmp_path) == ["submit"]
    assert complete("stoker policy s", tmp_path) == ["set", "show"]
    assert complete("stoker show ", tmp_path) == []


def test_service_unit(stoker: Stoker, tmp_path: Path) -> None:
    code, out, _ = stoker("service", "--slots", "3")
    assert code == 0
    assert f'"--home" "{tmp_path}" "up" "--slots" "3"' in out
    assert "KillMode=process" in out
    assert "OOMPolicy=continue" in out, "one job without memory must not end the others' runner"
    assert "TasksMax=infinity" in out


def test_doctor_without_a_daemon(stoker: Stoker) -> None:
    code, out, err = stoker("doctor", "--json")
    findings = {finding["check"]: finding for finding in json.loads(out)}
    assert err == ""
    assert {"python", "packages", "torch", "cuda", "nvml", "home", "disk", "cache", "recipes", "daemon"} <= set(findings)
    assert findings["python"]["status"] == "ok" and findings["torch"]["status"] == "ok"
    assert findings["daemon"]["status"] == "warn" and "up --detach" in findings["daemon"]["remedy"]
    assert code == int(any(finding["status"] == "fail" for finding in findings.values()))
    assert all(finding["remedy"] for finding in findings.values() if finding["status"] == "fail")


def test_doctor_finds_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.engine.cli.command import App
    from stoker.engine.cli.running import checks
    from stoker.engine.home import Home

    home = tmp_path / "h"
    home.mkdir(mode=0o755)
    assert [finding.status for finding in checks.home(App(Home(home))) if finding.check == "home"] == ["warn"]
    long = App(Home(tmp_path / ("x" * 120)))
    (finding,) = checks.daemon(long)
    assert finding.check == "socket" and finding.status == "fail"
    monkeypatch.setattr(checks.importlib.metadata, "requires", lambda _: ["no-such-package>=1", "click>=999", 'torch>=1; extra == "dev"'])
    assert [(finding.check, finding.status) for finding in checks.packages()][:2] == [("no-such-package", "fail"), ("click", "fail")]


def test_a_runner_that_was_forgotten_is_nothing_to_mend() -> None:
    """`doctor` told for ever to forget it once more."""
    from stoker.engine.cli.running import checks

    runners = [{"id": "a", "state": "gone"}, {"id": "b", "state": "suspect"}]
    (finding,) = checks.trouble({"tasks": [], "pools": [], "runners": runners})
    assert finding.found == "b is suspect" and finding.remedy.endswith("stoker runner forget b")


def test_a_home_with_a_line_break_is_refused_at_once(stoker: Stoker) -> None:
    for command in (["status"], ["up", "--detach"]):
        code, out, err = stoker("--home", "/tmp/a\nb", *command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "a home cannot have a line break in its name" in err


@pytest.mark.slow
def test_what_was_acknowledged_is_done_though_it_cannot_be_told(home, start_daemon) -> None:
    start_daemon()
    stoker = f"{sys.executable} -m stoker --home {home.path}"
    for line, rc, said in [
        ("submit --name a --hold -- true >&-", 0, "stoker: submitted job 1; that could not be written to the output: Bad file descriptor"),
        (
            "submit --name b --hold --json -- true >/dev/full",
            0,
            "stoker: submitted job 2; that could not be written to the output: No space",
        ),
        ("cancel a >&-", 0, "stoker: cancel: done; that could not be written"),
        ("cancel a nobody >&-", 3, "there is no job 'nobody'"),
        (f"backup {home.path}/copy.duckdb >&-", 0, f"the copy is written: {home.path}/copy.duckdb; that could not be written"),
        ("compact >/dev/full", 0, "stoker: the database is compacted: "),
        ("token create --role read a >&-", 1, "cannot write the output"),  # its secret is lost
        ("token revoke 1 --json >&-", 0, "stoker: token 1 is revoked; that could not be written"),
        ("trace synth --name small --jobs 3 --nodes 1x2 --load 0.5 >&-", 0, "stoker: workload small is stored; that could not"),
        (f"trace synth --name other --jobs 3 --nodes 1x2 --load 0.5 --to {home.path}/t.csv >&-", 0, "stoker: workload other is written to"),
        (f"trace import {home.path}/t.csv --name file >/dev/full", 0, "stoker: trace file is stored; that could not"),
        ("trace drop small >&-", 0, "stoker: dropped: small; that could not"),
        ("trace drop nothing >&-", 3, "nothing"),
        ("ps >&-", 1, "stoker: error: cannot write the output: Bad file descriptor"),
        ("down >&-", 0, "stoker: the daemon has stopped; that could not be written"),
    ]:
        done = subprocess.run(f"{stoker} {line}", shell=True, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stderr) == (rc, True), (line, done)
