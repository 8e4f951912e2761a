"""The searches of the daemon's pools, one at a time: each in a thread that waits for its niced process, so no tick waits for it."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...policies.autosched.search import Trial
from ..errors import Conflict, NotFound, StokerError
from ..store.store import Store
from .pool_requests import PoolRequest, PoolRequests
from .search_process import Idle, SearchFailed, SearchRequest, find_apart
from .stored_models import StoredModel, keep_model
from .summary import summary_of

MAX_ANSWERS = 100  #: of old searches that can still be asked for
log = logging.getLogger(__name__)


class PoolSearches:
    """``decide``: puts what a search has found in force, or not, and adds to its summary what was done."""

    def __init__(self, store: Store, requests: PoolRequests, decide: Callable[[PoolRequest, dict[str, Any]], dict[str, Any]]) -> None:
        self._store, self._requests, self._decide = store, requests, decide
        self._lock = threading.Lock()
        self.busy: str | None = None  #: the pool that is searched for
        self._answers: dict[str, dict[str, Any]] = {}  #: of the last searches, by their numbers
        self._newest: dict[str, str] = {}  #: the number of each pool's newest

    def begin(self, asked: PoolRequest) -> dict[str, Any]:
        """Start a search; what `answer` says of it. Conflict while another is under way; UsageError for what can't be searched."""
        request, stored, arrivals = self._requests.request(asked)
        with self._lock:
            if self.busy is not None:
                raise Conflict(f"pool {self.busy!r} is being tuned; try again when that has ended")
            self.busy = asked.pool
        search = secrets.token_hex(4)  # random: a counter would begin again with each start of the daemon, and name two searches alike
        self.tell(asked.pool, search, state="searching", trials=0)
        threading.Thread(target=self._run, args=(asked, search, request, stored, arrivals), name="tuning", daemon=True).start()
        return self.answer(asked.pool, search)

    def answer(self, pool: str, search: str | None = None) -> dict[str, Any]:
        """How a search of a pool goes, or went; by default its newest."""
        found = self._answers.get(search or self._newest.get(pool, ""))
        if found is None:
            missing = f"search: {search!r} is not known" if search else f"pool {pool!r} has not been tuned"
            raise NotFound(f"{missing} since the daemon started; 'stoker tune history' has what was before")
        return found

    def tell(self, pool: str, search: str, **answer: Any) -> None:
        """From now on this is the newest answer of a pool."""
        self._answers[search] = {"search": search, "pool": pool, **answer}
        self._newest[pool] = search
        for old in list(self._answers)[:-MAX_ANSWERS]:
            if old not in self._newest.values():
                self._answers.pop(old, None)

    def _run(self, asked: PoolRequest, search: str, request: SearchRequest, stored: StoredModel, arrivals: str) -> None:
        def told(number: int, _trial: Trial) -> None:
            self.tell(asked.pool, search, state="searching", trials=number + 1)

        try:
            answer = find_apart(request, told)
            if answer.model is not None:
                self._store.write(keep_model, replace(stored, model=answer.model))
            if answer.predictor is not None and (request.untold is None or request.untold.predictor is None):
                self._requests.keep_predictor(asked.pool, answer.predictor)
            summary = {**summary_of(answer, request), "arrivals": arrivals}
            self.tell(asked.pool, search, state="done", **self._decide(asked, summary))
        except (SearchFailed, StokerError, ValueError) as error:
            log.warning("pool %s: tuning failed: %s", asked.pool, error, extra={"action": "tuning.failed"})
            self.tell(asked.pool, search, state="failed", why=f"{error}; the configuration in force stays", idle=isinstance(error, Idle))
        except Exception as error:
            log.exception("pool %s: tuning failed", asked.pool, extra={"action": "tuning.failed"})
            self.tell(asked.pool, search, state="failed", why=f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self.busy = None
