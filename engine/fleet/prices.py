"""The prices of config.toml, with the time from which they hold: the view `costs` uses the prices at the time of a lease's grant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..store.transaction import Transaction

Prices = Mapping[tuple[str, str], float]  #: by kind (`gpu` or `storage`) and product of the GPU, as in the table `prices`


def keep_prices(tx: Transaction, batch: Sequence[Prices]) -> Sequence[None]:
    """Record a list of prices if it differs from the one in force."""
    for wanted in batch:
        if wanted != {(what, name): price for what, name, price in tx.execute("prices_in_force")}:
            rows = [{"ts": tx.now, "what": what, "gpu_name": name, "price": price} for (what, name), price in wanted.items()]
            tx.insert("prices", rows)
    return [None] * len(batch)
