"""What a lookup in two layers keeps of the flat scan's score, and how many scores it needs for it (002 ch. 4.4.3.2, fig. 4.9).

    python benchmarks/lookups.py [--llm smollm2-135m] [--task sms-spam] [--bank 505] [--clusters 22 50] --from FILE.jsonl
                                 [--keep FILE.jsonl]

All prompts of a bank are scored by equation 4.1 on 16 training samples of the task, whose own prompts are left out; then the bank is
clustered with each K. "kept": how far the choice is from the mean score of the bank (0) to the best of all (1). "place": that of the choice
among all. "in the mean": scores of a lookup over prompts of the bank as what is looked for. Beside it, means of 1 000 draws: the best of as
many random prompts, and lookups in as many shuffled clusters of the same sizes. --keep: a file of scores, so that a later run goes on from
there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, machine, progress, show
from prompts import MAX_TOKENS, SAMPLES, TOKENS, candidates, keep, kept, relabelled
from stoker.engine.prompts.clusters import cosine_distances, k_medoids
from stoker.runners.backbones.pretrained import Llm, load_llm
from stoker.runners.prompts.activations import features
from stoker.runners.prompts.labelled_samples import load_samples
from stoker.runners.prompts.lookup import lookup
from stoker.runners.prompts.prompt_score import score

DRAWS = 1000
AT_ONCE = 16  #: prompts that are scored between two writes


def scores_of(llm: Llm, task: str, texts: Sequence[str], path: Path | None) -> np.ndarray[Any, np.dtype[np.float64]]:
    known: dict[str, float] = kept(path)
    samples = load_samples(llm, task, max_tokens=MAX_TOKENS, prompt_tokens=TOKENS)
    common, keys = samples.common(SAMPLES, 0), {text: json.dumps([llm.key, task, text]) for text in texts}
    todo = [text for text in texts if keys[text] not in known]
    for begin in range(0, len(todo), AT_ONCE):
        progress(f"{task}: {begin} of {len(todo)} prompts are scored")
        some = todo[begin : begin + AT_ONCE]
        found = dict(zip((keys[text] for text in some), score(llm, some, common, samples.answers, TOKENS), strict=True))
        known |= found
        keep(path, found)
    return np.array([known[keys[text]] for text in texts])


def row_of(task: str, scores: Any, distances: Any, k: int) -> dict[str, Any]:
    clusters, draw = k_medoids(distances, min(k, len(scores))), np.random.default_rng(0)

    def look(member: Any) -> tuple[float, int]:
        found = lookup(member.astype(np.int32), lambda rows: scores[list(rows)].tolist())
        return found[0].score, len(found)

    best, needed = look(clusters.member)
    mean, least = float(scores.mean()), float(scores.min())
    random = [scores[draw.choice(len(scores), needed, replace=False)].min() for _ in range(DRAWS)]
    shuffled = [look(clusters.member[relabelled(clusters.member, draw)])[0] for _ in range(DRAWS)]
    kept = {"kept": best, "kept, random": float(np.mean(random)), "kept, shuffled": float(np.mean(shuffled))}
    return {
        "task": task, "prompts": len(scores), "K": k, "scores": needed, "in the mean": clusters.scores,
        "fewer": len(scores) / clusters.scores, "score, lookup": best, "score, flat": least, "score, mean": mean,
        **{name: (mean - value) / (mean - least) for name, value in kept.items()}, "place": int((scores < best).sum()) + 1,
    }  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--task", default="sms-spam")
    parser.add_argument("--bank", type=int, default=505, help="prompts")
    parser.add_argument("--clusters", type=int, nargs="+", default=[22, 50], metavar="K")
    parser.add_argument("--from", dest="prompts_from", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--keep", type=Path, metavar="FILE.jsonl")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    began, llm = machine(), load_llm(options.llm)
    texts = [prompt.text for prompt in candidates(options, [options.task])]
    scores = scores_of(llm, options.task, texts, options.keep)
    progress(f"features of {len(texts)} prompts")
    distances = cosine_distances(features(llm, texts))
    show(options, began, {"A lookup beside the flat scan": [row_of(options.task, scores, distances, k) for k in options.clusters]})


if __name__ == "__main__":
    main()
