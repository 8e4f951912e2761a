"""`stoker prompt` on a real daemon, with a real runner where one is there. The LLM alone is a double (`double_llm`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from e2e import DaemonProcess, RunnerProcess, daemon_apart, until
from stoker.engine.cli.main import run
from stoker.engine.cli.prompts import prompt_bank, prompt_work
from stoker.engine.errors import Conflict
from stoker.engine.home import Home
from stoker.engine.prompts import prompt_lines
from stoker.runners import recipes

pytestmark = pytest.mark.xdist_group("prompt-commands")

Stoker = Callable[..., tuple[int, str, str]]
TOPICS = {
    "spam": "Is this message spam or not? {}",
    "news": "Which section of the newspaper printed number {}?",
    "film": "Did they like film {}?",
}
KNOWN = ("double", "none", "smollm2-135m")  #: to the command; the double itself knows the first one alone
PACKAGED = Path(__file__).parents[2] / "examples" / "packaged_prompts.py"
DOUBLE = [sys.executable, str(Path(__file__).with_name("double_llm.py"))]


@pytest.fixture(scope="module")
def daemon(template: Path) -> Iterator[DaemonProcess]:
    with daemon_apart(template) as found:
        yield found


@pytest.fixture
def stoker(daemon: DaemonProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Stoker:
    monkeypatch.setattr(prompt_work, "WORKER", DOUBLE)
    monkeypatch.setattr(recipes, "LLMS", KNOWN)

    def call(*arguments: str, home: Path = daemon.home.path) -> tuple[int, str, str]:
        code = run(["--home", str(home), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "texts.jsonl"
    lines = [{"text": text.format("x" * number), "task": task} for number in range(1, 16) for task, text in TOPICS.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def built(stoker: Stoker, texts: Path) -> Stoker:
    code, _, err = stoker("prompt", "bank", "build", "--llm", "double", "--from", str(texts), "--clusters", "3")
    assert code == 0, err
    return stoker


def test_a_build_that_is_cut_off_goes_on(stoker: Stoker, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOUBLE_ENDS_AFTER", "2")
    code, out, err = stoker("prompt", "bank", "build", "--llm", "double", "--from", str(texts), "--clusters", "3")
    assert (code, out) == (3, "") and err.splitlines()[-1] == "stoker: error: the double was told to end here"
    _, out, _ = stoker("prompt", "bank", "stats", "--json")
    assert [(row["prompts"], row["clusters"]) for row in json.loads(out)] == [(16, 0)]
    monkeypatch.delenv("DOUBLE_ENDS_AFTER")
    code, out, err = stoker("prompt", "bank", "build", "--llm", "double", "--from", str(texts), "--clusters", "3", "--json")
    assert code == 0 and "16 of 45 prompts are in the bank already" in err
    value = json.loads(out)
    assert (value["added"], value["prompts"], value["clusters"]) == (29, 45, 3)
    _, out, _ = stoker("sql", "SELECT count(*), count(DISTINCT medoid), count(DISTINCT len(features)) FROM prompts", "-o", "csv")
    assert out.splitlines()[1] == "45,3,1"


def test_a_lookup_scores_two_layers(built: Stoker) -> None:
    code, out, err = built("prompt", "lookup", "--llm", "double", "--data", "sms-spam", "--text", "spam spam spam spam", "--json")
    assert code == 0, err
    value = json.loads(out)
    assert value["candidates"][0]["text"] == "spam spam spam spam" and value["candidates"][0]["layer"] == 0
    assert value["bank"] == {"llm": "double", "revision": "r1", "tokenizer": "letters"} and value["prompts"] == 45
    assert value["scored"] == len(value["candidates"]) < 45
    scores = [row["score"] for row in value["candidates"]]
    assert scores == sorted(scores) and {row["layer"] for row in value["candidates"]} == {0, 1, 2}
    _, out, _ = built("prompt", "lookup", "--llm", "double", "--data", "sms-spam", "-n", "3")
    assert out.splitlines()[0].split() == ["PLACE", "SCORE", "WHAT", "ID", "TEXT"] and "scored" in out


def test_a_lookup_needs_no_daemon_but_its_bank(built: Stoker, daemon: DaemonProcess) -> None:
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        code, out, err = built("prompt", "lookup", "--llm", "double", "--data", "sms-spam", home=Path(folder))
        assert (code, out) == (
            3,
            "",
        ) and "there is no bank of double yet: 'stoker prompt bank build --llm double --from FILE.jsonl' makes one" in err
        shutil.copytree(daemon.home.prompts, Home(Path(folder)).prompts, dirs_exist_ok=True)
        code, out, err = built("prompt", "lookup", "--llm", "double", "--data", "sms-spam", "--json", home=Path(folder))
        assert code == 0 and json.loads(out)["prompts"] == 45
        assert not list(Home(Path(folder)).prompts.glob("work/*"))


def test_a_bank_of_another_revision_is_not_used(built: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOUBLE_REVISION", "r2")
    code, _, err = built("prompt", "lookup", "--llm", "double", "--data", "sms-spam")
    assert code == 4 and "the bank is of double@r1 (letters), and the LLM here is double@r2 (letters)" in err
    code, out, _ = built("prompt", "bank", "add", "--llm", "double", "--text", "Of the second revision")
    assert code == 0 and out == "double@r2 (letters): 1 prompt added\n"
    _, out, _ = built("prompt", "bank", "stats", "--json")
    assert {row["revision"]: row["prompts"] for row in json.loads(out)} == {"r1": 45, "r2": 1}


def test_prompts_are_added_found_and_shown(built: Stoker) -> None:
    code, out, err = built("prompt", "bank", "add", "--llm", "double", "--text", "Is this mail spam?", "--task", "mails")
    assert code == 0 and out.endswith(": 1 prompt added\n"), err
    _, out, _ = built("prompt", "bank", "add", "--llm", "double", "--text", "Is this mail spam?")
    assert out.endswith(": 0 prompts added, 1 known before\n")
    _, out, _ = built("prompt", "bank", "search", "MAIL", "spam", "--json")
    (row,) = json.loads(out)
    assert (row["text"], row["task"], row["source"]) == ("Is this mail spam?", "mails", "command line")
    _, out, _ = built("prompt", "bank", "search", "mails", "this", "--json")
    assert json.loads(out) == [row], "by a word of its task and one of its text"
    _, out, _ = built("prompt", "bank", "show", str(row["id"]), "--json")
    shown = json.loads(out)
    assert "spam" in shown["prompt"]["representative"] and all("spam" in near["text"] for near in shown["nearest"])
    _, out, _ = built("prompt", "bank", "search", "--near", str(row["id"]), "-n", "2", "--json")
    assert [near["distance"] for near in json.loads(out)] == sorted(near["distance"] for near in json.loads(out))
    _, out, _ = built("prompt", "bank", "show", str(row["id"]))
    assert "Is this mail spam?" in out and "from the representative" in out


FULL = [
    ("no memory", "the host has no memory left for the LLM; end something there, then start the command again"),
    ("no room for a file", "the host has no memory left for the LLM; end something there, then start the command again"),
    ("killed", "the process was killed, as where the host has no memory left; start the command again"),
]


@pytest.mark.parametrize(("fault", "words"), FULL)
def test_a_full_host_memory_gets_one_line_and_loses_nothing(built: Stoker, monkeypatch: pytest.MonkeyPatch, fault: str, words: str) -> None:
    before, new = _count(built), f"Which prompt came to a host with {fault}?"
    monkeypatch.setenv("DOUBLE_FAULT", fault)
    code, out, err = built("prompt", "bank", "add", "--llm", "double", "--text", new)
    assert (code, out, err) == (1, "", f"stoker: error: {words}\n") and _count(built) == before
    monkeypatch.delenv("DOUBLE_FAULT")
    code, out, err = built("prompt", "bank", "add", "--llm", "double", "--text", new)
    assert code == 0 and _count(built) == before + 1, err


def test_a_build_that_is_killed_leaves_no_process_and_goes_on(built: Stoker, daemon: DaemonProcess, tmp_path: Path) -> None:
    lines = [{"text": f"What is asked in text {'y' * number}?"} for number in range(1, 60)]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["--home", str(daemon.home.path), "prompt", "bank", "build", "--llm", "double", "--from", str(tmp_path / "more.jsonl")]
    imports = "from stoker.engine.cli import main; from stoker.engine.cli.prompts import prompt_work; from stoker.runners import recipes"
    script = f"{imports}; prompt_work.WORKER = {DOUBLE!r}; recipes.LLMS = {KNOWN!r}; main.run({words!r})"
    before = _count(built)
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "DOUBLE_WAITS_AFTER": "2"}, stderr=subprocess.DEVNULL)
    until(lambda: _count(built) > before)
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert before < _count(built) < before + 59
    code, _, err = built("prompt", "bank", "build", "--llm", "double", "--from", str(tmp_path / "more.jsonl"))
    assert code == 0 and _count(built) == before + 59, err


def _count(stoker: Stoker) -> int:
    return sum(row["prompts"] for row in json.loads(stoker("prompt", "bank", "stats", "--llm", "double", "--json")[1]))


BAD = [
    (["build", "--from", "nowhere.jsonl"], 3, "nowhere.jsonl: no such file"),
    (["add"], 2, "nothing to add: give --text, --from or --job"),
    (["add", "--text", " "], 2, "--text: must have 1 to 2000 characters, not 0"),
    (["build", "--llm", "../x"], 2, "/x does not exist; give a directory with config.json"),
    (["add", "--llm", "duble", "--text", "x"], 3, "there is no LLM 'duble' (did you mean 'double'?)"),
    (["show", "99999"], 3, "no prompt has the number 99999"),
    (["search", "--near", "99999"], 3, "no prompt has the number 99999"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD, ids=lambda value: str(value)[:30])
def test_bad_input_gets_one_line(stoker: Stoker, arguments: list[str], code: int, words: str) -> None:
    found, out, err = stoker("prompt", "bank", *arguments)
    assert (found, out, err.count("\n")) == (code, "", 1) and words in err


SAMPLES = [
    ("nowhere.csv", None, "--data: {} cannot be read: No such file or directory"),
    ("sms-span", None, "--data: there is no set 'sms-span' (did you mean 'sms-spam'?)"),
    ("mails.tsv", "text\tlabel\n", "or give FILE.csv, FILE.jsonl or FILE.parquet"),
    ("mails.csv", "text,kind\nwin,spam\n", "--data: mails.csv has no column 'label'; its first line names text, kind"),
    ("mails.jsonl", '{"text": "win", "label": "spam"}\nwin\n', "--data: mails.jsonl, line 2 is not JSON"),
    (
        "mails.jsonl",
        "".join(f'{{"text": "win {n}", "label": "spam"}}\n' for n in range(9)),
        "all samples of mails.jsonl have the label 'spam'",
    ),
]


@pytest.mark.parametrize(("name", "content", "words"), SAMPLES, ids=lambda value: str(value)[:30])
def test_samples_that_cannot_be_used_are_told_before_any_work(
    built: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prompt_work, "WORKER", ["/nowhere"])
    code, out, err = built("prompt", "lookup", "--llm", "double", "--data", name)
    assert (code, out, err.count("\n")) == (2, "", 1) and words.format(tmp_path / name) in err
    code, out, err = built("prompt", "tune", "--param", f"data={name}", "--iterations", "2")
    assert (code, out, err.count("\n")) == (2, "", 1) and words.format(tmp_path / name).replace("--data", "params.data") in err


def test_libraries_that_an_llm_needs_are_told_before_any_work(built: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_work, "WORKER", ["/nowhere"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words in (["bank", "build"], ["bank", "add", "--text", "Which?"], ["lookup", "--data", "bbc"]):
        code, out, err = built("prompt", *words, "--llm", "double")
        assert (code, out) == (1, "") and "double needs safetensors and tokenizers" in err and "pip install '.[llm]'" in err


def test_a_tuning_takes_the_options_of_a_submission(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "tune.yaml").write_text("recipe: prompt-tune\nparams: {data: bbc}\n")
    words = ["prompt", "tune", str(tmp_path / "tune.yaml"), "--name", "mine", "--param", "lr=0.01", "--deadline", "2h", "--iterations", "2"]
    code, out, err = stoker(*words, "--dry-run", "--json")
    (job,) = json.loads(out)["jobs"]
    assert code == 0 and job["name"] == "mine" and job["forecast"] is not None, err
    for more in (["--param", "lr=much"], ["--recipe", "toy"], ["--cron", "@daily"], ["--array", "lr=0.1,0.2"], ["--param", "init=bank"]):
        code, out, err = stoker(*words, *more, "--dry-run")
        assert (code, out) == (3 if "init=bank" in more else 2, ""), err


def test_a_lookup_is_for_the_host_of_the_daemon(stoker: Stoker) -> None:
    code, out, err = stoker("prompt", "lookup", "--llm", "double", "--data", "sms-spam", "--url", "http://127.0.0.1:1")
    assert (code, out, err.count("\n")) == (2, "", 1) and "on the daemon's host: run it there" in err


LINES = [
    ("no json", "texts.jsonl:1: is not JSON"),
    ('{"prompt": "x"}', "texts.jsonl:1: text: must be there"),
    ('{"text": "fine"}\n{"text": ""}', "texts.jsonl:2: text: must have 1 to 2000 characters"),
    ('{"text": "fine", "task": 3}', "texts.jsonl:1: task: must be a text"),
    ('{"text": "fine"}\n{"text": "half \\ud800"}', "texts.jsonl:2: text: has half a character (\\ud800 to \\udfff, a lone surrogate)"),
    ('\ufeff{"text": "fine\u2028and more"}\n{"text": "fine", "task": "\\udfff"}', "texts.jsonl:2: task: has half a character"),
    ('{"text": "fine", "source": ["x"]}', "texts.jsonl:1: source: must be a text of at most 500"),
    ("[" * 100_000, "texts.jsonl:1: is not JSON"),
    ("\n", "holds no prompts"),
    (b"\xff\xfe", "is not UTF-8 text"),
]


@pytest.mark.parametrize(("content", "words"), LINES, ids=str)
def test_bad_files_name_the_line(stoker: Stoker, tmp_path: Path, content: str | bytes, words: str) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = stoker("prompt", "bank", "build", "--llm", "double", "--from", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err


def packages(folder: Path) -> None:
    """Packages of the shape of the real ones."""
    templates = folder / "promptsource" / "templates" / "sms_spam"
    templates.mkdir(parents=True)
    (templates / "templates.yaml").write_text(
        "templates:\n  a1: !Template\n"
        '    jinja: \'Is the label of this message {{"ham"}} or {{"spam"}}? {{sms}} ||| {{ choices[label] }}\'\n'
        "    metadata: !TemplateMetadata\n      choices_in_prompt: true\n  a2: !Template\n    jinja: '{{sms}} ||| x'\n"
    )
    (folder / "promptsource" / "__init__.py").write_text("raise RuntimeError('code of a package ran')")
    tasks = folder / "lm_eval" / "tasks" / "boolq"
    tasks.mkdir(parents=True)
    (tasks / "boolq.yaml").write_text('doc_to_text: "{{passage}} Question: is it true?"\ndescription: !function utils.f\n')
    (tasks / "broken.yaml").write_text("description: [")
    (folder / "lm_eval" / "__init__.py").write_text("")


def test_a_script_writes_the_prompts_of_packages_without_running_them(stoker: Stoker, tmp_path: Path) -> None:
    packages(tmp_path / "packages")
    written = subprocess.run(
        [sys.executable, PACKAGED], env=os.environ | {"PYTHONPATH": str(tmp_path / "packages")}, check=True, capture_output=True, text=True
    )
    assert "promptsource: 1 prompts" in written.stderr and "pip install --no-deps evals==" in written.stderr
    (tmp_path / "prompts.jsonl").write_text(written.stdout)
    assert [tuple(one) for one in prompt_lines.from_file(tmp_path / "prompts.jsonl")] == [
        ("Is the label of this message ham or spam?", "promptsource", "sms_spam"),
        ("Question: is it true?", "lm-eval", "boolq"),
    ]
    code, _, err = stoker("prompt", "bank", "build", "--llm", "double", "--from", str(tmp_path / "prompts.jsonl"))
    assert code == 0, err


def test_a_build_without_a_file_makes_clusters_of_what_is_there(stoker: Stoker, template: Path, texts: Path) -> None:
    words = ["prompt", "bank", "build", "--llm", "double"]
    with daemon_apart(template) as own:
        code, out, err = stoker(*words, home=own.home.path)
        assert (code, out, err.count("\n")) == (3, "", 1) and "give prompts with --from FILE.jsonl" in err
        assert stoker(*words, "--from", str(texts), "--clusters", "5", home=own.home.path)[0] == 0
        code, out, err = stoker(*words, "--clusters", "3", "--json", home=own.home.path)
        told = json.loads(out)
        assert (code, told["added"], told["prompts"], told["clusters"]) == (0, 0, 45, 3), err


def test_a_limit_takes_of_each_task_in_turn() -> None:
    given = [prompt_lines.PromptText(f"{task} {number}", "s", task) for task in "ab" for number in range(3)]
    assert [prompt.text for prompt in prompt_lines.spread(given, 3)] == ["a 0", "b 0", "a 1"]


@pytest.mark.slow
def test_on_a_runner_it_is_a_job_unless_told_otherwise(built: Stoker, daemon: DaemonProcess) -> None:
    runner = RunnerProcess(daemon.home, "bank-host", 1)
    try:
        runner.start()
        code, out, err = built("prompt", "lookup", "--llm", "double", "--data", "sms-spam", "--json")
        assert code == 0 and "computes it on a runner" in err and json.loads(out)["prompts"] >= 45
        code, out, err = built("prompt", "bank", "add", "--llm", "none", "--text", "Which?")
        assert (code, out) == (3, "") and "there is no LLM 'none'; there is double (job " in err.splitlines()[-1]
        code, out, err = built("prompt", "lookup", "--llm", "double", "--data", "sms-spam", "--here")
        assert code == 0 and "job" not in err
        _, out, _ = built("ps", "--all", "--json")
        assert {(row["name"], row["state"]) for row in json.loads(out)} == {
            ("prompt-bank-double", "completed"),
            ("prompt-bank-none", "failed"),
        }
    finally:
        runner.end()


def test_a_bank_that_fills_up_while_it_is_built_gets_clusters_then(
    stoker: Stoker, template: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have added prompts, so that those of a whole build are too many: the daemon refuses them once."""
    real, refused = prompt_bank.put, list[int]()

    def full(app: Any, bank: Any, prompts: Any, told: Any) -> None:
        if not refused:
            refused.append(len(prompts))
            raise Conflict("the bank has 2993 prompts and no clusters yet, and may have 3000")
        real(app, bank, prompts, told)

    monkeypatch.setattr(prompt_bank, "put", full)
    (tmp_path / "more.jsonl").write_text("".join(json.dumps({"text": f"Which question has number {n}?"}) + "\n" for n in range(20)))
    with daemon_apart(template) as own:

        def built(*arguments: str) -> tuple[int, str, str]:
            return stoker(*arguments, home=own.home.path)

        refused.append(0)
        code, _, err = built("prompt", "bank", "build", "--llm", "double", "--from", str(texts))
        assert code == 0, err
        before = _count(built)
        refused.clear()
        code, _, err = built("prompt", "bank", "add", "--llm", "double", "--from", str(tmp_path / "more.jsonl"))
        assert code == 4 and "no clusters yet" in err and _count(built) == before, "who adds is told to build"
        refused.clear()
        code, out, err = built("prompt", "bank", "build", "--llm", "double", "--from", str(tmp_path / "more.jsonl"), "--json")
        assert code == 0 and refused and json.loads(out)["added"] == 20 and _count(built) == before + 20, err
