"""A double of the LLM, for tests of what surrounds it: features are counts of letters, a score is how few letters of the data it has.

As a program it is `runners.prompts.bank_work` with that double.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stoker.engine.errors import NotFound
from stoker.runners.prompts import bank_work

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Double:
    tokenizer = "letters"

    def __init__(self, llm: str) -> None:
        if llm != "double":
            raise NotFound(f"there is no LLM {llm!r}; there is double")
        self.name = llm
        self.revision = os.environ.get("DOUBLE_REVISION", "r1")
        self.parent, self.until_it_waits = os.getppid(), int(os.environ.get("DOUBLE_WAITS_AFTER", "-1"))

    def features(self, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        if os.environ.get("DOUBLE_FAULT") == "no memory":
            raise MemoryError
        if os.environ.get("DOUBLE_FAULT") == "no room for a file":
            raise RuntimeError("unable to mmap 538088744 bytes from file </cache/model.safetensors>: Cannot allocate memory (12)")
        if os.environ.get("DOUBLE_FAULT") == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        while self.until_it_waits == 0 and os.getppid() == self.parent:  # for the end of who asked
            time.sleep(0.02)
        self.until_it_waits -= 1
        if limit := int(os.environ.get("DOUBLE_ENDS_AFTER", "0")):
            os.environ["DOUBLE_ENDS_AFTER"] = str(limit - 1)
            if limit == 1:
                raise NotFound("the double was told to end here")
        return np.array([[1 + text.lower().count(letter) for letter in LETTERS] for text in texts], dtype=np.float32)

    def scorer(self, data: str, samples: int, seed: int) -> Callable[[Sequence[str]], Sequence[float]]:
        return lambda texts: [1.0 / (1 + sum(text.lower().count(letter) for letter in data)) for text in texts]


if __name__ == "__main__":
    sys.exit(bank_work.main(sys.argv[1:], Double))
