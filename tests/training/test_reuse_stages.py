"""When reuse ends, what the learning rate does then, and the warning before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from saved import through_a_file
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Switch
from stoker.runners.loaders.reuse.schedules import FineTune, HighestRates, rates, rule_peak, search_peak, spread
from stoker.runners.loaders.reuse.switch import FIRST_USES, SwitchRule
from stoker.runners.loaders.reuse.theory import buffer_needed, gap, implied_decay, successive_uses, warning
from torch import nn

# ---- the switch ----


def test_a_plateau_is_patience_looks_without_an_improvement_after_the_least_number_of_passes() -> None:
    rule = SwitchRule(Switch(patience=2, min_epochs=3, min_delta=0.01, fraction=0.1), 1000, evaluates=True)
    told = [(1.0, 0.5), (1.5, 0.5), (2.0, 0.504), (2.5, 0.6), (3.0, 0.604), (3.5, 0.605)]
    assert [rule.evaluated(epochs, {"accuracy": value}) for epochs, value in told] == [False] * 5 + [True]
    assert "accuracy has not improved by 1.00% in 2 looks (best 0.6)" in rule.reason


def test_a_plateau_before_the_least_number_of_passes_is_waited_out() -> None:
    rule = SwitchRule(Switch(patience=1, min_epochs=3), 1000, evaluates=True)
    assert [rule.evaluated(epochs, {"accuracy": 0.5}) for epochs in (1.0, 2.0, 2.9, 3.0)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("name", "mode", "falls"), [("val_loss", None, True), ("error_rate", None, True), ("psnr", None, False), ("psnr", "min", True)]
)
def test_what_is_watched_is_to_fall_where_its_name_says_so(name: str, mode: Any, falls: bool) -> None:
    rule = SwitchRule(Switch(patience=1, min_epochs=0, watch=name, mode=mode), 1000, evaluates=True)
    rule.evaluated(1, {name: 1.0})
    assert rule.evaluated(2, {name: 0.5}) is not falls


def test_the_loss_on_first_uses_is_watched_where_nothing_is_evaluated_in_means_over_many_steps() -> None:
    rule = SwitchRule(Switch(patience=2, min_epochs=0, fraction=0.01), 2400)
    assert rule.watches_first_uses
    noise = np.random.default_rng(1)
    due = []
    for step in range(1, 2400):
        loss = max(1.0, 3 - step / 400) + noise.normal(0, 0.3)  # falls until step 800
        if rule.first_use(step, step / 100, loss, 20):
            due.append(step)
    assert 800 < due[0] < 1400
    assert due[-1] == 2399  # once due, always


def test_reused_samples_would_hide_a_plateau_that_first_uses_show() -> None:
    """The loss by use that was measured on a small network, r=5 (validation does not move)."""
    on_first, on_all = (SwitchRule(Switch(patience=2, min_epochs=0, fraction=0.01), 240) for _ in range(2))
    by_use = [0.807, 0.760, 0.692, 0.630, 0.569]
    for step in range(1, 121):
        on_first.first_use(step, step / 10, by_use[0], 10)
        on_all.first_use(step, step / 10, float(np.mean(by_use[: 1 + step // 24])), 10)  # the buffer grows older
    assert on_first.due
    assert not on_all.due


@given(st.integers(2, 500), st.floats(0.01, 0.99))
def test_the_budget_is_kept_whatever_improves(steps: int, fraction: float) -> None:
    rule = SwitchRule(Switch(fraction=fraction), steps, evaluates=True)
    first = 0
    for step in range(1, steps + 1):
        rule.evaluated(step, {"accuracy": float(step)})
        if rule.stepped(step, step):
            first = first or step
    assert first == rule.last_step
    assert steps - first >= min(math.floor(fraction * steps), steps - 1)


def test_by_passes_and_by_fraction() -> None:
    by_passes = SwitchRule(Switch(on="epochs", epochs=1.5), 100)
    assert [by_passes.stepped(step, step / 10) for step in (14, 15, 16)] == [False, True, True]
    by_fraction = SwitchRule(Switch(on="fraction", fraction=0.4), 100)
    assert [by_fraction.stepped(step, 0) for step in (59, 60)] == [False, True]
    assert not by_fraction.watches_first_uses
    for rule in (by_passes, by_fraction):
        assert rule.evaluated(9, {"accuracy": 0.0}) == rule.due


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40), st.integers(0, 40))
def test_a_rule_taken_up_again_decides_alike(told: Sequence[tuple[float, bool]], stop: int) -> None:
    def play(rule: SwitchRule, part: Sequence[tuple[float, bool]], begin: int) -> list[bool]:
        return [
            rule.first_use(step, step, value, 8) if look else rule.stepped(step, step) for step, (value, look) in enumerate(part, begin)
        ]

    switch = Switch(patience=2, min_epochs=0, watch=FIRST_USES)
    one, other = SwitchRule(switch, 60), SwitchRule(switch, 60)
    play(one, told[:stop], 0)
    other.load_state_dict(through_a_file(one.state_dict()))
    assert play(other, told[stop:], stop) == play(one, told[stop:], stop)
    assert str(other.state_dict()) == str(one.state_dict())


def test_a_loss_that_is_no_number_is_no_improvement() -> None:
    rule = SwitchRule(Switch(patience=2, min_epochs=0), 100, evaluates=True)
    assert [rule.evaluated(1, {"loss": value}) for value in (1.0, math.nan, math.nan)] == [False, False, True]


@pytest.mark.parametrize(
    ("switch", "message"),
    [
        (Switch(fraction=0.0), r"reuse\.switch\.plateau\.fraction: 0 is no share"),
        (Switch(on="fraction", fraction=1.0), r"reuse\.switch\.fraction: 1 is no share"),
        (Switch(patience=0), r"reuse\.switch\.plateau\.patience: 0"),
        (Switch(min_delta=-1.0), r"reuse\.switch\.plateau\.min_delta: -1"),
        (Switch(on="epochs"), r"reuse\.switch\.epochs: the passes"),
        (Switch(on="epochs", epochs=9.0), r"reuse\.switch\.epochs: 9 passes over the data are more than 100 steps make with reuse \(5\)"),
    ],
)
def test_a_switch_that_cannot_work_is_one_line_that_names_the_field(switch: Switch, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SwitchRule(switch, 100, epochs=5.0)


def test_a_metric_that_is_not_reported_is_named() -> None:
    rule = SwitchRule(Switch(watch="acuracy"), 100, evaluates=True)
    with pytest.raises(UsageError, match=r"reuse\.switch\.plateau\.watch: this task reports no 'acuracy' \(did you mean 'accuracy'\?\)"):
        rule.evaluated(1, {"accuracy": 1.0})


# ---- the learning rate ----


def optimizer(*lrs: float, adam: bool = False) -> torch.optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.ones(2))], "lr": lr} for lr in lrs]
    return torch.optim.AdamW(groups) if adam else torch.optim.SGD(groups, momentum=0.9)


def follow(schedule: FineTune, steps: int) -> list[list[float]]:
    followed = []
    for _ in range(steps):
        followed.append(rates(schedule.optimizer))
        schedule.optimizer.step()
        schedule.step()
    return followed


@pytest.mark.parametrize("adam", [False, True])
def test_onecycle_goes_from_the_rate_at_the_switch_to_the_peak_and_down(adam: bool) -> None:
    used = optimizer(0.02, 0.002, adam=adam)
    before = [{key: value for key, value in group.items() if key in ("momentum", "betas")} for group in used.param_groups]
    followed = follow(FineTune(used, 100, kind="onecycle", peaks=[0.1, 0.01]), 100)
    first = [one for one, _ in followed]
    assert first[0] == 0.02  # not 0.1 / 25
    assert first[30] == pytest.approx(0.1)
    assert first == sorted(first[:30]) + sorted(first[30:], reverse=True)
    assert first[-1] == pytest.approx(1e-4)
    assert [one / other for one, other in followed] == pytest.approx([10.0] * 100)
    assert before == [{key: value for key, value in group.items() if key in ("momentum", "betas")} for group in used.param_groups]


def test_cosine_begins_at_the_peak() -> None:
    followed = [rate for (rate,) in follow(FineTune(optimizer(0.02), 50, kind="cosine", peaks=[0.1]), 50)]
    assert followed[0] == 0.1
    assert followed == sorted(followed, reverse=True)
    assert followed[-1] == pytest.approx(1e-4)


@given(st.integers(1, 40), st.sampled_from(["onecycle", "cosine"]))
def test_it_may_be_stepped_past_its_end(steps: int, kind: Any) -> None:
    followed = follow(FineTune(optimizer(0.02), steps, kind=kind, peaks=[0.1]), steps + 10)
    assert followed[steps - 1 :] == [followed[steps - 1]] * 11
    assert followed[-1][0] > 0


@pytest.mark.parametrize("stop", [0, 1, 20, 45])
def test_after_another_schedule_and_taken_up_again_it_is_the_same(stop: int) -> None:
    used = optimizer(0.1)
    base = torch.optim.lr_scheduler.OneCycleLR(used, 0.1, total_steps=100)
    highest = HighestRates()
    for _ in range(60):
        highest.saw(used)
        used.step()
        base.step()
    assert highest.highest == pytest.approx([0.1], rel=1e-2)
    assert used.param_groups[0]["initial_lr"] == pytest.approx(0.004)  # the trap
    schedule = FineTune(used, 40, kind="onecycle", peaks=spread(rule_peak(max(highest.highest)), highest.highest))
    follow(schedule, stop)
    state = through_a_file({"schedule": schedule.state_dict(), "optimizer": used.state_dict(), "rates": highest.state_dict()})
    other = optimizer(7.0)
    again = FineTune(other, 1, kind="cosine", peaks=[1.0])
    other.load_state_dict(state["optimizer"])
    again.load_state_dict(state["schedule"])
    kept = HighestRates()
    kept.load_state_dict(state["rates"])
    assert kept.highest == highest.highest
    assert follow(again, 45 - stop) == follow(schedule, 45 - stop)


def test_groups_keep_their_proportion() -> None:
    assert spread(0.05, [0.1, 0.01, 0.0]) == pytest.approx([0.05, 0.005, 0.0])
    assert spread(0.05, [0.0, 0.0]) == [0.05, 0.05]


def test_a_group_that_was_at_rest_stays_so() -> None:
    used = optimizer(0.1, 0.0)
    assert all(rate[1] == 0 for rate in follow(FineTune(used, 10, kind="onecycle", peaks=spread(0.05, [0.1, 0.0])), 10))


def test_a_search_takes_the_peak_with_the_lowest_loss_and_none_that_diverged() -> None:
    peak, losses = search_peak(0.1, lambda tried: math.nan if tried > 0.08 else abs(tried - 0.02))
    assert peak == min(losses, key=lambda tried: abs(tried - 0.02))
    assert math.inf in losses.values()
    assert search_peak(0.1, lambda tried: math.inf)[0] == rule_peak(0.1)


@pytest.mark.parametrize(
    ("steps", "peaks", "message"), [(0, [0.1], r"reuse\.schedule: 0 steps"), (5, [-1.0], r"reuse\.peak"), (5, [0.1, 0.1], r"reuse\.peak")]
)
def test_a_schedule_that_cannot_work_is_one_line(steps: int, peaks: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FineTune(optimizer(0.1), steps, kind="onecycle", peaks=peaks)


# ---- the theory ----

CIFAR = {"batch_size": 2048, "samples": 50_000, "steps": 5000, "lr": 0.05, "weight_decay": 5e-4, "augment": True}


@pytest.mark.parametrize(("batches", "warned"), [(1, True), (2, True), (3, False), (6, False)])
def test_the_text_s_buffers_are_told_apart(batches: int, warned: bool) -> None:
    text = warning(repeat=3, buffer=2048 * batches, **CIFAR)
    assert bool(text) is warned
    assert text is None or "set reuse.shuffle_buffer to 6144 or more" in text


def test_imagenet_s_small_share_of_the_data_is_enough() -> None:
    assert warning(
        repeat=3, buffer=8192, batch_size=512, samples=1_281_167, steps=35_000, lr=0.85, weight_decay=1e-4, augment=True
    ) is None  # fmt: skip


def test_without_augmentation_the_buffer_has_to_be_larger_and_enough_weight_decay_makes_up() -> None:
    plain = CIFAR | {"augment": False}
    assert warning(repeat=3, buffer=3 * 2048, **plain)
    assert warning(repeat=3, buffer=3 * 2048, **(plain | {"weight_decay": 0.1})) is None
    assert warning(repeat=1, buffer=0, **plain) is None


@given(st.integers(2, 8), st.floats(1, 100), st.floats(0, 1))
def test_more_buffer_means_fewer_successive_uses(repeat: int, batches: float, share: float) -> None:
    assert 1 <= successive_uses(repeat, batches + 1, share) <= successive_uses(repeat, batches, share) <= repeat
    assert successive_uses(repeat, batches, 1.0) == 1
    assert gap(repeat, 1) == 1
    assert successive_uses(repeat, buffer_needed(repeat, 0.0, augment=True), 0.0) < 1.6


def test_the_l2_that_early_stopping_amounts_to_is_that_of_the_exact_quadratic_within_the_approximation() -> None:
    """(4.20): (1 - eps h)^tau = alpha / (h + alpha); (4.21) holds where eps h and h / alpha are small."""
    eps, tau = 1e-3, 50
    for h in (0.1, 1.0):
        kept = (1 - eps * h) ** tau
        alpha = h * kept / (1 - kept)
        assert implied_decay(tau, eps) == pytest.approx(alpha, rel=0.05)


def regression(repeat: int, steps: int = 3000, replicas: int = 400, lr: float = 2e-3) -> tuple[np.ndarray, float]:
    """SGD on y = 7 + 3 x + e, one sample a step, each used ``repeat`` times in succession. Parameters at the end, and training loss."""
    random = np.random.default_rng(0)
    theta = np.tile([7.0, 3.0], (replicas, 1))
    losses = []
    for step in range(steps):
        if step % repeat == 0:
            x = random.uniform(0, 10, replicas)
            noise = random.normal(0, 3, replicas)
        features = np.stack([np.ones(replicas), x], axis=1)
        error = (features * theta).sum(1) - (7 + 3 * x + noise)
        losses.append(float(np.mean(error**2)) / 2)
        theta -= lr * error[:, None] * features
    return theta, float(np.mean(losses[steps // 2 :]))


def test_reuse_raises_the_variance_of_parameters_and_lowers_the_training_loss() -> None:
    """The direction of figures 4-6 and 4-7: total variance 2.17 with reuse and 1.85 without, and a lower training loss."""
    plain, plain_loss = regression(1)
    reused, reused_loss = regression(3)
    assert reused.var(axis=0).sum() > 1.5 * plain.var(axis=0).sum()
    assert reused_loss < plain_loss
    assert reused.mean(axis=0) == pytest.approx([7, 3], abs=0.3)
