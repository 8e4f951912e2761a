"""Errors that people see: one line, what was wrong and what to do. Each kind has its exit code and HTTP status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

MOST_TOLD = 20  #: errors of one request that are shown


class StokerError(Exception):
    """Something went wrong that the person at the keyboard can act on."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    @property
    def lines(self) -> list[str]:
        """The lines to print, one for each error."""
        return [str(self)]


class UsageError(StokerError):
    """The request itself is wrong: a bad spec, option or statement."""

    code, exit_code, http_status = "bad-request", 2, 400

    line = 0  #: in the file, where there is one


class Several(UsageError):
    """Several errors of one request, shown together; repeated ones once."""

    def __init__(self, errors: Sequence[UsageError]) -> None:
        self.errors = list({str(error): error for error in errors}.values())
        super().__init__("; ".join(self.lines))

    @property
    def lines(self) -> list[str]:
        more = len(self.errors) - MOST_TOLD
        return [str(error) for error in self.errors[:MOST_TOLD]] + ([f"and {more} more"] if more > 0 else [])


class Gathered:
    """Errors of a request, collected while the rest of it is checked."""

    def __init__(self) -> None:
        self._errors: list[UsageError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, error: UsageError) -> None:
        self._errors += error.errors if isinstance(error, Several) else [error]

    @contextmanager
    def part(self) -> Iterator[None]:
        """Check a part of the request; the other parts are checked in spite of its error."""
        try:
            yield
        except UsageError as error:
            self.add(error)

    def sort(self) -> None:
        """Sort the errors by their lines in the file."""
        self._errors.sort(key=lambda error: error.line)

    def tell(self) -> None:
        """Raise what there is."""
        if self._errors:
            found = Several(self._errors)
            raise found if len(found.errors) > 1 else found.errors[0]


class NotFound(StokerError):
    """No such job, runner, policy or file."""

    code, exit_code, http_status = "not-found", 3, 404


class Conflict(StokerError):
    """The request is well formed, but not possible in the present state."""

    code, exit_code, http_status = "conflict", 4, 409


class Unauthorized(StokerError):
    """No token, a wrong token, or a role that may not do this."""

    code, exit_code, http_status = "unauthorized", 5, 403


class Unreachable(StokerError):
    """No daemon answers."""

    code, exit_code, http_status = "unreachable", 6, 503

    sent = True  #: whether the request may have been carried out: False where nothing listened


class Untrusted(Unreachable):
    """The answering process is not known to be the daemon, or it speaks TLS and the client does not, or the reverse."""

    exit_code, sent = 4, False


class LimitExceeded(StokerError):
    """A time, row, memory or size limit cut the request off."""

    code, exit_code, http_status = "limit", 7, 422


class StoreError(StokerError):
    """The database file cannot be used: corrupt, newer than the program, locked, or the disk is full."""

    code, exit_code, http_status = "store", 8, 503


class NoRoom(StoreError):
    """The disk, or a limit of the file size, has no room for a commit."""


class Stale(StokerError):
    """The fencing number or session is outdated: the sender must stop, and its report is not taken."""

    code, exit_code, http_status = "stale", 9, 409


class JobFailed(StokerError):
    """A job that was waited for failed or was cancelled."""

    code, exit_code = "job-failed", 10


KINDS: dict[str, type[StokerError]] = {
    kind.code: kind for kind in (StokerError, UsageError, NotFound, Conflict, Unauthorized, Unreachable, LimitExceeded, StoreError, Stale)
}


def nearest(word: str, known: object) -> str:
    """' (did you mean X?)' when a known name is near ``word``, else ''."""
    from ..policies.nearest import meant

    near = meant(word, [str(name) for name in known])  # type: ignore[attr-defined]
    return f" (did you mean {near!r}?)" if near else ""
