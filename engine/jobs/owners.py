"""Whose jobs, schedules and traces a request may act on."""

from __future__ import annotations

from ..errors import Unauthorized


def require_own(what: str, owner: str, only: str | None) -> None:
    """Raise Unauthorized when a request that is bound to the user ``only`` would act on somebody else's; None: it is bound to nobody."""
    if only is not None and owner != only:
        raise Unauthorized(f"{what} is {owner}'s, and this token acts for {only}: ask {owner}, or take a token of role admin")
