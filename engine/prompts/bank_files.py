"""The file `bank.npz` of each bank that has clusters: workers read it, only the daemon writes it.

Arrays: ``prompts`` (unicode, n), ``features`` (float32, n × d), ``medoid`` (int32, n: row of its cluster's medoid), ``ids`` and
``tasks`` (n), ``vectors`` (float32: those of all tuned prompts, one after another) and ``ends`` (int64, n: where those of each end),
``llm`` (name@revision), ``tokenizer``, and ``stamp``, which differs for different contents. `Home.bank` is its path.
"""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..home import Home
from ..store.sqlfiles import sql
from ..store.store import Store
from .stored_prompts import BankKey

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class BankFiles:
    """Keeps the exported files equal to the tables. `refresh` writes those that differ, each whole or not at all."""

    def __init__(self, store: Store, home: Home) -> None:
        self._store = store
        self._home = home
        self._writing = threading.Lock()  # one writer at a time, so that the last file has the newest state

    def refresh(self) -> None:
        """Called after a change, and when the daemon starts: it may have been killed between a commit and the file."""
        with self._writing:
            for llm, revision, tokenizer, stamp in self._store.rows("api/bank_stamps"):
                bank = BankKey(llm=llm, revision=revision, tokenizer=tokenizer)
                path = self._home.bank(*bank.key)
                if _stamp(path) != stamp:
                    _write(path, {**self._arrays(bank), "stamp": stamp})

    def _arrays(self, bank: BankKey) -> dict[str, Any]:
        import numpy as np

        found = bank_arrays(self._store, bank)
        vectors = [[] if some is None else some for some in found["vectors"].tolist()]
        tasks = ["" if task is None else str(task) for task in found["task"]]
        return {
            "prompts": np.array([str(text) for text in found["text"]]), "features": found["features"],
            "medoid": rows_of(found["id"].tolist(), found["medoid"].tolist()), "ids": found["id"], "tasks": np.array(tasks),
            "vectors": np.concatenate([np.array(some, dtype="<f4") for some in vectors]),
            "ends": np.cumsum([len(some) for some in vectors], dtype=np.int64),
            "llm": f"{bank.llm}@{bank.revision}", "tokenizer": bank.tokenizer,
        }  # fmt: skip


def bank_arrays(store: Store, bank: BankKey) -> dict[str, Any]:
    """Columns of a bank, in the order of its numbers; ``features`` are float32, n × d. Empty if there is no such bank."""
    import numpy as np

    with store.read() as con:
        found: dict[str, Any] = con.execute(sql("api/bank_prompts"), list(bank.key)).fetchnumpy()
    return {**found, "features": np.stack(found["features"]).astype("<f4")} if len(found["id"]) else {}


def rows_of(ids: Sequence[int], medoids: Sequence[int]) -> NDArray[np.int32]:
    """The row of each prompt's medoid."""
    import numpy as np

    place = {number: row for row, number in enumerate(ids)}
    return np.array([place[medoid] for medoid in medoids], dtype=np.int32)


def _stamp(path: Path) -> str | None:
    """The stamp of a file; None: it is missing or damaged."""
    import numpy as np

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            return str(found["stamp"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
