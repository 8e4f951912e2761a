"""Where a tuning begins: the prompt that the bank gives, a text, tokens of the vocabulary, or numbers.

The bank is used only if 20 % of the time until the deadline is at least the longest time of a lookup (002 ch. 4.4.3.4 and 4.5.2, read
as in `lookup.fits`). The thesis takes 20 % of the whole SLO; what is left of it when the job starts is less, and what counts.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...engine.errors import Conflict, NotFound, StokerError, UsageError
from ...engine.home import Home
from ..backbones.pretrained import Llm
from ..host.rundir import ENV_RUN_DIR
from ..worker import script
from . import soft_prompt
from .labelled_samples import Samples
from .lookup import BUDGET, lookup, most_scores, prompts_of
from .prompt_score import score

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

TEXT = "text:"  #: how an `init` begins that is a text
_TELL = 5.0  #: seconds between lines of the log during a lookup
_CHOSEN = "initial-prompt.json"  #: beside the checkpoints: later attempts begin where the first did, whatever the clock says


@dataclass(frozen=True, slots=True)
class Start:
    """The vectors (tokens, hidden) that a tuning begins with, and how they were found."""

    vectors: torch.Tensor
    how: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What an initial prompt is chosen by."""

    llm: Llm
    samples: Samples
    tokens: int
    score_samples: int
    seed: int
    deadline: float | None = None  #: seconds since the epoch
    home: Path | None = None  #: where the daemon keeps the banks
    clock: Callable[[], float] = time.time

    def start(self, init: str, kept: Path) -> Start:
        """The start by ``init``; ``kept``: the job's directory of checkpoints."""
        if init == "vocabulary":
            return self._vocabulary()
        if init == "random":
            return Start(soft_prompt.of_numbers(self.llm, self.tokens, self.seed), {"init": "random"})
        if init == "bank":
            return self._by_bank(kept / _CHOSEN)
        text = init.removeprefix(TEXT).strip().strip("\"'")
        if not text:
            raise UsageError(f"params.init: no text stands after {TEXT!r}")
        return self._text(text, {"init": "text"})

    def _vocabulary(self, **how: Any) -> Start:
        return Start(soft_prompt.of_vocabulary(self.llm, self.tokens, self.seed), {"init": "vocabulary", **how})

    def _text(self, text: str, how: Mapping[str, Any], vectors: Sequence[Sequence[float]] | None = None) -> Start:
        """``vectors`` (tokens, hidden): of a prompt of the bank that was tuned."""
        prompt = text if vectors is None else np.array(vectors, dtype=np.float32)
        return Start(soft_prompt.of_prompt(self.llm, prompt, self.tokens), {**how, "text": text})

    def _by_bank(self, path: Path) -> Start:
        try:
            how = json.loads(path.read_bytes())
            log.info("the initial prompt was chosen by an earlier attempt")
        except (OSError, ValueError):
            how = self._ask_bank()
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(how))
            unfinished.replace(path)
        return (
            self._text(how.pop("text"), how, how.pop("vectors", None))
            if "text" in how
            else self._vocabulary(**{k: v for k, v in how.items() if k != "init"})
        )

    def _ask_bank(self) -> dict[str, Any]:
        """Look up, if there is time; the prompt, or why the bank was not used. Says so in the log and in metrics."""
        bank = read_bank(self.home, self.llm)
        texts, prompts, medoid = bank["prompts"].tolist(), prompts_of(bank), bank["medoid"]
        common, began = self.samples.common(self.score_samples, self.seed), self.clock()
        known: dict[int, float] = {}
        most, told = most_scores(medoid), time.monotonic()

        def scores(rows: Sequence[int]) -> list[float]:
            nonlocal told
            for row in rows:
                if time.monotonic() - told >= _TELL:
                    told = time.monotonic()
                    log.info("looking up the initial prompt: %d of at most %d scored", len(known), most)
                if row not in known:
                    known.update(zip([row], score(self.llm, [prompts[row]], common, self.samples.answers, self.tokens), strict=True))
            return [known[row] for row in rows]

        if self.deadline is not None:
            longest, budget = self._time_scores(scores, medoid) * most, BUDGET * (self.deadline - began)
            if longest > budget:
                why = f"{most} scores may take {longest:.0f} s, more than 20 % ({max(0.0, budget):.0f} s) of the time until the deadline"
                log.info("the bank is not used: %s; the tuning begins with words of the vocabulary", why)
                script.report(step=0, bank_used=0.0, bank_scores=float(len(known)), bank_longest=longest, bank_budget=budget)
                return {"init": "vocabulary", "bank": f"not used: {why}"}
        best, seconds = lookup(medoid, scores)[0], self.clock() - began
        found = f"{len(known)} of {len(prompts)} prompts were scored in {seconds:.1f} s"
        log.info("the bank is used: %s; the best, with a loss of %.4f, is: %s", found, best.score, texts[best.row])
        script.report(step=0, bank_used=1.0, bank_scores=float(len(known)), bank_seconds=seconds, bank_score=best.score)
        begins = prompts[best.row]
        tuned = {} if isinstance(begins, str) else {"vectors": begins.tolist()}
        about = {"init": "bank", "bank": f"used: {found}", "score": best.score, "id": int(bank["ids"][best.row])}
        return {**about, "text": texts[best.row], **tuned}

    def _time_scores(self, scores: Callable[[Sequence[int]], object], medoid: NDArray[np.int32]) -> float:
        """Seconds of a score, by the second of two: the first also waits for what is set up once. The lookup needs both anyway."""
        seconds = 0.0
        for row in sorted({int(one) for one in medoid})[:2]:
            began = self.clock()
            scores([row])
            seconds = self.clock() - began
        return seconds


def home_of_job() -> Path | None:
    """The home on this host that the job's run directory is in; None outside a job."""
    run_dir = os.environ.get(ENV_RUN_DIR)
    return Path(run_dir).parents[2] if run_dir else None


def read_bank(home: Path | None, llm: Llm) -> dict[str, Any]:
    """The bank of this LLM as the daemon has exported it. One line says what is wrong when it cannot be used."""
    build = f"'stoker prompt bank build --llm {llm.name} --from FILE.jsonl' makes one; or give another params.init, such as vocabulary"
    if home is None:
        raise NotFound("params.init: a bank is read by a job only, and this is none; give another, such as vocabulary")
    path = Home(home).bank(llm.name, llm.revision, llm.tokens)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            bank = dict(found)
    except FileNotFoundError:
        if others := sorted(path.parents[2].glob(f"{llm.name}@*/*/bank.npz")):
            there = ", ".join(f"{other.parents[1].name} ({other.parent.name})" for other in others)
            raise Conflict(
                f"params.init: the bank is of {there}, and the LLM here is {llm.key} ({llm.tokens}); they are never mixed: {build}"
            ) from None
        raise NotFound(f"params.init: there is no prompt bank of {llm.key} in {home}: {build}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StokerError(f"params.init: {path} cannot be read ({error}); the daemon writes it again when it starts") from None
    if str(bank.get("llm")) != llm.key:
        raise Conflict(f"params.init: {path} is of {bank.get('llm')}, and the LLM here is {llm.key}; they are never mixed: {build}")
    if not len(bank["prompts"]):
        raise NotFound(f"params.init: the prompt bank of {llm.key} is empty: {build}")
    return bank
