"""Python processes that begin with torch imported: forked from a server that has it, which saves 3 s of processor time each.

The server is the one of the pytest process; `serve` puts ours in the place of one that loaders under test have started.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

#: torch._dynamo is what the first optimizer imports. Nothing of Stoker: it looks at its environment when it is imported.
PRELOADED = ["torch", "torch.distributed", "torch.utils.data", "torch._dynamo", "msgspec"]

processes = multiprocessing.get_context("forkserver")


def serve() -> None:
    """Start the server, once in a pytest process."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    processes.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


def start(*argv: str, cwd: Path, env: Mapping[str, str], output: Path, errors: Path | None = None, largest_file: int = 0) -> BaseProcess:
    """`python ARGV`: a script with its options, or ``-m MODULE``, whose ``main`` is called. Files are appended to."""
    process = processes.Process(target=_run, args=(argv, cwd, dict(env), output, errors or output, largest_file))
    process.start()
    return process


def _run(argv: Sequence[str], cwd: Path, env: Mapping[str, str], output: Path, errors: Path, largest_file: int) -> None:
    for stream, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    if argv[0] == "-m":
        sys.exit(importlib.import_module(argv[1]).main())
    sys.argv[:] = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    runpy.run_path(argv[0], run_name="__main__")
