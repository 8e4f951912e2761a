"""`stoker tls`: the certificate of the daemon's TCP port, for clients."""

from __future__ import annotations

from typing import Any

import click

from ... import format as fmt
from ..command import App, Command, examples, pass_app
from ..output import Answer, json_option, note, write
from .up import names_of_host


@click.command(cls=Command)
@click.option("--name", "names", multiple=True, metavar="HOST", help="Make it anew, for this name or address too. May be repeated.")
@json_option
@pass_app
@examples("stoker tls", "stoker tls --name gpu1.example.org --name 10.0.0.1", "stoker tls --json")
def tls(app: App, names: tuple[str, ...]) -> Answer:
    """Show the certificate that 'stoker up --tls' uses; make it if there is none.

    An authority in HOME/tls, made once, signs it: clients that have its ca.pem trust each of its certificates. Files given with
    --tls-cert are not shown.
    """
    from ...client import AUTHORITY
    from ...hosts import certificates

    folder = app.home.create().tls
    cert, key = certificates.own(folder)
    if made := bool(names) or not cert.exists():
        certificates.make_own(folder, [*names, *names_of_host(None)])
    known = certificates.looked_at(cert, certificates.serving(cert, key))
    found: dict[str, Any] = {
        "authority": str(folder / AUTHORITY), "fingerprint": known.fingerprint, "names": list(known.names), "until": known.until,
    }  # fmt: skip

    def show() -> None:
        if made:
            note("made; a daemon that runs takes it up when it is started again")
        write(f"authority    {found['authority']}\nfingerprint  {known.fingerprint}\n")
        write(f"names        {', '.join(known.names)}\nuntil        {fmt.clock(known.until)}\n")
        write("on other hosts:  export STOKER_CA=FILE, a copy of that file, or STOKER_CA=FINGERPRINT\n")

    return Answer(found, show, done="the certificate is made" if made else "")
