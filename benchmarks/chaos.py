"""Crash test, the long run: kill -9 whatever there is, under load, and look from the outside at what is left.

   python benchmarks/chaos.py [--rounds 200] [--seed 1] [--slots 4] [--warm] [--directory DIR]

A real daemon, two real runners, real jobs (gangs, preemption, dependencies, retries, cancellations, training, and some that write what
cannot be read into their run directories). Each round kills the
daemon, a runner, a supervisor, a worker, or two of them at once at a random moment, restarts what was killed, and goes on; or the
daemon's disk is full for a while; or its log is cut, emptied, removed or flipped, which it must notice before it is put back. At the
end everything runs out, is stopped, and is examined: see tests/chaos_checks.py for what must hold. Exit code 1 and the directory
kept when something does not.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from chaos_support import ACTS, Chaos, Violation, quiet_environment


def percentile(sample: list[float], share: float) -> float:
    return sorted(sample)[min(len(sample) - 1, int(share * len(sample)))]


def run(chaos: Chaos, rounds: int) -> list[str]:
    """Rounds, then the end; answers with what is wrong."""
    for number in range(1, rounds + 1):
        said = chaos.round()
        jobs = ", ".join(f"{count} {state}" for state, count in sorted(chaos.counts().items()))
        print(f"round {number:3}/{rounds}  {said}  [{jobs}]", flush=True)
    print("letting everything end", flush=True)
    chaos.settle()
    return chaos.examine()


def summarise(chaos: Chaos, rounds: int, seconds: float) -> None:
    kinds = Counter(accepted.kind for accepted in chaos.ledger.accepted.values())
    words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    print(f"\n{rounds} rounds in {seconds:.0f} s\n{kinds.total()} jobs acknowledged: {words}")
    for line in chaos.facts():
        print(line)
    print(f"\n{'recovery (s)':34}{'n':>5}{'p50':>8}{'p99':>8}{'max':>8}")
    for name, sample in chaos.recoveries():
        if sample:
            print(f"{name:34}{len(sample):5}{percentile(sample, 0.5):8.2f}{percentile(sample, 0.99):8.2f}{max(sample):8.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of what is killed and submitted; moments differ from run to run (default: a random one)")
    parser.add_argument("--slots", type=int, default=4, help="CPU slots, half of them on each of two runners")
    parser.add_argument("--trainings", type=float, default=0.03, help="share of jobs that train with torch, which costs seconds of CPU")
    parser.add_argument("--warm", action="store_true", help="trainings start by a fork; their servers are killed and stopped as well")
    parser.add_argument("--acts", nargs="+", choices=list(ACTS), metavar="ACT", help=f"do these only: {', '.join(ACTS)} (default: all)")
    parser.add_argument("--directory", type=Path, help="where to work; must not exist (default: a temporary one)")
    options = parser.parse_args()
    if options.slots < 4 or options.slots % 2:
        parser.error(f"--slots {options.slots}: give an even number, 4 or more: gangs of two and of all but one slot must fit")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    directory = options.directory or Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.mkdir(exist_ok=options.directory is None)
    quiet_environment()
    print(f"seed {seed}, in {directory}", flush=True)
    began = time.monotonic()
    acts = options.acts or list(ACTS)
    with Chaos(directory, seed, slots=options.slots, trainings=options.trainings, acts=acts, warm=options.warm) as chaos:
        try:
            wrong = run(chaos, options.rounds)
            summarise(chaos, options.rounds, time.monotonic() - began)
        except (Violation, AssertionError) as error:
            wrong = [str(error)]
    if wrong:
        print(f"\n{len(wrong)} VIOLATIONS (seed {seed}; everything is kept in {directory}):")
        print("\n".join(wrong))
        return 1
    print("\nnothing lost, nothing twice, nothing left")
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
