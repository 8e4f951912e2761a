"""Ranks of a gang on this node, by torch's elastic launcher, with the exit code of the rank that failed first.

`torchrun` itself always leaves with 1, which would hide whether the ranks crashed or left because they were asked to.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys

from ..lease.rundir import ENV_RUN_DIR, PREEMPTED_EXIT

CRASHED_GRACE = 3  #: seconds until the ranks beside one that crashed are killed: they wait for it in a collective


def main() -> None:
    gc.disable()  # imports leave no garbage
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as launch

    gc.freeze()
    gc.enable()
    _end_soon_after_a_crash()
    try:
        launch(["--log-dir", f"{os.environ[ENV_RUN_DIR]}/launcher", *sys.argv[1:]])  # else it leaves a folder in /tmp
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        _leave(failure.exitcode)
    atexit._run_exitfuncs()
    _leave(0)  # Python would take half a second to free torch's modules


def _end_soon_after_a_crash() -> None:
    """After a crash torch's launcher gives the other ranks 30 s from SIGTERM, at which they write a checkpoint after the current step."""
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    close = SubprocessContext._close

    def soon(context: SubprocessContext, death_sig: signal.Signals, timeout: int = 30) -> None:
        # A rank that was asked to leave has written its checkpoint; the others may still be at theirs.
        crashed = any(failure.exitcode != PREEMPTED_EXIT for failure in context._failures.values())
        close(context, death_sig, min(timeout, CRASHED_GRACE) if crashed else timeout)

    SubprocessContext._close = soon  # type: ignore[assignment,method-assign]


def _leave(code: int) -> None:
    """Leave as the rank did: with its code, or by its signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)  # the threads of the launcher have nothing left to do, and must not delay the end


if __name__ == "__main__":
    main()
