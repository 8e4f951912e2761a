"""The search space, BlueFin and algorithm 3 (002 ch. 6.2.2, 6.4.3.1; Karthikeyan et al., NSDI 2023), worked by hand."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.policies.autosched.bluefin import BlueFin, chances, moved, reweighted, two_point_gradient
from stoker.policies.autosched.objectives import OBJECTIVES
from stoker.policies.autosched.search import (
    GAMMA,
    BestFound,
    NotMeasured,
    Trial,
    TrialFigures,
    agreement,
    as_cut_off,
    hopeless_keys,
    is_rejected,
    rechecked,
    reward_of,
    search,
    without_idle,
)
from stoker.policies.autosched.search_space import Configuration, ascending, space_of
from stoker.policies.baselines.tiresias import Tiresias
from stoker.policies.keys import make_config, tunable
from stoker.policies.registry import POLICIES, load

TIRESIAS = dataclasses.asdict(Tiresias.Config())


@dataclass(frozen=True)
class Bowl:
    """Two numbers, a whole one and a category."""

    x: float = tunable(0.5, "", low=0.0, high=1.0)
    y: float = tunable(10.0, "", low=1.0, high=100.0, log=True)
    n: int = tunable(1, "", low=1, high=4)
    kind: str = tunable("a", "", choices=("a", "b", "c"))


BOWL = dataclasses.asdict(Bowl())


def figures(jct: float) -> TrialFigures:
    return TrialFigures(jct=jct, p99=jct, slo=0.0, rho=1.0, queueing=jct - 1, utilisation=0.5, preemptions=0.0, fragmentation=0.0)


def bowl(config: Configuration) -> TrialFigures:
    """Least at x = 0.8, y = 40, kind b."""
    return figures(10 + 40 * (config["x"] - 0.8) ** 2 + 5 * math.log10(config["y"] / 40) ** 2 + (0 if config["kind"] == "b" else 3))


# Thresholds that hold nobody


def sinking(config: Configuration) -> TrialFigures:
    """Jobs of 10 to 1000 seconds sink through the thresholds in use that are below."""
    thresholds = [config[f"threshold_{n}"] for n in range(1, config["queues"])]
    return figures(100.0 + sum(threshold % 7 for threshold in {one for one in thresholds if 10 <= one < 1000}))


@pytest.mark.parametrize(
    ("thresholds", "only", "left", "as_counts"),
    [
        ((100.0, 500.0), (), (100.0, 500.0), {}),
        ((100.0, 1e6), (), (100.0,), {"queues": 2}),
        ((1.0, 100.0, 1e6), (), (100.0,), {"queues": 2}),
        ((100.0, 100.0, 500.0, 1e6), (), (100.0, 500.0), {"queues": 3}),
        ((1e4, 1e5), (), (), {"queues": 1}),
        ((100.0, 1e6), ("threshold_1", "threshold_2"), (100.0, 1e6), {"queues": 2}),
    ],
)
def test_thresholds_that_hold_nobody_are_left_out_of_what_is_best(
    thresholds: tuple[float, ...], only: tuple[str, ...], left: tuple[float, ...], as_counts: dict[str, int]
) -> None:
    best = {**TIRESIAS, "queues": len(thresholds) + 1, **{f"threshold_{n}": value for n, value in enumerate(thresholds, 1)}}
    found = BestFound(TIRESIAS, best, 1.5, figures(150.0), sinking(best))
    space = space_of(Tiresias.Config, TIRESIAS if not only else best, only=only)
    kept = without_idle(found, space, sinking)
    assert Tiresias.Config(**kept.best).thresholds == left and dict(kept.as_counts) == as_counts
    assert sinking(kept.best) == found.figures


# The space


def test_a_log_scale_has_the_geometric_mean_in_its_middle() -> None:
    number = next(one for one in space_of(Tiresias.Config, TIRESIAS).numbers if one.name == "threshold_1")
    assert (number.unit(1.0), number.unit(1e7)) == (0.0, 1.0)
    assert number.value(0.5) == 3162.28  # sqrt(1 x 1e7)


def test_a_log_scale_from_zero_has_zero() -> None:
    starve = next(one for one in space_of(Tiresias.Config, TIRESIAS).numbers if one.name == "starve_limit")
    assert (starve.value(0.0), starve.value(1.0)) == (0.0, 1000.0)
    assert starve.value(0.5) == pytest.approx(math.sqrt(1001) - 1, rel=1e-5)


def test_adjacent_violators_are_pooled() -> None:
    """3 before 1 becomes 2, 2; then 5 before 3 and 4 becomes their mean, 4."""
    assert ascending(np.array([3.0, 1.0, 5.0, 3.0, 4.0])).tolist() == [2.0, 2.0, 4.0, 4.0, 4.0]


def test_thresholds_ascend_by_the_geometric_mean_and_those_out_of_use_stay() -> None:
    space = space_of(Tiresias.Config, TIRESIAS)
    made = space.project({**TIRESIAS, "queues": 3, "threshold_1": 10000.0, "threshold_2": 100.0, "threshold_3": 1.0}, otherwise=TIRESIAS)
    assert made["threshold_1"] == made["threshold_2"] == pytest.approx(1000.0, rel=1e-5)
    assert made["threshold_3"] == TIRESIAS["threshold_3"]  # not in use with three queues


def test_what_the_scope_step_fixed_holds_in_the_projection() -> None:
    space = space_of(Tiresias.Config, TIRESIAS)
    made = space.project({**TIRESIAS, "threshold_1": 9e5}, {"threshold_2": 500.0})
    assert made["threshold_2"] == 500.0 and made["threshold_1"] <= 500.0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), st.lists(st.floats(0, 1), min_size=24, max_size=24), st.integers(0, 2**31))
def test_every_projected_sample_is_a_valid_configuration(name: str, units: list[float], seed: int) -> None:
    kind = load(name).Config
    in_force = dataclasses.asdict(kind())
    try:
        space = space_of(kind, in_force)
    except ValueError:
        return
    rng = np.random.default_rng(seed)
    chosen = {one.name: one.choices[int(rng.integers(len(one.choices)))] for one in space.categories}
    made = space.project(space.configuration(units[: len(space.numbers)], chosen), otherwise=in_force)
    again = make_config(kind, made)
    assert dataclasses.asdict(again) == made == space.project(made, otherwise=in_force)
    if name == "tiresias":
        assert list(again.thresholds) == sorted(again.thresholds)


@pytest.mark.parametrize(
    ("given_ranges", "words"),
    [
        ({"threshold_1": (5000, 6000), "threshold_2": (10, 100)}, "threshold_2: at most 100, while threshold_1.*at least 5000"),
        ({"threshold_1": (0.1, 6000)}, "threshold_1: 0.1 to 6000 is not within its range 1 to 1e"),
        ({"threshold_1": (5000, 6000), "threshold_3": (10, 20)}, "threshold_3: at most 20, while threshold_1.*at least 5000"),
        ({"queues": (2.2, 2.8)}, "queues: 2.2 to 2.8 has no whole number"),
        ({"treshold": (1, 2)}, "treshold: the policy has no such key"),
        ({"priority": (0, 1)}, "priority: a range is for a number that is tuned; there are: queues, threshold_1"),
    ],
)
def test_contradictory_ranges_are_one_clear_line(given_ranges: dict[str, tuple[float, float]], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        space_of(Tiresias.Config, TIRESIAS, ranges=given_ranges)
    assert "\n" not in str(caught.value)


def test_keys_that_are_not_tuned_bound_those_that_are() -> None:
    three = {**TIRESIAS, "queues": 3, "threshold_1": 100.0, "threshold_2": 7200.0}
    space, rng = space_of(Tiresias.Config, three, only=("threshold_1",)), np.random.default_rng(0)
    made = [space.project(space.drawn(rng), otherwise=three) for _ in range(100)]
    assert max(one["threshold_1"] for one in made) == 7200.0 and {one["threshold_2"] for one in made} == {7200.0}
    with pytest.raises(ValueError, match="threshold_2: at most 7200, while threshold_1, which is no larger, is at least 8000"):
        space_of(Tiresias.Config, three, only=("threshold_1",), ranges={"threshold_1": (8000, 9000)})
    two = {**three, "queues": 2}  # the second threshold is not in use
    space = space_of(Tiresias.Config, two, only=("threshold_1",), ranges={"threshold_1": (8000, 9000)})
    assert 8000 <= space.project(space.drawn(rng), otherwise=two)["threshold_1"] <= 9000


def test_a_policy_without_keys_says_so() -> None:
    @dataclass(frozen=True)
    class Nothing:
        pass

    with pytest.raises(ValueError, match=r"no keys to tune"):
        space_of(Nothing, {})


# BlueFin


def test_the_gradient_of_two_opposite_points() -> None:
    """d = 2, delta = 0.1, r+ = 1.2, r- = 0.9: 2 / 0.2 x 0.3 / 1.2 = 2.5 along u."""
    gradient = two_point_gradient(np.array([0.6, 0.8]), 1.2, 0.9, 0.1)
    assert gradient.tolist() == pytest.approx([1.5, 2.0])
    assert moved(np.array([0.5, 0.5]), gradient, 0.02, 0.1).tolist() == pytest.approx([0.53, 0.54])


def test_a_step_is_no_longer_than_the_radius_and_keeps_from_the_edge() -> None:
    assert moved(np.array([0.5, 0.5]), np.array([3.0, 4.0]), 1.0, 0.1).tolist() == pytest.approx([0.56, 0.58])
    assert moved(np.array([0.88]), np.array([1.0]), 0.1, 0.1).tolist() == pytest.approx([0.9])


def test_exponential_weights() -> None:
    """Weights 3 and 1: 0.8 x 3/4 + 0.1 = 0.7. Drawn the second (chance 0.3) with gain 0.3: exp(2 x 0.3 / (2 x 0.3)) = e."""
    weights = np.array([3.0, 1.0])
    assert chances(weights).tolist() == pytest.approx([0.7, 0.3])
    assert reweighted(weights, 1, 0.3, 0.3).tolist() == pytest.approx([1.0, math.e / 3])


def test_a_pair_of_which_one_was_rejected_moves_nothing() -> None:
    bluefin = BlueFin(space_of(Bowl, BOWL), BOWL, np.random.default_rng(0))
    before = bluefin.centre.copy()
    bluefin.sample()
    bluefin.reward(1.3)
    bluefin.sample()
    bluefin.reward(None)
    assert bluefin.centre.tolist() == before.tolist()


def test_a_pair_around_an_old_centre_is_given_up() -> None:
    """The first of a pair is the new best: what comes next is the first of a pair around it, and not the old centre."""
    space = space_of(Bowl, BOWL)
    bluefin = BlueFin(space, BOWL, np.random.default_rng(0))
    old = bluefin.centre.copy()
    best = bluefin.sample()
    bluefin.reward(1.3)
    bluefin.start_from(best)
    after = space.units(bluefin.sample())
    assert np.abs(after - space.units(best)).max() > 0.01 and np.abs(after - old).max() > 0.01
    bluefin.reward(1.0)
    assert bluefin.centre.tolist() == space.units(best).tolist()  # one point gives no gradient


# Algorithm 3


def test_rewards_are_reference_over_measured() -> None:
    assert reward_of("jct", figures(12.0), figures(10.0)) == 1.2
    late = dataclasses.replace(figures(10.0), slo=0.5)
    assert reward_of("slo", late, figures(10.0)) == pytest.approx(2.0, abs=0.05)  # twice as many deadlines are kept
    assert reward_of("slo", dataclasses.replace(late, slo=1.0), late) == pytest.approx(51.0)  # of none, half: no gain without end


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_trial_that_was_cut_off_has_half_the_reward_by_each_objective(objective: str) -> None:
    reference = dataclasses.replace(figures(10.0), slo=0.3, cost=30.0)
    cut = as_cut_off(dataclasses.replace(figures(4.0), slo=0.0, cost=3.0), reference)
    assert reward_of(objective, reference, cut) == pytest.approx(0.5)


def test_a_sample_is_rejected_at_gamma_times_the_best() -> None:
    assert is_rejected(0.95 * 1.2, 1.2, 0.95) and not is_rejected(1.141, 1.2, 0.95)


def test_a_sample_is_compared_with_what_is_predicted_of_the_best() -> None:
    """What was measured of the best is 1.3 or more; a model that says 1 of everything, of the best too, rejects nothing."""
    found = search(space_of(Bowl, BOWL), bowl, BOWL, model=Told(1.0), epsilon=1.0, seed=1)
    assert found.gain > 1.3 and found.count("rejected") == 0


def test_half_of_the_samples_are_spread_and_what_was_best_before_comes_first() -> None:
    before = {**BOWL, "x": 0.79, "y": 41.0, "kind": "b"}
    found = search(space_of(Bowl, BOWL), bowl, BOWL, first=[before], seed=4, trials=20)
    assert found.trials[1].config == before and found.gain == pytest.approx(bowl(BOWL).jct / bowl(before).jct, abs=0.02)
    kinds = [trial.config["kind"] for trial in search(space_of(Bowl, BOWL), bowl, BOWL, trials=40, seed=4).trials[1:20]]
    assert {"a", "b", "c"} == set(kinds) and kinds.count("a") < 13  # not around what is in force, of kind a


@pytest.mark.parametrize(("trials", "come"), [(40, 5), (8, 2), (2, 1)])
def test_what_was_best_before_takes_a_quarter_of_the_samples_at_most(trials: int, come: int) -> None:
    before = [{**BOWL, "y": 20.0 + n} for n in range(5)]
    found = search(space_of(Bowl, BOWL), bowl, BOWL, first=before, trials=trials)
    assert [trial.config for trial in found.trials if trial.config in before] == before[:come]


def test_what_does_not_depend_on_rewards_is_told_beforehand() -> None:
    told: list[Configuration] = []
    before = [{**BOWL, "y": 7.0}]
    found = search(space_of(Bowl, BOWL), bowl, BOWL, first=before, seed=4, trials=20, ahead=told.extend)
    assert len(told) == 9 and told == [trial.config for trial in found.trials[1:10]]
    assert found.trials == search(space_of(Bowl, BOWL), bowl, BOWL, first=before, seed=4, trials=20).trials


def test_a_trial_that_was_cut_off_is_learnt_from_at_half_the_reward() -> None:
    class Listening(Told):
        def __init__(self) -> None:
            super().__init__(1.0)
            self.heard: list[float] = []

        def learn(self, config: Configuration, figures: TrialFigures, reference: TrialFigures) -> None:
            self.heard.append(reward_of("jct", reference, figures))

    def failing(config: Configuration) -> TrialFigures:
        if config["kind"] == "c":
            raise NotMeasured("cut off", as_cut_off(bowl(config), bowl(BOWL)))
        return bowl(config)

    model = Listening()
    found = search(space_of(Bowl, BOWL), failing, BOWL, model=model, seed=2)
    assert 0 < found.count("failed") == model.heard.count(0.5)


def test_the_search_finds_what_is_better_and_never_answers_worse() -> None:
    gains = [search(space_of(Bowl, BOWL), bowl, BOWL, seed=seed).gain for seed in range(8)]
    best = bowl(BOWL).jct / 10.0
    assert min(gains) >= 1.0
    assert float(np.mean(gains)) > 1 + 0.7 * (best - 1)


def test_the_same_seed_makes_the_same_search() -> None:
    first, second = (search(space_of(Bowl, BOWL), bowl, BOWL, seed=3) for _ in range(2))
    assert [trial.config for trial in first.trials] == [trial.config for trial in second.trials]


class Told:
    """A model that knows the truth, or its opposite."""

    def __init__(self, reward: float | None = None) -> None:
        self.reward, self.learnt = reward, 0

    def predict(self, configs: Sequence[Configuration]) -> Sequence[float]:
        return [bowl(BOWL).jct / bowl(config).jct if self.reward is None else self.reward for config in configs]

    expected = predict

    def learn(self, config: Configuration, figures: TrialFigures, reference: TrialFigures) -> None:
        self.learnt += 1


def test_rejected_samples_count_and_are_not_simulated() -> None:
    asked: list[Configuration] = []

    def counted(config: Configuration) -> TrialFigures:
        asked.append(config)
        return bowl(config)

    found = search(space_of(Bowl, BOWL), counted, BOWL, model=Told(), trials=30, epsilon=1.0, seed=1)
    assert len(found.trials) == 30 and found.count("rejected") > 0
    assert len(asked) == found.count("simulated") and found.agreement == 1.0
    explored = search(space_of(Bowl, BOWL), counted, BOWL, model=Told(), trials=30, epsilon=0.0, seed=1)
    assert explored.count("rejected") == 0


class Misleading(Told):
    """The better a configuration is, the worse it says it is."""

    def predict(self, configs: Sequence[Configuration]) -> Sequence[float]:
        return [1.0 / one for one in super().predict(configs)]

    expected = predict


class Chance(Told):
    """Says of each configuration what has nothing to do with it."""

    def predict(self, configs: Sequence[Configuration]) -> Sequence[float]:
        return [0.5 + zlib.crc32(repr(sorted(config.items())).encode()) / 2**32 for config in configs]

    expected = predict


def test_agreement_by_hand() -> None:
    """Of the pairs 1-2, 1-3 and 2-3, measured unlike, two were predicted in that order and one in the other; a tie is neither."""
    assert agreement([(1.0, 1.0), (3.0, 1.1), (2.0, 1.2)]) == pytest.approx(1 / 3)
    assert agreement([(1.0, 1.0), (1.0, 1.1)]) == 0.0
    assert agreement([(1.0, 1.0), (2.0, 1.0)]) == 0.0


@pytest.mark.parametrize("model", [Misleading(), Told(0.0), Told(2.0)], ids=["misleading", "rejects all", "praises all"])
def test_a_model_that_has_not_proved_itself_costs_nothing_of_what_is_found(model: Told) -> None:
    for seed in range(6):
        alone = search(space_of(Bowl, BOWL), bowl, BOWL, seed=seed)
        beside = search(space_of(Bowl, BOWL), bowl, BOWL, model=model, seed=seed)
        assert [one.config for one in beside.trials] == [one.config for one in alone.trials] and beside.gain == alone.gain
        assert beside.count("rejected") == 0 and beside.fixed == []


def test_proof_halves_at_least_what_a_model_by_chance_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    def rejected() -> int:
        return sum(search(space_of(Bowl, BOWL), bowl, BOWL, model=Chance(), seed=seed).count("rejected") for seed in range(20))

    with_proof = rejected()
    monkeypatch.setattr("stoker.policies.autosched.search.AGREEMENT_Z", -2.0)
    assert with_proof < 0.5 * rejected()


def test_a_true_model_saves_simulations_and_is_learnt_from() -> None:
    alone = [search(space_of(Bowl, BOWL), bowl, BOWL, seed=seed) for seed in range(6)]
    model = Told()
    helped = [search(space_of(Bowl, BOWL), bowl, BOWL, model=model, seed=seed) for seed in range(6)]
    assert sum(one.count("simulated") for one in helped) < 0.85 * sum(one.count("simulated") for one in alone)
    assert float(np.mean([one.gain for one in helped])) > float(np.mean([one.gain for one in alone])) - 0.05
    assert model.learnt == sum(one.count("simulated") - 1 for one in helped)


def test_what_if_analysis_fixes_keys_that_cannot_help() -> None:
    """At the least of the bowl all keys are as good as can be; away from it x is free. By gamma, what hardly matters stays free."""
    best = {**BOWL, "x": 0.8, "y": 40.0, "kind": "b"}
    space = space_of(Bowl, BOWL)
    assert set(hopeless_keys(space, Told(), best, {})) == {"x", "y", "n", "kind"}
    assert "x" not in hopeless_keys(space, Told(), {**best, "x": 0.3}, {})
    kept = hopeless_keys(space, Told(), best, {}, GAMMA)
    assert "n" not in kept and "kind" in kept
    assert hopeless_keys(space, Told(1.0), best, {}, GAMMA) == []


def test_one_key_stays_free() -> None:
    found = search(space_of(Bowl, BOWL), bowl, BOWL, model=Told(), epsilon=0.0, gamma=1.5, trials=30)
    assert len(found.fixed) == 3


def test_a_trial_that_fails_is_counted_and_named() -> None:
    def failing(config: Configuration) -> TrialFigures:
        if config["kind"] == "c":
            raise NotMeasured("cut off after 2 s")
        return bowl(config)

    found = search(space_of(Bowl, BOWL), failing, BOWL, seed=2)
    failed = [trial for trial in found.trials if trial.outcome == "failed"]
    assert failed and {trial.why for trial in failed} == {"cut off after 2 s"} and all(trial.reward is None for trial in failed)


def test_time_runs_out_and_that_is_said() -> None:
    found = search(space_of(Bowl, BOWL), bowl, BOWL, seconds=0.0)
    assert len(found.trials) == 1 and "of 40 trials" in found.stopped


# What a search on grouped jobs found, on the jobs themselves


def on_groups(**rewards: float) -> BestFound:
    """Of a search whose trials had these rewards, by kind; c is in force."""
    trials = [Trial({"kind": "c"}, "simulated", 1.0), *(Trial({"kind": kind}, "simulated", reward) for kind, reward in rewards.items())]
    best = max(trials, key=lambda trial: trial.reward or 0.0)
    return BestFound({"kind": "c"}, best.config, best.reward or 1.0, figures(100.0), figures(100.0 / (best.reward or 1.0)), trials)


def test_the_best_of_grouped_jobs_gives_way_to_what_is_better_for_the_jobs() -> None:
    jct = {"c": 80.0, "a": 90.0, "b": 64.0, "d": 40.0, "e": 1.0}
    found = rechecked(on_groups(a=1.4, b=1.2, d=1.3, e=1.1), lambda config: figures(jct[config["kind"]]), "jct")
    assert (found.best, found.gain, found.reference.jct, found.figures.jct) == (
        {"kind": "d"},
        2.0,
        80.0,
        40.0,
    )  # e is not among the best three


def test_what_serves_groups_alone_leaves_what_is_in_force() -> None:
    def evaluate(config: Configuration) -> TrialFigures:
        if config["kind"] == "b":
            raise NotMeasured("cut off")
        return figures(80.0 if config["kind"] == "c" else 82.0)

    found = rechecked(on_groups(a=1.4, b=1.3), evaluate, "jct")
    assert (found.best, found.gain, found.figures.jct) == ({"kind": "c"}, 1.0, 80.0)
