"""The agent: what it sees, what it remembers, that it learns, its weights file, and how it steers alone and behind another controller."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import intune_pretrain as pretrain
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from named_pipelines import criteo, random_pipeline
from pipeline_oracle import oracle
from simulated_pipeline import Machine, SimulatedPipeline, Stage
from stoker.engine.errors import UsageError
from stoker.runners.loaders.tuning.controller import Controller, Decision, Observation, Values, reward
from stoker.runners.loaders.tuning.controllers.dqn import Dqn, DqnOptions, RateDqn, RateDqnOptions
from stoker.runners.loaders.tuning.controllers.features import LAYOUTS, WIDTHS, WORST_REWARD, Encoder, Rows
from stoker.runners.loaders.tuning.controllers.fixed import Uniform
from stoker.runners.loaders.tuning.controllers.pilot import FIRST_UPDATE_AFTER, taken
from stoker.runners.loaders.tuning.controllers.q_network import STAY, STEPS, Choice, Learning, QAgent, Trail
from stoker.runners.loaders.tuning.known_controllers import create

steady = settings(max_examples=30)
UP, DOWN = STEPS.index(5), STEPS.index(-5)


pytestmark = pytest.mark.usefixtures("one_thread")


def small(seed: int = 0, noise: float = 0.0, clashing: float = 0.0) -> SimulatedPipeline:
    """A stage that computes and one that is nothing; 16 cores."""
    stages = (Stage("work", cpu=0.1, coherency=clashing, worker_bytes=1e6), Stage("batch", cpu=1e-4))
    return SimulatedPipeline(stages, Machine(16, 2**30, process_bytes=0), batch_size=8, noise=noise, window=1.0, seed=seed)


# -- what it sees


@steady
@given(st.integers(0, 10_000), st.lists(st.integers(1, 300), min_size=6, max_size=6), st.sampled_from(sorted(LAYOUTS)))
def test_every_number_that_it_sees_is_finite_and_small(seed: int, values: list[int], layout: str) -> None:
    pipe, encoder = random_pipeline(seed), Encoder(layout)
    for wanted in (pipe.start, tuple(values[: len(pipe.knobs)]), pipe.start, tuple(reversed(values[: len(pipe.knobs)]))):
        rows, earned = encoder.encode(pipe.step(wanted))
        assert rows.shape == (len(pipe.knobs), WIDTHS[layout])
        assert rows.dtype == np.float32
        assert np.isfinite(rows).all()
        assert np.abs(rows).max() < 5
        assert WORST_REWARD <= earned <= 1


def test_the_normalised_reward_counts_ratios_and_a_dead_pipeline_is_the_worst() -> None:
    pipe, encoder = small(), Encoder()
    once, twice = (encoder.encode(pipe.step((workers, 1)))[1] for workers in (2, 4))
    assert twice - once == pytest.approx(math.log(2), rel=0.05)
    assert encoder.encode(pipe.step((512, 1)))[1] > WORST_REWARD
    pipe.resize(memory=2**20)
    assert encoder.encode(pipe.step((1024, 1)))[1] == WORST_REWARD


def test_harm_that_workers_do_to_one_another_does_not_raise_the_normalised_reward() -> None:
    pipe, encoder = small(clashing=0.02), Encoder()
    few, many = (encoder.encode(pipe.step((workers, 1)))[1] for workers in (7, 14))
    assert many < few


def test_the_stages_layout_tells_the_bottleneck_and_the_papers_does_not() -> None:
    rows = {layout: Encoder(layout).encode(small().step((4, 4)))[0] for layout in LAYOUTS}
    state = WIDTHS["table2"] - 8
    assert (rows["table2"][0, :state] == rows["table2"][1, :state]).all()
    assert (rows["stages"][0] != rows["stages"][1]).any()


# -- how it learns


def test_a_transition_sums_the_discounted_rewards_of_the_windows_ahead() -> None:
    agent = QAgent(learning=Learning(ahead=3, discount=0.5), knobs=2)
    trail = Trail([], [], [])
    rows = [np.full((2, WIDTHS["stages"]), number, np.float32) for number in range(5)]
    for number, earned in enumerate((1.0, 2.0, 4.0, 8.0)):
        agent.remember(trail, rows[number], np.array([number, 0]), earned, rows[number + 1])
    assert agent.replay.size == 2
    assert agent.replay.earned[:2].tolist() == [1 + 1 + 1, 2 + 2 + 2]
    assert agent.replay.rows[:2, 0, 0].tolist() == [0, 1]
    assert agent.replay.after[:2, 0, 0].tolist() == [3, 4]
    assert agent.replay.chosen[:2, 0].tolist() == [0, 1]


def test_it_learns_which_step_a_row_asks_for() -> None:
    """A world without a later: +5 is right where the first number is positive, -5 where it is not, for each knob apart."""
    agent = QAgent(learning=Learning(hidden=32, rate=3e-3, batch=64, discount=0.0, ahead=1), knobs=3, seed=1)
    rng, trail = np.random.default_rng(0), Trail([], [], [])

    def draw() -> Rows:
        return rng.uniform(-1, 1, (3, WIDTHS["stages"])).astype(np.float32)

    def right(rows: Rows) -> Choice:
        return np.where(rows[:, 0] > 0, UP, DOWN)

    for _ in range(3000):
        rows, chosen = draw(), rng.integers(0, len(STEPS), 3)
        agent.remember(trail, rows, chosen, float((chosen == right(rows)).mean()), rows)
    for _ in range(300):
        agent.learn()
    tests = [draw() for _ in range(100)]
    assert np.mean([(agent.choose(rows) == right(rows)).mean() for rows in tests]) > 0.8  # by chance: 0.2


def test_a_shorter_pipeline_does_not_see_the_rows_that_fill_it_up() -> None:
    agent = QAgent(knobs=6)
    rows = torch.randn(1, 6, WIDTHS["stages"])
    present = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    noise = rows + 100 * (1 - present).unsqueeze(-1)
    assert torch.equal(agent.network(rows, present)[:, :2], agent.network(noise, present)[:, :2])


def test_exploration_is_random_and_the_training_jobs_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    agent = QAgent(knobs=2, seed=3)
    rows = np.zeros((2, WIDTHS["stages"]), np.float32)
    assert len({tuple(agent.choose(rows)) for _ in range(50)}) == 1
    assert len({tuple(agent.choose(rows, 1.0)) for _ in range(200)}) > 15
    assert torch.equal(before, torch.get_rng_state())


def test_what_really_happened_is_learned_and_not_what_was_wanted() -> None:
    assert [STEPS[place] for place in taken((10, 10, 10, 10), (15, 10, 8, 11))] == [5, 0, -1, 1]


# -- weights


def test_weights_come_back_as_they_were_and_are_the_same_bytes(tmp_path: Path) -> None:
    agent = QAgent(knobs=2, seed=7)
    for name in ("a", "b"):
        agent.save(tmp_path / name, {"seed": 7})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    other = QAgent(knobs=4, seed=8)
    other.load(tmp_path / "a")
    assert other.recipe == {"seed": 7}
    assert all(torch.equal(mine, its) for mine, its in zip(agent.network.parameters(), other.network.parameters(), strict=True))


def _with_about(path: Path, **changes: object) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(arrays["about"].tobytes()) | changes
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with path.open("wb") as out:
        np.savez(out, **arrays)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(b"PK nothing"), "not a file of this agent's weights"),
        (lambda path: path.write_bytes(path.read_bytes()[:2000]), "not a file of this agent's weights"),
        (lambda path: path.write_bytes(_plain()), "not a file of this agent's weights"),
        (lambda path: _with_about(path, version=99), "has version 99, this agent needs"),
        (lambda path: _with_about(path, layout="table2"), "has layout 'table2', this agent needs 'stages'"),
        (lambda path: _with_about(path, steps=[-1, 0, 1]), "has steps"),
        (lambda path: QAgent(learning=Learning(hidden=8), knobs=1).save(path, {}), "has hidden 8"),
    ],
    ids=["missing", "garbage", "cut", "no recipe", "version", "layout", "steps", "hidden"],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "weights.npz"
    QAgent(knobs=2).save(path, {})
    spoil(path)
    with pytest.raises(UsageError, match=words) as refused:
        QAgent(knobs=2).load(path)
    assert "pretrain" in str(refused.value)
    assert "\n" not in str(refused.value)


def _plain() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    return file.getvalue()


def test_pretraining_is_the_same_bytes_for_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        pretrain.main(["--windows", "1300", "--updates", "1", "--stages", "3", "--seed", seed, "--out", str(tmp_path / name)])
    first, second, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == second != other
    assert "windows" in capsys.readouterr().err
    agent = QAgent(knobs=3)
    agent.load(tmp_path / "a")
    assert agent.recipe == {"stages": 3, "windows": 1300, "updates": 1, "seed": 1}


# -- at the helm


def run(pipe: SimulatedPipeline, controller: Controller, windows: int) -> list[float]:
    """Reward of each window."""
    seen, earned = pipe.step(pipe.start), []
    for _ in range(windows):
        seen = pipe.step(controller.decide(seen).values)
        earned.append(reward(seen))
    return earned


def test_the_shipped_agent_is_small_and_does_better_than_an_even_division_where_it_has_never_been() -> None:
    agent = QAgent(knobs=6)
    agent.load()
    assert agent.recipe["windows"] >= 100_000
    assert sum(path.stat().st_size for path in pretrain.SHIPPED_AT.parent.glob("*.npz")) < 200_000
    shares: dict[str, list[float]] = {"dqn": [], "uniform": []}
    for seed in range(500_000_000, 500_000_004):  # pre-training draws from 0 up
        best = oracle(random_pipeline(seed)).reward
        for name, into in shares.items():
            into.append(sum(run(random_pipeline(seed), create(name), 60)[30:]) / 30 / best)
    assert np.mean(shares["dqn"]) > 0.75
    assert np.mean(shares["dqn"]) > np.mean(shares["uniform"]) + 0.2


def test_it_begins_with_the_even_division_and_then_takes_steps_of_five_at_most() -> None:
    pipe, agent = criteo(32), Dqn(DqnOptions())
    seen = pipe.step(pipe.start)
    begun = agent.decide(seen)
    assert begun.values == Uniform(Uniform.Options()).decide(seen).values
    for _ in range(20):
        before = pipe.step(begun.values)
        begun = agent.decide(before)
        assert all(abs(new - old) <= 5 for new, old in zip(begun.values, before.values, strict=True))
        assert all(knob.low <= value <= knob.high for knob, value in zip(before.knobs, begun.values, strict=True))


def test_it_learns_while_it_runs_unless_told_not_to_and_says_what_it_does() -> None:
    def weights(controller: Dqn) -> list[torch.Tensor]:
        assert controller._pilot is not None
        return [each.clone() for each in controller._pilot.agent.network.parameters()]

    learning, fixed = Dqn(DqnOptions()), Dqn(DqnOptions(learn=False))
    for controller in (learning, fixed):
        run(criteo(32), controller, 80)
    assert any(not torch.equal(mine, its) for mine, its in zip(weights(learning), weights(fixed), strict=True))
    assert learning._pilot is not None and 0 < learning._pilot.agent.updates <= 80 - FIRST_UPDATE_AFTER
    decision = Dqn(DqnOptions(pretrained=False, exploring=10, table2=True))
    pipe = criteo(32)
    words = {decision.decide(pipe.step(pipe.values)).why for _ in range(10)}
    assert "begins with the cores divided evenly" in words
    assert any("+5" in each or "-5" in each for each in words)


@pytest.mark.parametrize("name", ["dqn", "rate+dqn"])
def test_it_steers_a_pipeline_whose_prefetch_has_no_workers(name: str) -> None:
    """As a running one reads it; the simulated one has a worker that copies."""
    pipe, controller = small(), create(name)
    values = pipe.values
    for _ in range(40):
        seen = pipe.step(values)
        holding = dataclasses.replace(seen.stages[-1], workers=0, cpu=0.0, wait=0.0, parallel=False)
        values = controller.decide(dataclasses.replace(seen, stages=(*seen.stages[:-1], holding))).values
        assert all(knob.low <= value <= knob.high for knob, value in zip(seen.knobs, values, strict=True))
    assert values[0] > 1


def test_from_scratch_it_finds_the_one_stage_that_matters() -> None:
    pipe = small()
    agent = Dqn(DqnOptions(pretrained=False, rate=1e-3, updates=2, exploring=100, seed=2))
    pipe.resize(cpus=32)
    earned = run(pipe, agent, 200)
    assert np.mean(earned[-50:]) > 1.2 * earned[1]  # the even division gives half of the cores to a stage that does nothing


class Led:
    """Stands for the rate controller: wants always the same values."""

    name: ClassVar[str] = "led"

    def __init__(self, values: Values) -> None:
        self.values = values

    def decide(self, seen: Observation) -> Decision:
        return Decision(self.values, "as ever")


def steered(monkeypatch: pytest.MonkeyPatch, choose: Callable[[Rows], Sequence[int]]) -> None:
    """Every agent chooses so."""
    monkeypatch.setattr(QAgent, "choose", lambda self, rows, exploration=0.0: np.array(choose(rows)))


def test_behind_another_controller_a_poor_agent_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    steered(monkeypatch, lambda rows: [DOWN] * len(rows))
    alone = run(small(noise=0.02), Led((16, 1)), 400)
    behind = run(small(noise=0.02), RateDqn(RateDqnOptions(), base=Led((16, 1))), 400)
    assert sum(behind) > 0.97 * sum(alone)
    assert np.mean(behind[-50:]) == pytest.approx(np.mean(alone[-50:]), rel=0.03)


def test_behind_a_controller_that_is_wrong_a_good_agent_wins_and_its_offset_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that clash: 14 are wanted, 7 are best."""
    steered(monkeypatch, lambda rows: [STEPS.index(-1), STAY])
    alone = run(small(noise=0.02, clashing=0.02), Led((14, 1)), 300)
    controller = RateDqn(RateDqnOptions(), base=Led((14, 1)))
    behind = run(small(noise=0.02, clashing=0.02), controller, 300)
    assert np.mean(behind[-50:]) > 1.15 * np.mean(alone[-50:])
    assert np.mean(behind[-50:]) > 0.95 * oracle(small(clashing=0.02)).reward
    assert -9 <= controller.offset[0] <= -5


def test_when_the_machine_changes_the_other_controller_leads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steered(monkeypatch, lambda rows: [STEPS.index(-1), STAY])
    pipe, base = small(noise=0.02, clashing=0.02), Led((14, 1))
    controller = RateDqn(RateDqnOptions(), base=base)
    run(pipe, controller, 150)
    assert controller.offset
    pipe.resize(cpus=6)
    base.values = (6, 1)
    decision = controller.decide(pipe.step(pipe.values))
    assert decision.values == (6, 1)
    assert "leads again" in decision.why
    assert controller.offset == ()


def test_a_trial_that_kills_the_pipeline_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steered(monkeypatch, lambda rows: [UP] * len(rows))
    pipe, controller = small(), RateDqn(RateDqnOptions(), base=Led((14, 1)))
    pipe.resize(memory=20 * 10**6)
    run(pipe, controller, 300)
    assert 1 <= pipe.ooms <= 5  # one a trial, and each trial waits twice as long
    assert pipe.step(controller.decide(pipe.step((14, 1))).values).values == (14, 1)
