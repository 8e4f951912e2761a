"""Runs a submitted function: ``python -m stoker.client.called --file FILE NAME``; its arguments are the params of the job."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.errors import UsageError
from ..engine.home import ENV_IMPORTING


def _imported(how: str, where: str, root: str | None) -> types.ModuleType:
    """The module of the function. If its import submits jobs these are refused: see `Client.submit`."""
    os.environ[ENV_IMPORTING] = os.environ.get("STOKER_JOB_ID", "0")
    try:
        if how == "--module":
            sys.path.insert(0, root or "")
            return importlib.import_module(where)
        if how == "--source":
            from .sent_functions import unpacked

            path = Path(os.environ.get("STOKER_RUN_DIR", ".")) / "notebook.py"
            path.write_text(unpacked(where))  # a file, so that tracebacks show its lines, and its child processes can import it
        else:
            path = Path(where).resolve()
        sys.path.insert(0, str(path.parent))
        name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "stoker_function"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        os.environ.pop(ENV_IMPORTING, None)


def _params() -> dict[str, Any]:
    """The params of the job, which its runner has written."""
    run = os.environ.get("STOKER_RUN_DIR")
    if run is None:
        raise UsageError("this is started by a runner of Stoker, with the params of a job")
    found: dict[str, Any] = json.loads((Path(run) / "assignment.json").read_bytes())["spec"].get("params", {})
    return found


def _call(function: Callable[..., Any], params: dict[str, Any]) -> Any:
    positional = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_ONLY and p.name in params]
    return function(*[params[name] for name in positional], **{name: value for name, value in params.items() if name not in positional})


def main(arguments: list[str]) -> int:
    try:
        how, where, *rest = arguments
        module = _imported(how, where, rest[0] if how == "--module" else None)
        function: Any = module
        for part in rest[-1].split("."):
            function = getattr(function, part)
        sys.argv = [str(getattr(module, "__file__", where))]
        params = _params()
    except UsageError as error:
        print(f"stoker: error: {error}", file=sys.stderr)  # noqa: T201 - the log of the job
        return 2
    except FileNotFoundError as error:
        print(f"stoker: error: function: there is no file {error.filename} on this host", file=sys.stderr)  # noqa: T201
        return 2
    _call(function, params)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
