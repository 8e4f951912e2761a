"""Trains the agent offline, on simulated pipelines (003 ch. 4.2): ``python benchmarks/intune_pretrain.py``.

Many random pipelines run side by side, each for an episode: of its own machine, costs and consumer, from an even, a good or any
allocation, with a resize or another cost on the way. The same command makes the same bytes on the same machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from named_pipelines import random_pipeline
from simulated_pipeline import SimulatedPipeline
from stoker.runners.loaders.tuning.controller import Observation, Unit, Values
from stoker.runners.loaders.tuning.controllers.features import LAYOUTS, Encoder, Rows
from stoker.runners.loaders.tuning.controllers.fixed import even_workers
from stoker.runners.loaders.tuning.controllers.q_network import STEPS, Choice, Learning, QAgent, Trail

SIDE_BY_SIDE = 32  #: pipelines at once
EPISODE = 80  #: windows of a pipeline
MOST_EXPLORATION, LEAST_EXPLORATION = 0.5, 0.03  #: a branch explores apart, so at a half hardly any choice is the network's
MOST_KNOBS = 6
SHIPPED_AT = Path(__file__).parent.parent / "runners" / "loaders" / "tuning" / "controllers" / "weights" / "dqn.npz"


@dataclass(slots=True)
class Episode:
    """A pipeline on its way, and what the agent saw of it last."""

    pipeline: SimulatedPipeline
    encoder: Encoder
    trail: Trail
    values: Values
    rows: Rows
    left: int
    upheaval: int  #: windows left when the machine or a cost changes


class Episodes:
    """Random pipelines, one after another. Deterministic in its seed."""

    def __init__(self, layout: str, seed: int, stages: int | None) -> None:
        self._layout, self._stages = layout, stages
        self._rng = np.random.default_rng([seed, 0xE5])
        self._seeds = itertools.count(seed * 1_000_000)

    def begin(self, left: int = EPISODE) -> Episode:
        pipeline = random_pipeline(next(self._seeds), stages=self._stages)
        encoder = Encoder(self._layout)
        first = pipeline.step(pipeline.start)
        encoder.encode(first)
        seen = pipeline.step(self._start(pipeline, first))
        rows, _ = encoder.encode(seen)
        upheaval = int(self._rng.integers(0, 2 * EPISODE))
        return Episode(pipeline, encoder, Trail([], [], []), seen.values, rows, left, upheaval)

    def _start(self, pipeline: SimulatedPipeline, seen: Observation) -> Values:
        kind = self._rng.integers(3)
        if kind == 0:
            workers = even_workers(seen)
        elif kind == 1:
            computing = sum(stage.cpu * stage.per_batch for stage in pipeline.stages)
            rate = min(seen.cpus / computing, pipeline.consumer.batches) * self._rng.uniform(0.6, 1.2)
            workers = {stage.name: math.ceil(rate * (stage.cpu + stage.wait) * stage.per_batch) for stage in pipeline.stages}
        else:
            most = math.log(max(2.0, 2 * seen.cpus))
            workers = {stage.name: round(math.exp(self._rng.uniform(0, most))) for stage in pipeline.stages}
        return tuple(
            knob.clip(workers[knob.stage] if knob.unit is Unit.WORKERS else value * math.exp(self._rng.uniform(-0.7, 2.0)))
            for knob, value in zip(seen.knobs, pipeline.start, strict=True)
        )

    def step(self, episode: Episode, chosen: Choice) -> tuple[Rows, float]:
        """Rows and reward of the window that follows."""
        pipeline = episode.pipeline
        if episode.left == episode.upheaval:
            self._upset(pipeline)
        seen = pipeline.step(tuple(value + STEPS[place] for value, place in zip(episode.values, chosen, strict=True)))
        rows, earned = episode.encoder.encode(seen)
        episode.values, episode.left = seen.values, episode.left - 1
        return rows, earned

    def _upset(self, pipeline: SimulatedPipeline) -> None:
        if self._rng.random() < 0.6:
            factor = 2.0 ** self._rng.choice([-2, -1, 1, 2])
            memory = pipeline.machine.memory * (factor if self._rng.random() < 0.5 else 1.0)
            pipeline.resize(max(2.0, pipeline.machine.cpus * factor), max(int(memory), 2**30))
        else:
            stage = pipeline.stages[self._rng.integers(len(pipeline.stages))]
            pipeline.recost(stage.name, math.exp(self._rng.uniform(-1.2, 1.2)))


@dataclass(frozen=True, slots=True)
class Progress:
    windows: int
    exploration: float
    loss: float
    earned: float  #: mean normalised reward of late


def pretrain(agent: QAgent, windows: int, *, seed: int = 0, stages: int | None = None, updates: int = 2) -> Iterator[Progress]:
    """Trains in place for so many windows of simulated pipelines, with so many updates for every 32; reports each hundredth."""
    episodes = Episodes(agent.layout, seed, stages)
    running = [episodes.begin(1 + place * EPISODE // SIDE_BY_SIDE) for place in range(SIDE_BY_SIDE)]
    rounds = max(1, windows // SIDE_BY_SIDE)
    late_reward = late_loss = 0.0
    for turn in range(rounds):
        exploration = max(LEAST_EXPLORATION, MOST_EXPLORATION * (1.0 - turn / (0.6 * rounds)))
        earned = 0.0
        ends = np.cumsum([len(episode.rows) for episode in running])[:-1]
        choices = np.split(agent.choose(np.concatenate([episode.rows for episode in running]), exploration), ends)
        for place, (episode, chosen) in enumerate(zip(list(running), choices, strict=True)):
            rows, reward = episodes.step(episode, chosen)
            agent.remember(episode.trail, episode.rows, chosen, reward, rows)
            episode.rows = rows
            earned += reward / SIDE_BY_SIDE
            if episode.left == 0:
                running[place] = episodes.begin()
        if agent.replay.size >= 1_000:
            agent.pace(turn / rounds)
            late_loss += 0.02 * (sum(agent.learn() for _ in range(updates)) / updates - late_loss)
        late_reward += 0.02 * (earned - late_reward)
        if (turn + 1) % max(1, rounds // 100) == 0:
            yield Progress((turn + 1) * SIDE_BY_SIDE, exploration, late_loss, late_reward)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks/intune_pretrain.py", description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, help="only pipelines of so many stages (the paper's way); default: of 2 to 6")
    parser.add_argument("--windows", type=int, default=160_000, help="of simulated pipelines (%(default)s)")
    parser.add_argument("--updates", type=int, default=3, help=f"for every {SIDE_BY_SIDE} windows (%(default)s)")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="stages", help="what the agent sees (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=SHIPPED_AT, help="the weights (%(default)s)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the sums' order, hence the bytes, would depend on the machine's cores
    agent = QAgent(given.layout, Learning(), knobs=MOST_KNOBS, seed=given.seed)
    for progress in pretrain(agent, given.windows, seed=given.seed, stages=given.stages, updates=given.updates):
        sys.stderr.write(
            f"\r{progress.windows:>9,} windows  exploration {progress.exploration:.2f}  loss {progress.loss:.3f}  "
            f"reward {progress.earned:+.3f}  {time.process_time():.0f} s of CPU "
        )
    recipe = {key: getattr(given, key) for key in ("stages", "windows", "updates", "seed")}
    agent.save(given.out, recipe)
    sys.stderr.write(f"\n{given.out}: {given.out.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
