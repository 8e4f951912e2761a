"""The owners whose jobs, schedules and traces a request may change."""

from __future__ import annotations

from ..errors import Unauthorized


def require_own(what: str, owner: str, only: str | None) -> None:
    """Raise Unauthorized if a request bound to the user ``only`` would act on another's; None: it is bound to no user."""
    if only is not None and owner != only:
        raise Unauthorized(f"{what} is {owner}'s, and this token acts for {only}: ask {owner}, or take a token of role admin")
