"""The causal model (002 ch. 6.4.3.1): a known structure is found again, by hand and from data; shuffled labels tell nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from stoker.policies.autosched.causal_model import (
    WORKLOAD_FEATURES,
    CausalModel,
    Encoder,
    NoModel,
    Samples,
    changes,
    directed,
    learn_graph,
    workload_features,
)  # fmt: skip
from stoker.policies.autosched.search import TrialFigures, search
from stoker.policies.autosched.search_space import Configuration, space_of
from stoker.policies.keys import tunable


@dataclass(frozen=True)
class Keys:
    a: float = tunable(0.5, "shortens the queue", low=0.0, high=1.0)
    b: float = tunable(0.5, "changes fragmentation, which matters little", low=0.0, high=1.0)
    c: float = tunable(0.5, "does nothing", low=0.0, high=1.0)
    d: str = tunable("x", "y preempts more", choices=("x", "y"))


IN_FORCE = dataclasses.asdict(Keys())
SPACE = space_of(Keys, IN_FORCE)


def truth(config: Configuration, noise: float = 0.0, other: float = 0.0) -> TrialFigures:
    """a -> queueing -> jct <- preemptions <- d; b -> fragmentation, which plays no part."""
    queueing = 100.0 * math.exp(-1.0 * config["a"] + noise)
    preemptions = 0.5 + (0.5 if config["d"] == "y" else 0.0) + abs(noise)
    return TrialFigures(
        jct=200.0 + queueing + 40 * preemptions, p99=1.0, slo=0.0, rho=1.0, queueing=queueing, utilisation=0.5 + 0.01 * noise,
        preemptions=preemptions, fragmentation=0.1 + 0.3 * config["b"] + 0.02 * other,
    )  # fmt: skip


FEATURES = workload_features(10, 8, 16.0, np.array([100.0] * 10), 3)


def samples(count: int = 200, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    reference = truth(IN_FORCE)
    rows = []
    for _ in range(count):
        config = SPACE.project(SPACE.drawn(rng), otherwise=IN_FORCE)
        figures = truth(config, *rng.normal(scale=0.05, size=2).tolist())
        rows.append(
            (np.concatenate((Encoder(SPACE).row(config), FEATURES)), changes(figures, reference), math.log(reference.jct / figures.jct))
        )
    return Samples(*(np.array([row[part] for row in rows]) for part in range(3)))


def test_features_and_changes_by_hand() -> None:
    assert workload_features(0, 8, 16.0, np.array([math.e, math.e**3]), 0).tolist() == pytest.approx([0.0, 2.0, 2.0, 0.0])
    before, after = dataclasses.replace(truth(IN_FORCE), queueing=1.0), dataclasses.replace(truth(IN_FORCE), queueing=3.0, utilisation=0.6)
    assert changes(after, before).tolist() == pytest.approx([math.log(2.0), 0.1, 0.0, 0.0])


def test_edges_are_oriented_by_layer_and_bidirected_ones_dropped() -> None:
    """0 o-o 2 points down; 1 <-> 3 is dropped; 0 -> 4 passes a layer over and is dropped; 2 -> 3 as FCI says; 3 o-o 4 points down."""
    layer = np.array([0, 0, 1, 1, 2])
    marks = np.zeros((5, 5), dtype=int)

    def edge(i: int, j: int, at_i: int, at_j: int) -> None:
        marks[i, j], marks[j, i] = at_i, at_j

    edge(0, 2, 2, 2)
    edge(1, 3, 1, 1)
    edge(0, 4, -1, 1)
    edge(2, 3, -1, 1)
    edge(3, 4, 2, 2)
    assert directed(marks, layer) == [(0, 2), (2, 3), (3, 4)]


def test_a_known_structure_is_found_again() -> None:
    pytest.importorskip("causallearn")
    edges = set(CausalModel.learnt(SPACE, "jct", samples()).edges())
    assert {("a", "queueing"), ("d", "preemptions"), ("queueing", "jct"), ("preemptions", "jct"), ("b", "fragmentation")} <= edges
    assert not {cause for cause, _ in edges} & {"c"}
    assert not {(key, "jct") for key in (*IN_FORCE, *WORKLOAD_FEATURES)} & edges


def test_it_predicts_and_shuffled_labels_do_not() -> None:
    pytest.importorskip("causallearn")
    learnt, fresh = samples(), samples(60, seed=9)
    model = CausalModel.learnt(SPACE, "jct", learnt)
    right = np.corrcoef(model.rewards(fresh.first), fresh.target)[0, 1]
    assert right > 0.9
    rng = np.random.default_rng(1)
    try:
        wrong = CausalModel.learnt(SPACE, "jct", Samples(learnt.first, rng.permutation(learnt.metrics), rng.permutation(learnt.target)))
    except NoModel:
        return  # nothing explains nothing
    assert abs(np.corrcoef(wrong.rewards(fresh.first), fresh.target)[0, 1]) < 0.5


def test_a_search_with_it_simulates_less_and_loses_little() -> None:
    pytest.importorskip("causallearn")
    model = CausalModel.learnt(SPACE, "jct", samples())
    alone = [search(SPACE, truth, IN_FORCE, seed=seed) for seed in range(3)]
    helped = [search(SPACE, truth, IN_FORCE, model=model.on(FEATURES), seed=seed) for seed in range(3)]
    assert sum(one.count("simulated") for one in helped) < sum(one.count("simulated") for one in alone)
    assert np.mean([one.gain for one in helped]) > np.mean([one.gain for one in alone]) - 0.02


def test_what_is_measured_corrects_what_is_predicted_near_it() -> None:
    pytest.importorskip("causallearn")
    at_work = CausalModel.learnt(SPACE, "jct", samples()).on(FEATURES)
    config = {**IN_FORCE, "a": 0.9}
    before = at_work.predict([config])[0]
    slow = dataclasses.replace(truth(config), jct=2 * truth(IN_FORCE).jct)
    at_work.learn(config, slow, truth(IN_FORCE))
    assert at_work.predict([config])[0] == pytest.approx(math.sqrt(before * 0.5), rel=1e-6)  # half of the way, on a logarithmic scale
    assert len(at_work.model.relearnt(samples(1)).samples) == 201


def test_what_is_in_force_is_predicted_to_gain_nothing() -> None:
    """A model of random configurations is about their mean: its word on what is in force is the measure of its word on others."""
    pytest.importorskip("causallearn")
    model = CausalModel.learnt(SPACE, "jct", samples())
    better = {**IN_FORCE, "a": 0.95}
    alone, beside = model.on(FEATURES), model.on(FEATURES, {**IN_FORCE, "a": 0.1})
    assert beside.predict([{**IN_FORCE, "a": 0.1}])[0] == pytest.approx(1.0)
    assert beside.predict([better])[0] > alone.predict([better])[0] > 1.0
    beside.learn(better, truth(IN_FORCE), truth(IN_FORCE))  # no gain, in truth: half of the way back, on a logarithmic scale
    assert beside.predict([better])[0] == pytest.approx(math.sqrt(model.on(FEATURES, {**IN_FORCE, "a": 0.1}).predict([better])[0]))


def test_a_model_made_again_of_what_is_stored_predicts_the_same() -> None:
    pytest.importorskip("causallearn")
    model = CausalModel.learnt(SPACE, "jct", samples())
    again = CausalModel.of_plain(SPACE, "jct", json.loads(json.dumps(model.plain())))
    fresh = samples(20, seed=9).first
    assert again.rewards(fresh).tolist() == pytest.approx(model.rewards(fresh).tolist(), rel=1e-6)
    assert again.edges() == model.edges() and len(pickle.dumps(model)) < 100_000


def test_too_little_says_so() -> None:
    with pytest.raises(NoModel, match="once searches have simulated 120 configurations; so far 5"):
        learn_graph(samples(5))
