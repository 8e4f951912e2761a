"""The README and the pages of docs/ say what the code does: commands, options, states, reasons, configuration, links, examples."""

from __future__ import annotations

import ast
import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
import yaml
from stoker.engine.cli.main import EXIT_CODES, cli
from stoker.engine.cli.running import demo
from stoker.engine.config import HOOK_EVENTS, Config, Hook
from stoker.engine.jobs.states import TRANSITIONS
from stoker.engine.scheduling import policy_errors
from stoker.engine.spec.build import Context
from stoker.engine.spec.reading.load import load_text
from stoker.engine.store.sqlfiles import sql
from stoker.policies import registry
from stoker.runners.recipes import RECIPES

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "client" / "SKILL.md", *sorted((ROOT / "docs").glob("*.md"))]
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text()

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?<!from )\bstoker (?:--(?:home|url) \S+ )*([a-z][a-z-]*)((?: [a-z][a-z-]*)?)")


def fences(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text()) if language in languages]


def code(page: Path) -> str:
    """All code of a page: blocks and spans."""
    text = page.read_text()
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return "\n".join([body for _, body in FENCE.findall(text)] + spans)


def table(heading: str, first: str) -> list[list[str]]:
    """Rows of the table of concepts.md under a heading whose first column is headed ``first``."""
    section = CONCEPTS.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = iter(section.splitlines())
    if not any(line.startswith(f"| {first} |") for line in lines):
        raise AssertionError(f"{heading}: no table begins with {first}")
    next(lines)  # the rule below the header
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# -- pages ---------------------------------------------------------------------------------------------------------------


def test_readme_begins_with_the_two_commands() -> None:
    first = FENCE.search(README.read_text())
    assert first is not None
    assert re.findall(r"^make (\w+)", first[2], re.MULTILINE) == ["demo", "test"]
    assert README.read_text()[: first.start()].count("\n\n") <= 2  # the title and a sentence
    assert len(README.read_text().splitlines()) < 200


def test_make_has_the_targets_that_pages_name() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"\bmake ([a-z]+)", code(page))}
    assert {"demo", "test"} <= named <= targets


def test_files_that_are_named_are_there() -> None:
    places = "engine|policies|runners|sql|migrations|benchmarks|tests|examples"
    names = re.compile(rf"`((?:{places})/[\w./-]+\.(?:py|sql|md|yaml|toml))`")
    assert [(page.name, path) for page in PAGES for path in names.findall(page.read_text()) if not (ROOT / path).is_file()] == []


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path) if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_relative_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(FENCE.sub("", page.read_text()))]
    relative = [(page, link) for page, link in links if "://" not in link and not link.startswith("mailto:")]
    assert [(page.name, link) for page, link in relative if not leads_somewhere(page, link)] == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    assert {page.resolve() for page in PAGES} - {index.resolve()} <= listed


def index_table(heading: str) -> str:
    return (ROOT / "docs" / "README.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_room_of_the_source_has_a_row() -> None:
    """A room within a room is named in the row of the outer one, or has its own."""
    rows = [words(row) for row in re.findall(r"^\|(.*)\|$", index_table("The source"), re.MULTILINE)]
    for init in (path for part in ("policies", "engine", "runners") for path in (ROOT / part).rglob("__init__.py")):
        part, *rooms = init.parent.relative_to(ROOT).parts
        wanted = {f"{part}/{room}/" for room in rooms[:1]} | {f"{room}/" for room in rooms[1:2]}
        assert any(wanted <= set(row) for row in rows), init.parent


CITES = re.compile(r"\b002,? \(?ch\. [46]\b|\b004,? ch\. 3\b|\b002 algorithm")


def test_files_that_name_a_chapter_stand_in_from_paper_to_file() -> None:
    """Of the chapters whose systems are spread over many files: what a module's first words cite, the table leads to."""
    table = index_table("From paper to file")
    for part in ("policies", "engine", "runners"):
        for path in (ROOT / part).rglob("*.py"):
            first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
            assert not CITES.search(first) or path.name in table or f"`{path.relative_to(ROOT)}`" in table, path
    paths = [path for row in table.splitlines() for path in re.findall(r"`((?:engine|policies|runners|benchmarks)/[\w/]+\.py)`", row)]
    assert len(paths) > 40 and all((ROOT / path).is_file() for path in paths)
    for row in table.splitlines():
        room = ""
        for name in re.findall(r"`([\w/]+\.py)`", row):  # a name without its room is of the room before it
            room = name.rpartition("/")[0] or room
            assert (ROOT / room / name.rpartition("/")[2]).is_file(), name


def test_no_page_has_paths_of_the_machine_it_was_written_on() -> None:
    places = [path for path in (ROOT, Path.home()) if len(path.parts) > 1]
    assert [(page.name, path) for page in PAGES for path in places if f"{path}/" in page.read_text()] == []


# -- commands ------------------------------------------------------------------------------------------------------------


def command_of(name: str) -> click.Command | None:
    return cli.get_command(click.Context(cli, info_name="stoker"), name)


def is_there(name: str, rest: str) -> bool:
    """Whether there is such a command, and such a one in it where it is a group."""
    command = command_of(name)
    if isinstance(command, click.Group) and rest:
        return rest.strip() in command.list_commands(click.Context(command))
    return command is not None


def test_commands_exist() -> None:
    named = [(page.name, *found) for page in PAGES for found in COMMAND.findall(code(page))]
    assert len(named) > 100
    assert [(page, f"stoker {name}{rest}") for page, name, rest in named if not is_there(name, rest)] == []


def command_lines(page: Path) -> Iterator[list[str]]:
    """Arguments of every line of a block that runs stoker."""
    for block in fences(page, "console", "sh", ""):
        for line in block.splitlines():
            found = re.match(r"(?:\$ )?(?:\S+/)?stoker ([a-z].*)", line)
            if found and "=VALUE" not in line and "[" not in line:
                yield shlex.split(found[1], comments=True)


def unknown(line: list[str]) -> set[str]:
    """Commands and options of a line that are not there."""
    command = command_of(line[0].rstrip(","))
    for word in line[1:]:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word)
    if command is None:
        return set(line[:2])
    if command.context_settings.get("ignore_unknown_options"):
        return set()  # it hands them on
    known = {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts} | {"--help"}
    own = line[: line.index("--")] if "--" in line else line
    return {word.partition("=")[0] for word in own if word.startswith("--")} - known


def test_options_exist() -> None:
    lines = [(page.name, line) for page in PAGES for line in command_lines(page)]
    assert len(lines) > 100
    assert [(page, line, wrong) for page, line in lines if (wrong := unknown(line))] == []


def test_exit_codes_are_listed() -> None:
    section = CONCEPTS.split("\n## Exit codes\n")[1].split("\n## ")[0].split("Of the daemon")[0]
    assert {int(number) for number in re.findall(r"\b(\d+) [a-z]", section)} == {number for number in EXIT_CODES if number < 100}


# -- examples ------------------------------------------------------------------------------------------------------------


def specs() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, block in enumerate(fences(page, "yaml"), 1):
            first = next(iter(yaml.safe_load_all(block)), None)
            if isinstance(first, dict) and first.keys() & {"recipe", "command", "entrypoint", "jobs"}:
                yield f"{page.name}-{number}", block


@pytest.mark.parametrize(("name", "block"), list(specs()), ids=lambda value: value if "\n" not in value else "")
def test_job_specs_are_accepted(name: str, block: str) -> None:
    assert load_text(block, f"{name}.yaml", Context(now=time.time(), cwd=ROOT / "examples", recipes=RECIPES))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_example_files_are_accepted(path: Path) -> None:
    assert load_text(path.read_text(), path.name, Context(now=time.time(), cwd=path.parent, recipes=RECIPES))


@pytest.mark.parametrize("name", ["demo.yaml", "demo_urgent.yaml"])
def test_the_demo_submits_its_jobs_from_where_their_scripts_are(name: str) -> None:
    jobs = load_text((demo.HERE / name).read_text(), name, Context(now=time.time(), cwd=demo.SCRIPTS, recipes=RECIPES))
    scripts = [Path(job.workdir or "", word) for job in jobs for word in job.command or () if word.endswith(".py")]
    assert all(path.is_file() for path in scripts) and bool(scripts) == (name == "demo.yaml")


def test_the_tour_submits_the_example_that_it_shows() -> None:
    (shown,) = [yaml.safe_load(block) for block in fences(README, "yaml")]
    assert shown == yaml.safe_load((ROOT / "examples" / "recipe.yaml").read_text())
    for path in re.findall(r"\bexamples/[\w.]+", README.read_text()):
        assert (ROOT / path).is_file()


# -- concepts ------------------------------------------------------------------------------------------------------------


def test_transitions_are_those_of_the_code() -> None:
    listed = {words(row[0])[0]: set(words(row[1])) for row in table("Jobs and states", "from")}
    assert listed == {str(state): set(map(str, following)) for state, following in TRANSITIONS.items()}


def test_every_reason_for_waiting_is_explained() -> None:
    ours = [code for file in (ROOT / "policies").rglob("*.py") for code in re.findall(r'Reason\("([a-z-]+)"', file.read_text())]
    query = sql("policy/ineligible")
    (choice,) = re.findall(r"CASE (WHEN j\.held .*?) END AS code", query, re.DOTALL)
    ours += re.findall(r"(?:THEN|ELSE) '([a-z-]+)'", choice)
    ours += re.findall(r'\w+, \("([a-z-]+)", (?:text|f")', (ROOT / "engine" / "scheduling" / "ticks.py").read_text())
    ours += re.findall(r'return "([a-z]+)", f"', (ROOT / "engine" / "hosts" / "places.py").read_text())
    ours.append(policy_errors.POLICY_ERROR)
    assert sorted(code for row in table("Why a job waits", "code") for code in words(row[0])) == sorted(set(ours))


def test_every_policy_is_listed_once() -> None:
    assert sorted(name for row in table("Policies", "for") for name in words(row[1]) if name in registry.POLICIES) == sorted(
        registry.POLICIES
    )


@pytest.mark.parametrize(("heading", "column"), [("runner", "state"), ("health of a GPU", "health")])
def test_states_of_runners_and_gpus_are_those_of_the_schema(heading: str, column: str) -> None:
    schema = (ROOT / "migrations" / "0001_init.sql").read_text()
    place = schema.index("CREATE TABLE nodes" if column == "state" else "CREATE TABLE gpus")
    stored = re.search(rf"CHECK \({column} IN \(([^)]*)\)", schema[place:])
    assert stored is not None
    listed = [word for row in table("Pools, runners, GPUs", heading) for word in words(row[0])]
    assert sorted(listed) == sorted(re.findall(r"'(\w+)'", stored[1]))


def options(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every option under its dotted name, with its default; NODEFAULT when it must be given."""
    for field in msgspec.structs.fields(kind):
        name = prefix + field.name
        if field.name == "hooks":
            yield from options(Hook, "hooks.")
        elif isinstance(field.default, msgspec.Struct):
            yield from options(type(field.default), f"{name}.")
        else:
            yield name, field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def test_every_option_is_documented_with_its_default() -> None:
    listed = {}
    for option, default, meaning in table("Configuration", "option"):
        assert meaning, option
        listed[words(option)[0]] = msgspec.NODEFAULT if default == "required" else json.loads(words(default)[0])
    assert listed == dict(options(Config))


def test_every_hook_event_is_documented() -> None:
    (row,) = [row for row in table("Configuration", "option") if words(row[0]) == ["hooks.on"]]
    assert words(row[2]) == list(HOOK_EVENTS)


def test_configuration_examples_are_accepted() -> None:
    blocks = [block for page in PAGES for block in fences(page, "toml")]
    assert blocks
    for block in blocks:
        assert msgspec.toml.decode(block.encode(), type=Config) != Config(), block
