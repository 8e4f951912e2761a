"""Sends simulated runs to the daemon, which keeps them; without a daemon the study goes on, unstored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import __version__
from ...errors import StokerError
from ..command import App
from ..output import note

if TYPE_CHECKING:
    from ...sim.results.record import Recorded
    from ...sim.study import Study

TIMEOUT = 120.0  #: seconds until a stored run is acknowledged
SLICE = 100_000  #: jobs of a run that are sent at once, some 10 MB


class RunStore:
    """Stores runs as they come; a failure is reported once."""

    def __init__(self, app: App, study: Study, name: str) -> None:
        self._study, self._name = study, name
        self._client = app.client_within(TIMEOUT)
        self.numbers: dict[int, int] = {}  #: of stored runs, by their number in the study
        self._open = True
        try:
            if self._client.get("/v1/simulations", study=name, limit=1)["runs"]:
                note(f"there is a study {name!r} already: these runs are added to it")
        except StokerError as error:
            self._give_up(error)

    def add(self, run: Recorded) -> None:
        if not self._open:
            return
        try:
            self.numbers[run.outcome.run.number] = self._send(run)
        except StokerError as error:
            self._give_up(error)

    def _send(self, run: Recorded) -> int:
        """Send a run; returns its number. Its jobs go in slices; the daemon writes all of them after the last."""
        from ...sim.results.record import job_columns, usage_columns

        jobs = job_columns(self._study, run.outcome)
        slices = [
            {name: column[first : first + SLICE] for name, column in jobs.items()}
            for first in range(0, max(map(len, jobs.values()), default=0) or 1, SLICE)
        ]
        usage = usage_columns(run.outcome.result.usage) if run.outcome.result else {}
        more = "?more=1" if len(slices) > 1 else ""
        row = {"study": self._name, "version": __version__, **run.row}
        answer = self._post(f"/v1/simulations{more}", {"run": row, "jobs": slices[0], "usage": usage})
        for place, some in enumerate(slices[1:], 1):
            last = "&last=1" if place == len(slices) - 1 else ""
            answer = self._post(f"/v1/simulations/uploads/{answer['upload']}?offset={place * SLICE}{last}", some)
        return int(answer["id"])

    def _post(self, path: str, message: Any) -> Any:
        import msgspec  # it writes NaN as null, and takes a tenth of json's time

        return msgspec.json.decode(self._client.post_raw(path, msgspec.json.encode(message)))

    def _give_up(self, error: StokerError) -> None:
        self._open = False
        note(f"the figures are not stored: {error}")
