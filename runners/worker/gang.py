"""Ranks of a gang on this node, by torch's elastic launcher, with the exit code of the rank that failed first.

`torchrun` itself always leaves with 1, which would hide whether the ranks crashed or left because they were asked to.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as launch

    try:
        launch(sys.argv[1:])
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        _leave(failure.exitcode)


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
