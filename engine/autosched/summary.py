"""What a search found, as an object of JSON: for commands, the API and the table `tunings`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...policies.autosched.search import ALIKE, LEAST_PROOF
from .search_process import Answer, Request


def summary_of(answer: Answer, request: Request) -> dict[str, Any]:
    """The configuration in force beside the best, the predicted gain, and how it was searched."""
    policy, found, space = request.situation.policy, answer.found, request.space
    parts = {one.name: one for one in space.parts}
    keys = [
        {
            "key": name,
            "before": found.in_force[name],
            "after": found.best[name],
            "remark": ", ".join(
                words
                for words, so in (
                    ("not in use", not space.in_use(parts[name], found.best)),
                    ("fixed by what-if analysis", name in found.fixed),
                    (f"as {found.as_counts.get(name)} {name}: more hold nobody", name in found.as_counts),
                )
                if so
            ),
        }
        for name in found.in_force
        if name in parts
    ]
    failures = Counter(trial.why for trial in found.trials if trial.outcome == "failed")
    model = _of_model(answer)
    edges = answer.model.edges() if answer.model else []
    return {
        "policy": policy,
        "objective": request.objective,
        "before": dict(found.in_force),
        "after": dict(found.best),
        "keys": keys,
        "gain": found.gain,
        "alike": _are_alike(answer),
        "objective_before": getattr(found.reference, request.objective),
        "objective_after": getattr(found.figures, request.objective),
        "expected": found.reference.soon,
        "asked_trials": request.trials,
        "trials": len(found.trials),
        "simulated_trials": found.count("simulated"),
        "rejected": found.count("rejected"),
        "known": found.count("known"),
        "failed": found.count("failed"),
        "failures": [{"why": why, "trials": count} for why, count in failures.most_common()],
        "durations": answer.durations,
        "stopped": found.stopped,
        "fixed": found.fixed,
        "as_counts": dict(found.as_counts),
        "model": model,
        "causes": [list(edge) for edge in edges],
        "jobs": len(request.situation.view.jobs),
        "seconds": found.seconds,
    }


def _are_alike(answer: Answer) -> bool:
    """Whether all that was simulated came to the same, as it does where nobody waits."""
    rewards = [trial.reward for trial in answer.found.trials if trial.outcome == "simulated" and trial.reward is not None]
    return len(rewards) > 1 and max(rewards) - min(rewards) < ALIKE


def _of_model(answer: Answer) -> str:
    """What it was learnt from, and whether it has proved itself: one that has not rejects nothing."""
    if not answer.model:
        return f"none{': ' if answer.words else ''}{answer.words}; nothing was rejected"
    found = answer.found.agreement
    if found is None:
        return f"{answer.words}; it was not judged, as fewer than {LEAST_PROOF} trials were simulated, and rejected nothing"
    right = f"{answer.words}; of two trials it named the better one in {(1 + found) / 2:.0%} of the pairs"
    return right if answer.found.count("rejected") else f"{right}, and rejected nothing"
