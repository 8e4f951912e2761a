"""The rules of the house (docs and design): who may import whom, what is packaged, where SQL stands, what may not be edited."""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("house")

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("client", "engine", "policies", "runners")

#: What a part of the package may import of ours: the longest matching name decides. "" is the root module (the version).
MAY_IMPORT = {
    "": ("runners.worker.script",),
    "__main__": ("engine.cli.main",),
    "loaders": ("runners.loaders",),
    # What people import: over HTTP like everybody, and of nothing that takes long to import.
    "client": ("", "client", "engine.client", "engine.errors", "engine.home"),
    # Commit and changes of the checkout, where what reads them is installed.
    "client.submitting": ("", "client", "engine.client", "engine.errors", "engine.home", "engine.spec.provenance"),
    "policies": ("policies",),
    "runners": (
        "", "runners", "engine.client", "engine.errors", "engine.home", "engine.hosts.bundles", "engine.identity", "engine.logfile",
        "engine.protocol", "engine.spec.model", "engine.streams",
    ),
    "engine": ("", "engine", "policies"),
    # Recipes and their parameters are checked where jobs come as people write them; the module is a table of names, without torch.
    "engine.api.jobs.written_jobs": ("engine", "runners.recipes"),
    "engine.store": ("engine.store", "engine.disk_room", "engine.errors", "engine.home", "engine.identity"),
    "engine.adhoc": ("engine.adhoc", "engine.store", "engine.errors", "engine.home"),
    "engine.adapters": ("engine.adapters", "engine.store", "engine.spec", "engine.protocol"),
    "engine.jobs": (
        "engine.jobs", "engine.adapters", "engine.store", "engine.spec", "engine.estimation.speeds", "engine.errors", "engine.home",
        "engine.json_rows", "engine.identity", "engine.protocol", "engine.tasks",
    ),
    "engine.fleet": (
        "engine.fleet", "engine.adapters", "engine.jobs", "engine.store", "engine.spec", "engine.estimation.speeds", "engine.errors",
        "engine.format", "engine.home", "engine.hosts", "engine.identity", "engine.logfile", "engine.protocol", "policies.contract",
    ),
    "engine.scheduling": (
        "engine.scheduling", "engine.adapters", "engine.hosts", "engine.jobs", "engine.store", "engine.spec", "engine.errors",
        "engine.home", "engine.json_rows", "policies",
    ),
    "engine.scheduling.ticks": ("engine.scheduling", "engine", "policies"),
    "engine.spec": ("engine.spec", "engine.errors"),
    # The simulator decides nothing by a store or a clock, and nothing of it reaches the daemon but what is handed in.
    "engine.sim": (
        "", "engine.sim", "engine.scheduling.guards", "engine.scheduling.plan_check", "engine.scheduling.policy_errors",
        "engine.scheduling.rowof", "policies",
    ),
    "engine.traces": ("", "engine.traces", "engine.format", "engine.sim.workload", "policies"),
    "engine.report": (
        "engine.report", "engine.pages.components", "engine.pages.markup",
        "engine.store.sqlfiles", "engine.format", "engine.sim", "engine.traces",
        "policies.contract",
    ),
    # The command line speaks HTTP like everybody else: it never opens the store.
    "engine.cli": (
        "", "client", "engine.cli", "engine.client", "engine.logfile", "engine.disk_room",
        "engine.errors", "engine.format", "engine.home", "engine.jobs.states",
        "engine.store.sqlfiles", "engine.spec", "engine.streams",
        "engine.report", "engine.adhoc.quack", "engine.sim", "engine.traces", "policies",
        "engine.autosched.simulated_tuning", "engine.autosched.situation",
        "engine.autosched.moment_of_trace", "engine.autosched.summary", "engine.autosched.search_process",
        "engine.prompts", "engine.hosts",
    ),
    # Recipes and their parameters are checked before a job is submitted; the module is a table of names, without torch.
    # So are samples to tune on.
    # What the kernel of this host can do is found out where runners do it.
    "engine.cli.running.checks": (
        "", "engine.cli", "engine.client", "engine.disk_room", "engine.errors", "engine.format", "engine.home",
        "runners.share.kernel_priority",
    ),
    "engine.cli.jobs.ask": ("engine.cli", "", "engine.errors", "runners.share.inference_client"),
    # Addresses of this host are found out where runners are told them.
    "engine.cli.running.up": (
        "engine.cli", "", "engine.client", "engine.config", "engine.errors", "engine.format", "engine.home", "engine.hosts",
        "runners.network.addresses",
    ),
    # What a killed `up` has left is known and ended as workers are: by the identity of the process.
    "engine.cli.running.children": ("engine.home", "engine.identity", "runners.lease.processes"),
    "engine.cli.running.tls": ("engine.cli", "", "engine.client", "engine.format", "engine.hosts"),
    "engine.cli.running.pool": ("engine.cli", "", "engine.errors", "engine.format", "runners.recipes"),
    "engine.cli.prompts.prompt_checks": (
        "engine.errors", "engine.home", "engine.spec", "runners.recipes", "runners.texts", "runners.prompts.labelled_files",
    ),
    "engine.cli.jobs.submit": (
        "client.following", "engine.cli", "", "engine.errors", "engine.format", "engine.hosts.bundles", "engine.spec",
        "engine.jobs.states", "runners.recipes",
    ),
}  # fmt: skip

#: Who may import heavy or far-reaching libraries when it runs (types alone anybody may).
LIBRARIES = {
    "duckdb": ("engine.store", "engine.adhoc"),
    "sqlglot": ("engine.adhoc.allowed",),
    "apscheduler": ("engine.tasks", "engine.spec.cron"),
    "starlette": ("engine.api", "engine.pages"),
    "uvicorn": ("engine.daemon", "engine.api.connections"),
    "matplotlib": ("engine.report",),
    "click": ("engine.cli", "engine.spec.click_options"),
    "rich": ("engine.cli",),
    "torch": ("runners",),
    "safetensors": ("runners",),
    "tokenizers": ("runners",),
    "transformers": ("runners.backbones", "runners.finetune", "runners.prompts"),
    "peft": ("runners.backbones", "runners.finetune", "runners.prompts"),
    "huggingface_hub": ("runners.backbones",),
    "mlflow": ("client.export_mlflow",),
    "pynvml": ("runners.host.gpus", "engine.cli.running.checks"),
    "ortools": ("policies",),
    "ray": ("engine.hosts.ray_runners",),
    "sklearn": ("policies.autosched",),
    "causallearn": ("policies.autosched",),
}


def module_name(path: Path) -> str:
    """Name below the package: ``engine.store.store``, ``engine.store`` for its ``__init__``, "" for the root's."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package."""
    paths = [*sorted(ROOT.glob("*.py")), *(path for part in PARTS for path in sorted((ROOT / part).rglob("*.py")))]
    return {module_name(path): path for path in paths}


def python_files() -> list[Path]:
    paths = [path for part in (*PARTS, "tests") for path in (ROOT / part).rglob("*.py")]
    return [path for path in paths if path.name != "__init__.py"]


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(), name)


def is_below(name: str, prefix: str) -> bool:
    return name == prefix or (prefix != "" and name.startswith(prefix + "."))


def statements(node: ast.AST, only_types: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import, at any depth, and whether it is for the type checker only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # no statement stands in one
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, only_types
        guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from statements(child, only_types or guarded)


def ours(name: str, node: ast.AST, known: frozenset[str]) -> Iterator[str]:
    """Modules of ours that the module ``name`` imports; ``from . import x`` counts as x where x is a module."""
    is_package = modules()[name].name == "__init__.py"
    package = name.split(".") if is_package else name.split(".")[:-1]
    for statement, _ in statements(node):
        if isinstance(statement, ast.ImportFrom) and statement.level:
            base = [*package[: len(package) - statement.level + 1], *(statement.module or "").split(".")]
            target = ".".join(part for part in base if part)
            for alias in statement.names:
                inner = f"{target}.{alias.name}".lstrip(".")
                yield inner if inner in known else target


def rule(name: str) -> tuple[str, ...]:
    return MAY_IMPORT[max((prefix for prefix in MAY_IMPORT if prefix and is_below(name, prefix)), key=len, default="")]


def forbidden(name: str, node: ast.AST, known: frozenset[str]) -> list[str]:
    return [target for target in ours(name, node, known) if not any(is_below(target, allowed) for allowed in rule(name))]


def test_imports_go_in_the_right_direction() -> None:
    known = frozenset(modules())
    assert {name: targets for name in modules() if (targets := forbidden(name, tree(name), known))} == {}


@pytest.mark.parametrize(
    ("name", "statement", "target"),
    [
        ("policies.fifo", "from ..engine.store.store import Store", "engine.store.store"),
        ("policies.fifo", "def f():\n    from .. import engine", "engine"),
        ("runners.host.agent", "from ...engine.store import store", "engine.store.store"),
        ("runners.recipes", "from ...engine import daemon", "engine.daemon"),
        ("engine.daemon", "from ..runners.host.agent import main", "runners.host.agent"),
        ("engine.cli.looking.top", "from ...store.store import Store", "engine.store.store"),
        ("engine.store.store", "import os\nif os.name:\n    from ..daemon import run", "engine.daemon"),
    ],
)
def test_the_direction_test_sees_what_is_wrong(name: str, statement: str, target: str) -> None:
    known = frozenset(modules())
    assert name in known and target in known
    assert forbidden(name, ast.parse(statement), known) == [target]


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for types alone count too: they tie what they name."""
    known = frozenset(modules())
    graph = {name: {target for target in ours(name, tree(name), known) if target in known and target != name} for name in modules()}
    graph = {name: {target for target in targets if modules()[target].name != "__init__.py"} for name, targets in graph.items()}
    TopologicalSorter(graph).prepare()  # CycleError names them


#: A room of the runners imports no room that stands before it in its row.
FLOORS = (
    ("runners.host", "runners.warm", "runners.worker", "runners.lease"),
    ("runners.recipes", "runners.prompts", "runners.backbones", "runners.texts", "runners.made", "runners.packages"),
)


@pytest.mark.parametrize("floors", FLOORS)
def test_no_arrow_goes_back(floors: tuple[str, ...]) -> None:
    known = frozenset(modules())
    floor = {name: floors.index(room) for name in known if (room := ".".join(name.split(".")[:2])) in floors}
    back = [(name, target) for name in floor for target in ours(name, tree(name), known) if floor.get(target, len(floors)) < floor[name]]
    assert back == [] and set(floor.values()) == set(range(len(floors)))


FULL = 16  #: files of a folder
#: the former name of a module, by which processes start it that run since before it got another one
FORMER = "runners/host/supervisor.py"


def test_no_folder_is_crowded_and_a_file_name_means_one_thing() -> None:
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in python_files() if path.parent != ROOT)
    assert {folder: files for folder, files in folders.items() if files > FULL} == {}
    files = [path for path in python_files() if path.relative_to(ROOT).parts[0] in PARTS]
    product = [path for path in files if path != ROOT / FORMER]
    names = Counter(path.name for path in product)
    assert sorted(str(path.relative_to(ROOT)) for path in product if names[path.name] > 1) == []


def misplaced(name: str, node: ast.AST) -> list[str]:
    """Libraries that the module ``name`` may not import, and Stoker itself, as imports inside the package are relative."""
    found = set()
    for statement, only_types in statements(node):
        if only_types or (isinstance(statement, ast.ImportFrom) and statement.level):
            continue
        imported = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else [statement.module or ""]
        found |= {library.split(".")[0] for library in imported}
    bound = found & {"stoker", *LIBRARIES}
    return sorted(library for library in bound if not any(is_below(name, place) for place in LIBRARIES.get(library, ())))


def test_libraries_stay_where_they_belong() -> None:
    assert {name: libraries for name in modules() if (libraries := misplaced(name, tree(name)))} == {}


@pytest.mark.parametrize(
    ("statement", "library"),
    [("import duckdb.sql", "duckdb"), ("def f():\n    from torch import nn", "torch"), ("from stoker.policies import own", "stoker")],
)
def test_the_test_of_libraries_sees_what_is_wrong(statement: str, library: str) -> None:
    assert misplaced("policies.fifo", ast.parse(statement)) == [library]


def test_every_module_says_what_it_is() -> None:
    empty = [name for name, path in modules().items() if path.name == "__init__.py" and not path.read_text().strip()]
    assert [name for name in modules() if name not in empty and not ast.get_docstring(tree(name))] == [], "no docstring"


def test_the_daemon_has_no_threads_that_everything_shares() -> None:
    """Each call goes to the pool of its kind (engine/api/thread_pools.py): six slow ones of the default pool would stop the whole API."""
    shared = {"to_thread", "run_in_executor"}
    found = {
        name: sorted({child.attr for child in ast.walk(tree(name)) if isinstance(child, ast.Attribute)} & shared)
        for name in modules()
        if is_below(name, "engine")
    }
    assert {name: words for name, words in found.items() if words} == {}


SQL = re.compile(r"\s*(--.*\n\s*)?(SELECT|WITH\s+\w+\s+AS|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+\w+|COPY|MERGE\s+INTO)\b")


def long_sql(node: ast.AST) -> list[int]:
    """Lines at which a string that begins like SQL is written over more than one line."""
    found = set()
    for child in ast.walk(node):
        first = child.values[0] if isinstance(child, ast.JoinedStr) and child.values else child
        text = first.value if isinstance(first, ast.Constant) else None
        if (
            isinstance(child, ast.Constant | ast.JoinedStr)
            and isinstance(text, str)
            and SQL.match(text)
            and child.end_lineno != child.lineno
        ):
            found.add(child.lineno)
    return sorted(found)


def test_long_sql_stands_in_files() -> None:
    found = {name: lines for name in modules() if (lines := long_sql(tree(name)))}
    assert found == {}, "put it into a file below sql/"


def test_the_sql_test_sees_what_is_wrong() -> None:
    bad = [
        'x = """SELECT a\nFROM b"""',
        'x = f"""\n  SELECT {a}\n  FROM b"""',
        'x = ("INSERT INTO t "\n "VALUES (1)")',
    ]
    assert [long_sql(ast.parse(text)) for text in bad] == [[1], [1], [1]]
    assert long_sql(ast.parse('x = "SELECT 1"\ny = """Select a file\nor two."""')) == []


def pyproject() -> dict[str, dict[str, dict[str, object]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_list_of_packages_is_complete() -> None:
    there = {name for name, path in modules().items() if path.name == "__init__.py"}
    lacking = {str(path.parent.relative_to(ROOT)) for path in modules().values()} - {name.replace(".", "/") or "." for name in there}
    assert not lacking, "directories with modules but no __init__.py"
    listed = pyproject()["tool"]["setuptools"]["packages"]
    assert listed == sorted({f"stoker.{name}".rstrip(".") for name in there})


def test_files_that_are_read_at_run_time_are_packaged() -> None:
    patterns = pyproject()["tool"]["setuptools"]["package-data"]
    assert isinstance(patterns, dict)
    below = [path for top in (*PARTS, "sql", "migrations") for path in (ROOT / top).rglob("*") if path.is_file()]
    data = [path.relative_to(ROOT).as_posix() for path in below if path.suffix not in (".py", ".pyc", ".txt", ".md")]
    wanted = [f"{package.replace('.', '/')}/{pattern}".removeprefix("stoker/") for package, some in patterns.items() for pattern in some]
    wanted += [pattern.replace("**/", "") for pattern in wanted]
    assert len(data) > 20
    assert [path for path in data if not any(fnmatch.fnmatch(path, pattern) for pattern in wanted)] == []


def test_migrations_are_numbered_without_gaps_and_never_edited() -> None:
    files = sorted((ROOT / "migrations").glob("*.sql"))
    assert [int(path.name[:4]) for path in files] == list(range(1, len(files) + 1))
    assert all(re.fullmatch(r"\d{4}_[a-z0-9_]+\.sql", path.name) for path in files)
    recorded = dict(reversed(line.split("  ", 1)) for line in (ROOT / "migrations" / "checksums.txt").read_text().splitlines())
    now = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert now == recorded, (
        "a migration that has landed is never edited: databases that have it are refused; add a new one, and its line to checksums.txt "
        "(cd migrations && sha256sum *.sql > checksums.txt)"
    )


def test_ci_runs_what_the_readme_says() -> None:
    ci = ROOT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    lines = [line for line in ci.read_text().splitlines() if line and not line.startswith("#")]
    assert sum(line.startswith("make test ") for line in lines) == 1 and lines[-1] == 'exit "$code"'
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    assert "make demo" in head and "make test" in head
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)


IGNORED = {"build", "dist", "report", "__pycache__"}


@cache
def texts() -> dict[str, str]:
    """Every text file of the project."""
    found = {}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not (Path(folder) == ROOT and name in IGNORED - {"__pycache__"})]
        folders[:] = [name for name in folders if name != "__pycache__" and not name.endswith(".egg-info")]
        folders[:] = [name for name in folders if not name.startswith(".") or name == ".ci"]
        for name in files:
            path = Path(folder) / name
            try:
                found[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return found


def test_no_python_file_is_too_long_to_read() -> None:
    """Tests may be longer: a table of cases is one thing, however many there are."""
    sizes = {name: text.count("\n") for name, text in texts().items() if name.endswith(".py")}
    limits = {name: 1000 if name.startswith(("tests/", "benchmarks/")) else 600 for name in sizes}
    assert {name: size for name, size in sizes.items() if size > limits[name]} == {}


def test_nothing_names_a_place_of_one_machine() -> None:
    places = [str(place) for place in (ROOT, Path.home()) if len(place.parts) > 1]
    pattern = re.compile("|".join(rf"(?<![\w.~}}/-]){re.escape(place)}(?![\w-])" for place in places))
    assert "tests/whole/test_house.py" in texts()
    assert [name for name, text in texts().items() if pattern.search(text)] == []
