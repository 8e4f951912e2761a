"""Sends checkpoints of this node to the daemon, for hosts that cannot read its disk."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...engine.client import Client
from ...engine.errors import Conflict, NotFound, Stale, StokerError, Unauthorized, Unreachable
from ...engine.hosts.bundles import digest_of, send, tree
from ...engine.protocol import BUNDLE_PIECE, CHECKPOINT_SENT, BundleKept, BundlePiece, CheckpointSent, SendCheckpoint

log = logging.getLogger("stoker.runner")

TIMEOUT = 60.0  #: seconds for an answer: the daemon reads all of a tar for its digest
RETRY_SECONDS = 2.0  #: seconds until a checkpoint without an answer is sent again
TRIES = 2  #: of a checkpoint that was damaged on its way


class CheckpointSender(threading.Thread):
    """Sends one after the other, each until the daemon has it, knows why it cannot be sent, or wants it no more."""

    def __init__(self, client: Client, home: Path, node: str, session: int) -> None:
        super().__init__(name="checkpoints", daemon=True)
        self._client, self._home, self._node, self._session = client, home, node, session
        self._wanted: set[SendCheckpoint] = set()
        self._queue: queue.SimpleQueue[SendCheckpoint] = queue.SimpleQueue()
        self._taken_at, self._reads = 0.0, False

    def want(self, wanted: Sequence[SendCheckpoint]) -> None:
        """All that the daemon wants now."""
        fresh = [one for one in wanted if one not in self._wanted]
        self._wanted = set(wanted)
        for one in fresh:
            self._queue.put(one)

    @property
    def taken_at(self) -> float:
        """Time at which the daemon last took a part of one (monotonic); now while one is being read, which needs no daemon."""
        return time.monotonic() if self._reads else self._taken_at

    def run(self) -> None:
        while True:
            one = self._queue.get()
            while one in self._wanted:
                try:
                    self._tell(one, self._send(one))
                    break
                except (NotFound, Stale, Unauthorized) as error:
                    log.warning("the checkpoint of job %d is not sent: %s", one.job, error)
                    break
                except StokerError:  # the daemon is away, or cannot store it
                    time.sleep(RETRY_SECONDS)
                except Exception:
                    log.exception("the checkpoint of job %d is not sent", one.job)
                    break

    def _send(self, one: SendCheckpoint) -> CheckpointSent:
        digest, refused = None, ""
        try:
            digest = self._tar(one)
        except (Unreachable, NotFound, Stale, Unauthorized):
            raise
        except OSError as error:
            refused = f"cannot read {error.filename or 'it'}: {error.strerror}"
        except (StokerError, ValueError) as error:
            refused = str(error)
        except Exception as error:  # a waiting job, and a returning node, must not wait for ever
            log.exception("the checkpoint of job %d is not sent", one.job)
            refused = f"{type(error).__name__}: {error}"
        return CheckpointSent(node=self._node, session=self._session, job=one.job, after=one.after, digest=digest, refused=refused)

    def _tar(self, one: SendCheckpoint) -> str:
        source = Path(one.checkpoints) if one.checkpoints else self._home / "jobs" / str(one.job) / "checkpoints"
        add = tree(source)
        for left in reversed(range(TRIES)):
            self._reads = True
            try:
                digest, size = digest_of(add)
            finally:
                self._reads = False
            if not any(source.iterdir()):
                raise ValueError(f"there is nothing in {source}")
            if size > one.at_most:
                raise ValueError(f"it is too large ({size / 2**20:.1f} MiB, runners.fetch_at_most is {one.at_most / 2**20:.1f} MiB)")
            try:
                kept = self._post(BundlePiece(digest=digest))
                if not kept.whole:
                    send(add, kept.bytes, lambda at, data, digest=digest: self._piece(digest, at, data))  # type: ignore[misc]
                    self._post(BundlePiece(digest=digest, offset=size, last=True))
            except Conflict:
                if not left:
                    raise
                continue
            log.info("the checkpoint of job %d is sent (%.1f MiB)", one.job, size / 2**20, extra={"action": "send"})
            return digest
        raise AssertionError("unreachable")

    def _piece(self, digest: str, at: int, data: bytes) -> None:
        if self._post(BundlePiece(digest=digest, offset=at, data=data)).bytes < at + len(data):
            raise Conflict("it was changed while it was sent")

    def _post(self, piece: BundlePiece) -> BundleKept:
        piece = msgspec.structs.replace(piece, node=self._node, session=self._session)
        answer = self._client.post_raw(BUNDLE_PIECE, msgspec.json.encode(piece), timeout=TIMEOUT)
        self._taken_at = time.monotonic()
        return msgspec.json.decode(answer, type=BundleKept)

    def _tell(self, one: SendCheckpoint, sent: CheckpointSent) -> None:
        if sent.refused:
            log.warning("the checkpoint of job %d cannot be sent: %s", one.job, sent.refused)
        self._client.post_raw(CHECKPOINT_SENT, msgspec.json.encode(sent), timeout=TIMEOUT)
