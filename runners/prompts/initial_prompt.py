"""Where a tuning begins: the prompt that the bank gives, a text, tokens of the vocabulary, or numbers.

The bank is used only if 20 % of the time until the deadline is at least the longest time of a lookup (002 ch. 4.4.3.4). 4.5.2 prints the
opposite: a lookup where the budget does *not* surpass its overhead. The thesis takes 20 % of the whole SLO; here it is 20 % of what is left
of it when the job starts.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...engine.errors import NotFound, StokerError, UsageError
from ..backbones.pretrained import Llm
from ..lease.rundir import ENV_RUN_DIR
from ..worker import script
from . import soft_prompt
from .labelled_samples import Samples
from .lookup import LOOKUP_BUDGET, lookup, most_scores, prompts_of, read_bank
from .prompt_score import score

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

TEXT_PREFIX = "text:"  #: prefix of an `init` that is a text
_TELL_EVERY = 5.0  #: seconds between lines of the log during a lookup
_CHOICE_FILE = "initial-prompt.json"  #: beside the checkpoints, so that later attempts of the job begin with the same prompt


@dataclass(frozen=True, slots=True)
class InitialPrompt:
    """The vectors (tokens, hidden) with which a tuning begins, and how they were found."""

    vectors: torch.Tensor
    how: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Chooses the initial prompt of a tuning."""

    llm: Llm
    samples: Samples
    tokens: int
    score_samples: int
    seed: int
    deadline: float | None = None  #: seconds since the epoch
    home: Path | None = None  #: where the daemon keeps the banks
    clock: Callable[[], float] = time.time

    def start(self, init: str, kept: Path) -> InitialPrompt:
        """The start by ``init``; ``kept``: the job's directory of checkpoints."""
        if init == "vocabulary":
            return self._vocabulary()
        if init == "random":
            return InitialPrompt(soft_prompt.of_numbers(self.llm, self.tokens, self.seed), {"init": "random"})
        if init == "bank":
            return self._by_bank(kept / _CHOICE_FILE)
        text = init.removeprefix(TEXT_PREFIX).strip().strip("\"'")
        if not text:
            raise UsageError(f"params.init: no text stands after {TEXT_PREFIX!r}")
        return self._text(text, {"init": "text"})

    def _vocabulary(self, **how: Any) -> InitialPrompt:
        return InitialPrompt(soft_prompt.of_vocabulary(self.llm, self.tokens, self.seed), {"init": "vocabulary", **how})

    def _text(self, text: str, how: Mapping[str, Any], vectors: Sequence[Sequence[float]] | None = None) -> InitialPrompt:
        """``vectors`` (tokens, hidden): of a prompt of the bank that was tuned."""
        prompt = text if vectors is None else np.array(vectors, dtype=np.float32)
        return InitialPrompt(soft_prompt.of_prompt(self.llm, prompt, self.tokens), {**how, "text": text})

    def _by_bank(self, path: Path) -> InitialPrompt:
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
        """Look up a prompt, if there is time. Returns it, or the reason why the bank was not used; both are in the log and in metrics."""
        if self.home is None:
            raise NotFound("params.init: a bank is read by a job only, and this is none; give another, such as vocabulary")
        try:
            bank = read_bank(self.home, self.llm.name, self.llm.name, self.llm.revision, self.llm.tokens)
        except StokerError as error:
            raise type(error)(f"params.init: {error}; or give another params.init, such as vocabulary") from None
        texts, prompts, medoid = bank["prompts"].tolist(), prompts_of(bank), bank["medoid"]
        common, began = self.samples.common(self.score_samples, self.seed), self.clock()
        known: dict[int, float] = {}
        most, told = most_scores(medoid), time.monotonic()

        def scores(rows: Sequence[int]) -> list[float]:
            nonlocal told
            for row in rows:
                if time.monotonic() - told >= _TELL_EVERY:
                    told = time.monotonic()
                    log.info("looking up the initial prompt: %d of at most %d scored", len(known), most)
                if row not in known:
                    known.update(zip([row], score(self.llm, [prompts[row]], common, self.samples.answers, self.tokens), strict=True))
            return [known[row] for row in rows]

        if self.deadline is not None:
            longest, budget = self._time_scores(scores, medoid) * most, LOOKUP_BUDGET * (self.deadline - began)
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
        """Seconds of one score. The second of two is timed, as the first includes work that is done once. The lookup needs both anyway."""
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
