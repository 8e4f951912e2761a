"""What is said of a job that is taken all the same: placeholders that nobody fills, modules that are not there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from stoker.engine.cli.main import run
from stoker.engine.spec.build import Context
from stoker.engine.spec.hints import missing
from stoker.engine.spec.reading.load import load_text
from stoker.runners.recipes import RECIPES

ARRAY = "array: {params: {lr: [0.1, 0.2], seed: [1]}}\n"


def told(text: str, cwd: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    said: list[str] = []
    load_text(text, "f.yaml", Context(now=1.9e9, cwd=cwd, recipes=RECIPES, environment=environment, hint=said.append))
    return [line.replace(str(cwd), "HERE") for line in said]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ARRAY + "command: ./x --lr {lrr}", ["f.yaml:2: command: {lrr} stays as it is: no parameter has that name (did you mean 'lr'?)"]),
        (ARRAY + "command: [x, '{LR}', '{LR}']\nenv: {A: '{sed}'}", [
            "f.yaml:2: command: {LR} stays as it is: no parameter has that name (did you mean 'lr'?)",
            "f.yaml:3: env.A: {sed} stays as it is: no parameter has that name (did you mean 'seed'?)",
        ]),
        (ARRAY + "command: |\n  echo {lr} ${lrr} {other} '{\"a\": 1}' {1..3} {}", []),
        ("params: {lr: 1}\ncommand: echo {lr}", [
            "f.yaml:2: command: {lr} stays as it is: only an array's parameters are filled in; this one is in $STOKER_PARAM_LR"
        ]),
        ("command: echo {lr}", []),
    ],
)  # fmt: skip
def test_a_placeholder_that_nobody_fills(text: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    (tmp_path / "x").chmod(0o755)
    assert told(text, tmp_path) == expected


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Modules none of which may be imported."""
    for path in ("train.py", "pack/__init__.py", "pack/inner.py", "spaces/deep/last.py", "clever/__init__.py", "lib/far.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("raise SystemExit('imported')\n")
    (tmp_path / "clever" / "__init__.py").write_text("__path__.append('/elsewhere')\nraise SystemExit('imported')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("train", None), ("pack", None), ("pack.inner", None), ("spaces.deep.last", None), ("clever.unknown", None), ("json", None),
        ("xml.etree.ElementTree", None), ("sys", None), ("trian", "trian"), ("pack.outer", "pack.outer"), ("spaces.dep.last", "spaces.dep"),
        ("train.part", "train.part"), ("xml.etree.Tree", "xml.etree.Tree"), ("far", "far"), ("__main__", None),
    ],
)  # fmt: skip
def test_modules_are_found_without_importing_them(project: Path, module: str, absent: str | None) -> None:
    before = set(sys.modules)
    assert missing(module, [str(project)]) == absent
    assert not {name for name in set(sys.modules) - before if name.startswith(("train", "pack", "spaces", "clever"))}


@pytest.mark.parametrize(
    ("fields", "environment", "said"),
    [
        ("entrypoint: trian:build", {}, "there is no module 'trian' in HERE or among the packages of this Python (did you mean 'train'?)"),
        ("entrypoint: pack.iner:build", {}, "there is no module 'pack.iner' in HERE or among the packages of this Python"),
        ("entrypoint: train:build", {}, None),
        ("entrypoint: trian:build", None, None),  # nobody knows where it will run
        ("entrypoint: trian:build\nenv_file: train.py", {}, None),  # which may set PYTHONPATH
        ("entrypoint: far:build", {"PYTHONPATH": "/nowhere:lib"}, None),
        ("entrypoint: far:build\nenv: {PYTHONPATH: lib}", {"PYTHONPATH": "/nowhere"}, None),
        ("entrypoint: far:build\nworkdir: lib", {}, None),
        ("entrypoint: train:build\nworkdir: lib", {}, "there is no module 'train' in HERE/lib or among the packages of this Python"),
    ],
)
def test_an_entrypoint_whose_module_is_not_there(project: Path, fields: str, environment: Any, said: str | None) -> None:
    expected = [] if said is None else [f"f.yaml:1: entrypoint: {said}; on the runner's host it may be there"]
    assert told(fields, project, environment) == expected


def test_a_recipe_whose_package_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told("recipe: text-classifier", tmp_path, {}) == []
    hidden = [path for path in sys.path if "site-packages" not in path]
    monkeypatch.setattr(sys, "path", hidden)
    for name in ("tokenizers", "PIL", "transformers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("safetensors", "transformers"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.setattr(sys, "path", [*hidden, str(tmp_path)])
    said = "which this Python lacks: pip install '.[recipes]' in Stoker's source tree; on the runner's host it may be there"
    assert told("recipe: text-classifier", tmp_path, {}) == [f"f.yaml:1: recipe: needs tokenizers, {said}"]
    assert told("recipe: jpeg-cnn", tmp_path, {}) == [f"f.yaml:1: recipe: needs PIL, {said}"]
    assert told("recipe: toy", tmp_path, {}) == told("recipe: jpeg-cnn", tmp_path) == []


def test_the_command_line_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    submit = ["--home", str(tmp_path / "home"), "submit", "--name", "a"]
    assert run([*submit, "--entrypoint", "trian:build"]) == 6
    assert "stoker: --entrypoint: there is no module 'trian' in " in capsys.readouterr().err
    assert run([*submit, "--array", "lr=1,2", "--", "echo", "{lrr}"]) == 6
    assert "stoker: command: {lrr} stays as it is: no parameter has that name (did you mean 'lr'?)\n" in capsys.readouterr().err
    assert run([*submit, "--url", "http://127.0.0.1:1", "--entrypoint", "trian:build"]) == 6
    assert "trian" not in capsys.readouterr().err
    (tmp_path / "a.yaml").write_text("command: x\ngpus: 0\npriority: high\n")
    (tmp_path / "b.yaml").write_text("comand: x\n")
    assert run(["--home", str(tmp_path / "home"), "submit", "a.yaml", "b.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[2:4] for line in lines] == [["a.yaml:2", "gpus"], ["a.yaml:3", "priority"], ["b.yaml:1", "comand"]]
