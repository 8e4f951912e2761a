"""Whether initial prompts matter on our LLM (002 fig. 4.2c), and what the prompt bank is worth beside other starts (fig. 4.9, 4.6.3).

    python benchmarks/prompts.py [--llm smollm2-135m] [--tasks bbc sms-spam trec] [--prompts 8] [--bank 120] [--steps 24] [--orders 1]
                                 --from FILE.jsonl [--keep FILE.jsonl]

Per task: candidates are prompts of --from, which examples/packaged_prompts.py writes (--bank of them, of each task in turn), without those
that were written for the task itself. All are scored by equation 4.1, on 16 training samples; two layers are found by K-medoids of their
features. Then tunings begin with: the lookup's choice, --prompts random candidates, the best-scored of as many random ones as the lookup
scores, the choice of a lookup in shuffled clusters, the flat scan's choice, and words of the vocabulary.

ITA is the number of steps until the held-out loss is at or below a target at two looks running. Targets are fixed beforehand, on
two other random candidates: 75 and 90 % of the way from the loss that they begin with to the least that they reach, in the mean. "ideal" is
the least ITA of all prompts that were tuned (4.6.1 takes the best of 20 that are shortlisted by score). A run that does not get there
counts as one step more than it has, and is counted as "not reached". Orders: of the batches; an ITA is the mean over them.
"Tuned": prompts that were tuned on each other task, --steps long from its lookup's choice, as `stoker prompt bank add --job` puts them into
the bank: whether a lookup would take them, and their ITA.
--keep: a file in which each loss curve is kept, so that a later run with the same settings goes on from there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, machine, progress, show
from stoker.engine.prompts.clusters import Clusters, cosine_distances, count_for, k_medoids
from stoker.engine.prompts.prompt_lines import PromptText, from_file, spread
from stoker.runners.backbones.pretrained import Llm, load_llm
from stoker.runners.prompts import soft_prompt
from stoker.runners.prompts.activations import features
from stoker.runners.prompts.labelled_samples import Samples, batch_of, load_samples
from stoker.runners.prompts.lookup import lookup
from stoker.runners.prompts.prompt_score import score

Row = dict[str, Any]
SAMPLES = 16  #: that a prompt is scored on (002 ch. 4.4.3.2)
TOKENS, BATCH, LR, MAX_TOKENS, HELD_OUT = 12, 4, 5e-3, 32, 32
PILOTS, GOALS = 2, (0.75, 0.9)
VOCABULARY = "(vocabulary)"
#: words of the names of tasks whose prompts are a data set's own
OWN = {"bbc": ("bbc", "news"), "sms-spam": ("sms", "spam"), "trec": ("trec",)}


def kept(path: Path | None) -> dict[str, Any]:
    """What earlier runs have found, by key."""
    found: dict[str, Any] = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        found |= json.loads(line)
    return found


def keep(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")


class Curves:
    """Held-out losses of tunings, by task, prompt and order; kept in a file."""

    def __init__(self, llm: Llm, steps: int, path: Path | None) -> None:
        self.llm, self.steps, self.path = llm, steps, path
        self.known: dict[str, list[list[float]]] = kept(path)

    def of(self, task: str, samples: Samples, prompt: str, order: int, vectors: torch.Tensor | None = None) -> list[list[float]]:
        """[step, loss] at steps 0, 1, 2, 4, 6, … ``vectors``: what the tuning begins with, None: with the prompt."""
        key = json.dumps([self.llm.key, task, prompt, order, self.steps])
        if key not in self.known:
            self.known[key] = list(self._tune(samples, self.begin(prompt, order) if vectors is None else vectors, order))
            keep(self.path, {key: self.known[key]})
        return self.known[key]

    def begin(self, prompt: str, seed: int) -> torch.Tensor:
        return soft_prompt.of_vocabulary(self.llm, TOKENS, seed) if prompt == VOCABULARY else soft_prompt.of_text(self.llm, prompt, TOKENS)

    def _tune(self, samples: Samples, vectors: torch.Tensor, order: int) -> Iterator[list[float]]:
        held_out = batch_of(samples.held_out[:HELD_OUT])
        for step, model in enumerate(self.steps_of(samples, vectors, order)):
            if step < 3 or step % 2 == 0:
                with torch.no_grad():
                    yield [step, float(soft_prompt.loss(model, held_out))]

    def steps_of(self, samples: Samples, vectors: torch.Tensor, order: int) -> Iterator[soft_prompt.SoftPrompt]:
        """The prompt before the first step, and after each."""
        draw = torch.Generator().manual_seed(order)
        model = soft_prompt.SoftPrompt(self.llm, vectors, samples.answers)
        optimizer = torch.optim.AdamW([model.prompt], lr=LR, weight_decay=0.0)
        yield model
        for _ in range(self.steps):
            rows = torch.randint(len(samples.train), (BATCH,), generator=draw).tolist()
            optimizer.zero_grad()
            soft_prompt.loss(model, batch_of([samples.train[row] for row in rows])).backward()
            optimizer.step()
            yield model


def ita(curve: Sequence[Sequence[float]], target: float) -> int | None:
    """The first step at which the loss is at the target and is so at the next look too; None: it never is."""
    met = [loss <= target for _, loss in curve]
    return next((int(curve[i][0]) for i in range(len(met)) if met[i] and (i + 1 == len(met) or met[i + 1])), None)


def candidates(options: Any, tasks: Sequence[str]) -> list[PromptText]:
    found = from_file(options.prompts_from)
    own = {word for task in tasks for word in OWN.get(task, (task,))}
    return spread([each for each in found if not any(word in (each.task or "").lower() for word in own)], options.bank)


class Task:
    """One data set: scores of all candidates, what each way of choosing chooses, and the tunings."""

    def __init__(self, name: str, llm: Llm, texts: list[str], clusters: Clusters, curves: Curves, options: Any) -> None:
        self.name, self.llm, self.texts, self.curves, self.options = name, llm, texts, curves, options
        self.samples = load_samples(llm, name, max_tokens=MAX_TOKENS, prompt_tokens=TOKENS)
        progress(f"{name}: scoring {len(texts)} prompts")
        began = time.process_time()
        self.scores = score(llm, texts, self.samples.common(SAMPLES, 0), self.samples.answers, TOKENS)
        self.score_s = (time.process_time() - began) / len(texts)
        draw = np.random.default_rng(1)
        self.order = draw.permutation(len(texts)).tolist()  # pilots, then the random ones
        self.lookup, self.lookups = self._look(clusters.member)
        self.shuffled, _ = self._look(clusters.member[relabelled(clusters.member, draw)])

    def _look(self, member: Any) -> tuple[int, int]:
        found = lookup(np.asarray(member, dtype=np.int32), lambda rows: [self.scores[row] for row in rows])
        return found[0].row, len(found)

    def chosen(self) -> dict[str, list[str]]:
        """Prompts of each way of choosing; of random ones several."""
        random = self.order[PILOTS:]
        best_of = min(random[: self.lookups], key=lambda row: self.scores[row])
        flat = int(np.argmin(self.scores))
        rows = {"bank": [self.lookup], "flat scan": [flat], "shuffled clusters": [self.shuffled], "best of as many random": [best_of],
                "random": random[: self.options.prompts]}  # fmt: skip
        return {way: [self.texts[row] for row in some] for way, some in rows.items()} | {"vocabulary": [VOCABULARY]}

    def curve(self, prompt: str, order: int) -> list[list[float]]:
        progress(f"{self.name}: order {order}: {prompt[:60]}")
        return self.curves.of(self.name, self.samples, prompt, order)

    def targets(self) -> list[float]:
        pilots = [[loss for _, loss in self.curve(self.texts[row], 0)] for row in self.order[:PILOTS]]
        begin, least = (float(np.mean([pick(losses) for losses in pilots])) for pick in (lambda losses: losses[0], min))
        return [begin - goal * (begin - least) for goal in GOALS]

    def rows(self) -> tuple[list[Row], list[Row], Row]:
        """The precondition, the ways, and what a lookup costs."""
        chosen, targets, orders = self.chosen(), self.targets(), range(self.options.orders)
        prompts = list(dict.fromkeys(prompt for some in chosen.values() for prompt in some))
        before, ways = [], []
        for prompt in prompts:
            for order in orders:
                self.curve(prompt, order)
        step_s = self._tune(chosen["bank"][0])
        by_goal = {goal: self._itas(prompts, target, orders) for goal, target in zip(GOALS, targets, strict=True)}
        for goal, target in zip(GOALS, targets, strict=True):
            steps, missed = by_goal[goal]
            random = [steps[prompt] for prompt in chosen["random"]]
            named = [self.scores[self.texts.index(prompt)] for prompt in chosen["random"]]
            least = max(min(random), 1.0)
            before.append({
                "task": self.name, "goal": f"{goal:.0%}", "target loss": target, "prompts": len(random), "least ITA": min(random),
                "median / least": float(np.median(random)) / least, "most / least": max(random) / least,
                "spearman with score": _spearman(named, random), "not reached": sum(missed[prompt] for prompt in chosen["random"]),
            })  # fmt: skip
            ideal = min(steps.values())
            for way, some in chosen.items():
                mean = float(np.mean([steps[prompt] for prompt in some]))
                ways.append({
                    "task": self.name, "goal": f"{goal:.0%}", "start": way, "ITA": mean, "ITA / ideal": mean / max(ideal, 1.0),
                    "not reached": sum(missed[prompt] for prompt in some),
                })  # fmt: skip
        saved = float(np.mean([by_goal[GOALS[-1]][0][prompt] for prompt in chosen["random"]])) - by_goal[GOALS[-1]][0][chosen["bank"][0]]
        cost = {"task": self.name, "prompts": len(self.texts), "scored": self.lookups, "fewer": len(self.texts) / self.lookups,
                "score, lookup": self.scores[self.lookup], "score, flat": min(self.scores), "score, mean": float(np.mean(self.scores)),
                "lookup CPU s": self.lookups * self.score_s, "step CPU s": step_s, "saved CPU s": saved * step_s}  # fmt: skip
        return before, ways, cost

    def _tune(self, prompt: str) -> float:
        """Tune from this prompt without looking at its loss, and keep what comes of it; seconds of processor time that a step takes."""
        steps = self.curves.steps_of(self.samples, self.curves.begin(prompt, 0), 0)
        next(steps), next(steps)  # the first waits for what is set up once
        began = time.process_time()
        for model in steps:
            self.tuned = model.prompt.detach()
        return (time.process_time() - began) / max(1, self.curves.steps - 1)

    def beside_tuned(self, others: Sequence[Task]) -> list[Row]:
        """Prompts that were tuned on other tasks, beside the lookup's choice."""
        rows, orders = [], range(self.options.orders)
        own = [self.curve(self.texts[self.lookup], order) for order in orders]
        for other in others:
            (worth,) = score(self.llm, [other.tuned.numpy()], self.samples.common(SAMPLES, 0), self.samples.answers, TOKENS)
            name = f"(tuned on {other.name})"
            progress(f"{self.name}: {name}")
            curves = [self.curves.of(self.name, self.samples, name, order, other.tuned) for order in orders]
            for goal, target in zip(GOALS, self.targets(), strict=True):
                both = [[ita(curve, target) for curve in some] for some in (curves, own)]
                steps = [float(np.mean([self.curves.steps + 1 if one is None else one for one in some])) for some in both]
                rows.append({
                    "task": self.name, "goal": f"{goal:.0%}", "tuned on": other.name, "score": worth,
                    "lookup's score": self.scores[self.lookup], "taken": "yes" if worth < self.scores[self.lookup] else "no",
                    "ITA": steps[0], "lookup's ITA": steps[1],
                })  # fmt: skip
        return rows

    def _itas(self, prompts: Sequence[str], target: float, orders: range) -> tuple[dict[str, float], dict[str, int]]:
        steps, missed = {}, {}
        for prompt in prompts:
            found = [ita(self.curve(prompt, order), target) for order in orders]
            steps[prompt] = float(np.mean([self.curves.steps + 1 if one is None else one for one in found]))
            missed[prompt] = sum(one is None for one in found)
        return steps, missed


def relabelled(member: Any, draw: np.random.Generator) -> Any:
    """A permutation of rows that leaves representatives in place, so that members come to other clusters."""
    rows = np.arange(len(member))
    others = np.flatnonzero(member != rows)
    rows[others] = draw.permutation(others)
    return rows


def _spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks; 0 where one side is all equal."""
    ranks = [np.array([np.mean([sorted(values).index(value), len(values) - 1 - sorted(values)[::-1].index(value)]) for value in values])
             for values in (first, second)]  # fmt: skip
    return float(np.corrcoef(*ranks)[0, 1]) if all(np.ptp(rank) for rank in ranks) else 0.0


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--llm", default="smollm2-135m")
    parser.add_argument("--tasks", nargs="+", default=["bbc", "sms-spam", "trec"])
    parser.add_argument("--prompts", type=int, default=8, help="random ones, 20 in the thesis")
    parser.add_argument("--bank", type=int, default=120, help="candidates")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--orders", type=int, default=1, help="of batches")
    parser.add_argument("--from", dest="prompts_from", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--keep", type=Path, metavar="FILE.jsonl")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    began, llm = machine(), load_llm(options.llm)
    texts = [prompt.text for prompt in candidates(options, options.tasks)]
    progress(f"features of {len(texts)} prompts")
    clusters = k_medoids(cosine_distances(features(llm, texts)), count_for(len(texts)))
    curves = Curves(llm, options.steps, options.keep)
    tables: dict[str, list[Row]] = {
        "Whether initial prompts matter (fig. 4.2c)": [],
        "Iterations to the target, by start": [],
        "Lookup": [],
        "Tuned": [],
    }
    tasks = [Task(name, llm, texts, clusters, curves, options) for name in options.tasks]
    for task in tasks:
        before, ways, cost = task.rows()
        for rows, more in zip(tables.values(), (before, ways, [cost], []), strict=True):
            rows.extend(more)
        if options.keep is not None:
            options.keep.with_suffix(".tables.json").write_text(json.dumps(tables, indent=1))
    for task in tasks:
        tables["Tuned"] += task.beside_tuned([other for other in tasks if other is not task])
    show(options, began, {title: rows for title, rows in tables.items() if rows})  # a single task has no other's tuned prompts


if __name__ == "__main__":
    main()
