"""The causal performance model (002 ch. 6.4.3.1), in three layers: configuration and workload, the metrics that they change, the objective.

The structure is learnt by FCI (Zhang 2008, of causal-learn; the thesis's CausalNex has no FCI) from simulated samples, with the layers as
background knowledge: no edge within the first layer, and none from the first to the last. FCI looks at two neighbouring layers at a time:
else a key that determines a metric almost wholly would explain it away. FCI gives a partial ancestral graph. Its edges between layers point
downwards; one within a layer counts if FCI directs it; a bidirected one (a hidden common cause) is dropped. Each node has a regressor on
its parents; predictions go from the top.
The tests of independence see the effect of a key on its own, and not beside others (a threshold is in use with four queues only). So a
metric with any cause in the first layer is regressed on the whole layer: FCI decides which metrics are acted on, which of them explain each
other, and which explain the objective. With its edges alone, predictions order unseen configurations half as well (docs).

The model predicts changes against the configuration in force on the same workload, so rewards are comparable across workloads. During a
search, measurements correct the predictions near them; `relearnt` fits the regressors anew.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays import Floats, Ints
from .search import METRICS, TrialFigures, reward_of
from .search_space import Configuration, Space

MIN_SAMPLES = 120  #: simulated configurations of searches before a model is learnt
ALPHA = 0.05  #: of the tests of independence
WORKLOAD_FEATURES = ("jobs", "load", "length", "arrivals")  #: names of `workload_features`
KERNEL_WIDTH = 0.15  #: of the correction by measurements near a configuration; root mean square of units
PRIOR_SAMPLES = 1.0  #: weight of the prediction, in measurements near it
TREES = 40
MAX_SAMPLES = 1200  #: the newest, which a model keeps


class NoModel(Exception):
    """There is no model; one line says why."""


def has_extra() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("causallearn", "sklearn"))


def workload_features(jobs: int, gpus: int, wanted: float, left: Floats, arrivals: int) -> Floats:
    """log(1 + jobs at hand), GPUs asked for over those there are, mean logarithm of seconds left, log(1 + arrivals ahead)."""
    length = float(np.log(np.maximum(left, 1.0)).mean()) if len(left) else 0.0
    return np.array([math.log1p(jobs), wanted / max(gpus, 1), length, math.log1p(arrivals)])


def changes(figures: TrialFigures, reference: TrialFigures) -> Floats:
    """The metrics against the reference: the logarithm of the ratio for queueing, the difference for the others."""
    queueing = math.log((1.0 + figures.queueing) / (1.0 + reference.queueing))
    return np.array([queueing, *(getattr(figures, name) - getattr(reference, name) for name in METRICS[1:])])


@dataclass(frozen=True)
class Samples:
    """A row a trial: the first layer, the metrics' changes, and the logarithm of the reward."""

    first: Floats
    metrics: Floats
    target: Floats

    def __len__(self) -> int:
        return len(self.target)

    def plus(self, other: Samples) -> Samples:
        return Samples(*(np.concatenate((getattr(self, name), getattr(other, name))) for name in ("first", "metrics", "target")))

    @classmethod
    def none(cls, encoder: Encoder) -> Samples:
        return cls(np.zeros((0, len(encoder.keys) + len(WORKLOAD_FEATURES))), np.zeros((0, len(METRICS))), np.zeros(0))

    def newest(self, count: int) -> Samples:
        return Samples(self.first[-count:], self.metrics[-count:], self.target[-count:])


@dataclass(frozen=True)
class Encoder:
    """Configurations as columns: units of numbers, and one column a choice."""

    space: Space

    @property
    def keys(self) -> list[str]:
        """The key of each column."""
        return [number.name for number in self.space.numbers] + [one.name for one in self.space.categories for _ in one.choices]

    @property
    def names(self) -> list[str]:
        chosen = [f"{one.name}={choice}" for one in self.space.categories for choice in one.choices]
        return [*(number.name for number in self.space.numbers), *chosen]

    def row(self, config: Mapping[str, Any]) -> Floats:
        chosen = [float(config[one.name] == choice) for one in self.space.categories for choice in one.choices]
        return np.concatenate((self.space.units(config), chosen))

    def sample(
        self, config: Mapping[str, Any], features: Floats, objective: str, reference: TrialFigures, figures: TrialFigures
    ) -> tuple[Floats, Floats, float]:
        """A row of `Samples`: with these features, ``config`` gave ``figures``, the configuration in force ``reference``."""
        target = math.log(max(reward_of(objective, reference, figures), 1e-9))
        return np.concatenate((self.row(config), features)), changes(figures, reference), target


@dataclass(frozen=True)
class Graph:
    """Parents of each metric, by columns of the first layer and by metrics, and of the objective, by metrics."""

    of_metric: Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]]
    of_objective: tuple[str, ...]


def learn_graph(samples: Samples, alpha: float = ALPHA) -> Graph:
    """FCI with the layers as tiers; its edges are oriented by them. Raises NoModel if the samples are too few or all alike."""
    if len(samples) < MIN_SAMPLES:
        raise NoModel(f"it is learnt once searches have simulated {MIN_SAMPLES} configurations; so far {len(samples)}")
    if np.ptp(samples.target) < 1e-9:
        raise NoModel("all configurations came out alike")
    data = np.column_stack((samples.first, samples.metrics, samples.target))
    columns = samples.first.shape[1]
    layers = np.array([0] * columns + [1] * samples.metrics.shape[1] + [2])
    parents: dict[int, list[int]] = {node: [] for node in range(len(layers))}
    for upper in (0, 1):
        part = np.flatnonzero((layers == upper) | (layers == upper + 1))
        varied, kept = _varied(data[:, part])
        for cause, effect in _fci(_ranks(varied), layers[part[kept]], alpha):
            if layers[part[kept[effect]]] == upper + 1:
                parents[int(part[kept[effect]])].append(int(part[kept[cause]]))
    metric = {columns + number: name for number, name in enumerate(METRICS)}
    of_metric = {
        name: (tuple(sorted(p for p in parents[node] if p < columns)), tuple(metric[p] for p in parents[node] if p >= columns))
        for node, name in metric.items()
    }
    of_objective = tuple(metric[p] for p in sorted(parents[columns + len(METRICS)]))
    if not of_objective:
        raise NoModel("no metric was found that explains the objective")
    return Graph(of_metric, of_objective)


def directed(matrix: Ints, layer: Ints) -> list[tuple[int, int]]:
    """Edges (cause, effect) of a partial ancestral graph. ``matrix[i, j]`` is the mark at i of the edge i - j: -1 tail, 1 arrow, 2 circle.

    Between layers an edge points downwards, from one to the next only; within the middle one it counts where both marks are known.
    """
    found = []
    for i in range(len(layer)):
        for j in range(i + 1, len(layer)):
            at_i, at_j = int(matrix[i, j]), int(matrix[j, i])
            if at_i == 0 or at_j == 0 or (at_i == 1 and at_j == 1):
                continue
            if layer[i] != layer[j]:
                upper, lower = (i, j) if layer[i] < layer[j] else (j, i)
                if layer[lower] - layer[upper] == 1:
                    found.append((upper, lower))
            elif layer[i] == 1 and {at_i, at_j} == {-1, 1}:
                found.append((i, j) if at_j == 1 else (j, i))
    return found


def _fci(data: Floats, layer: Ints, alpha: float) -> list[tuple[int, int]]:
    from causallearn.graph.GraphNode import GraphNode
    from causallearn.search.ConstraintBased.FCI import fci
    from causallearn.utils.PCUtils.BackgroundKnowledge import BackgroundKnowledge

    names = [f"X{number + 1}" for number in range(len(layer))]
    nodes = [GraphNode(name) for name in names]
    knowledge = BackgroundKnowledge()
    for node, tier in zip(nodes, layer.tolist(), strict=True):
        knowledge.add_node_to_tier(node, tier)
    for i, one in enumerate(nodes):
        for j, other in enumerate(nodes):
            if i != j and (layer[i] == layer[j] == 0 or {int(layer[i]), int(layer[j])} == {0, 2}):
                knowledge.add_forbidden_by_node(one, other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints what it orients
                graph, _ = fci(data, "fisherz", alpha, depth=3, background_knowledge=knowledge, show_progress=False, node_names=names)
        except (ValueError, np.linalg.LinAlgError) as error:
            raise NoModel(f"FCI failed: {error}") from None
    return directed(np.asarray(graph.graph), layer)


def _varied(data: Floats) -> tuple[Floats, Ints]:
    """Columns that vary and are no linear combination of those before them: else their correlations can't be inverted."""
    kept: list[int] = []
    for column in range(data.shape[1]):
        values = data[:, column]
        if np.ptp(values) < 1e-9:
            continue
        basis = np.column_stack((np.ones(len(data)), data[:, kept]))
        rest = values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]
        if rest.std() > 1e-6 * max(values.std(), 1e-12):
            kept.append(column)
    return data[:, kept], np.array(kept, dtype=np.int64)


def _ranks(data: Floats) -> Floats:
    """Ranks, evenly spread: the tests of independence assume normal distributions, and these have long tails. A little noise, from one
    seed, breaks ties, so that rounding makes no column a function of the others."""
    noise = np.random.default_rng(0).normal(scale=1e-3, size=data.shape)
    order = np.argsort(np.argsort(data, axis=0, kind="stable"), axis=0)
    spread: Floats = order / max(len(data) - 1, 1) + noise
    return spread


@dataclass
class CausalModel:
    """Structure, regressors and the samples that they are learnt from. Without enough samples it has no structure yet."""

    encoder: Encoder
    objective: str
    samples: Samples
    graph: Graph = Graph({}, ())  #: empty: it is learnt before the regressors are fitted
    regressors: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def learnt(cls, space: Space, objective: str, samples: Samples) -> CausalModel:
        model = cls(Encoder(space), objective, samples)
        model.fit()
        return model

    @classmethod
    def untrained(cls, space: Space, objective: str) -> CausalModel:
        """The model before its first search: without samples."""
        return cls(Encoder(space), objective, Samples.none(Encoder(space)))

    def relearnt(self, more: Samples) -> CausalModel:
        """The model with the samples of another search too: its structure stays, if it has one, and regressors are fitted anew."""
        return CausalModel(self.encoder, self.objective, self.samples.plus(more).newest(MAX_SAMPLES), self.graph)

    def plain(self) -> dict[str, Any]:
        """The model as plain values, for JSON; `of_plain` makes a model of them."""
        samples = {name: getattr(self.samples, name).tolist() for name in ("first", "metrics", "target")}
        return {"samples": samples, "of_metric": self.graph.of_metric, "of_objective": self.graph.of_objective}

    @classmethod
    def of_plain(cls, space: Space, objective: str, plain: Mapping[str, Any]) -> CausalModel:
        samples = Samples(*(np.array(plain["samples"][name], dtype=np.float64) for name in ("first", "metrics", "target")))
        of_metric = {name: (tuple(columns), tuple(others)) for name, (columns, others) in plain["of_metric"].items()}
        return cls(Encoder(space), objective, samples, Graph(of_metric, tuple(plain["of_objective"])))

    def __getstate__(self) -> dict[str, Any]:
        """Regressors are fitted where they are used: from the same samples they are the same."""
        return {**self.__dict__, "regressors": {}}

    def fit(self) -> None:
        """Learn the structure and fit the regressors, unless that is done. Raises NoModel where the extra or samples are missing."""
        if self.regressors:
            return
        if not has_extra():
            raise NoModel("the extra is not installed: pip install '.[autosched]' in Stoker's source tree")
        if not self.graph.of_objective:
            self.graph = learn_graph(self.samples)
        from sklearn.ensemble import ExtraTreesRegressor  # takes seconds beside other work: not before there is enough to learn from

        def fitted(x: Floats, y: Floats) -> Any:
            return ExtraTreesRegressor(TREES, min_samples_leaf=2, random_state=0, n_jobs=1).fit(x, y) if x.shape[1] else float(y.mean())

        for number, name in enumerate(METRICS):
            self.regressors[name] = fitted(self._above(name, self.samples.first, self.samples.metrics), self.samples.metrics[:, number])
        known = self.samples.metrics[:, [METRICS.index(name) for name in self.graph.of_objective]]
        self.regressors["objective"] = fitted(known, self.samples.target)

    def _above(self, name: str, first: Floats, metrics: Floats) -> Floats:
        """The inputs of the regressor of a metric: the whole first layer if FCI found any cause in it, and the metrics that explain it."""
        columns, others = self.graph.of_metric[name]
        return np.column_stack((first if columns else first[:, :0], metrics[:, [METRICS.index(other) for other in others]]))

    def rewards(self, first: Floats) -> Floats:
        """Predicted logarithms of rewards: each metric from its parents, the objective from its own."""
        self.fit()
        metrics = np.zeros((len(first), len(METRICS)))
        for name in self._order():
            metrics[:, METRICS.index(name)] = _predicted(self.regressors[name], self._above(name, first, metrics))
        return _predicted(self.regressors["objective"], metrics[:, [METRICS.index(name) for name in self.graph.of_objective]])

    def _order(self) -> list[str]:
        """Metrics, causes before effects; those in a circle as they stand."""
        order: list[str] = []
        while len(order) < len(METRICS):
            left = [name for name in METRICS if name not in order]
            order.append(next((name for name in left if set(self.graph.of_metric[name][1]) <= set(order)), left[0]))
        return order

    def edges(self) -> list[tuple[str, str]]:
        """Causes and effects by name, keys in place of their columns, for the report."""
        keys = [*self.encoder.keys, *WORKLOAD_FEATURES]
        pairs = [(keys[p], name) for name, (columns, _) in self.graph.of_metric.items() for p in columns]
        pairs += [(other, name) for name, (_, others) in self.graph.of_metric.items() for other in others]
        return list(dict.fromkeys([*pairs, *((name, self.objective) for name in self.graph.of_objective)]))

    def on(self, features: Floats, in_force: Configuration | None = None) -> OnWorkload:
        """The model in one search. Predictions are relative to that of ``in_force``, whose reward is 1 by definition."""
        at_work = OnWorkload(self, features)
        if in_force is not None:
            at_work.base = float(self.rewards(at_work.row(in_force)[None, :])[0])
        return at_work


@dataclass
class OnWorkload:
    """The model at work in one search."""

    model: CausalModel
    features: Floats
    seen: list[Floats] = field(default_factory=list)
    wrong: list[float] = field(default_factory=list)  #: measured less predicted, logarithms
    base: float = 0.0  #: prediction for the configuration in force, which a mean over unlike configurations puts too low

    def predict(self, configs: Sequence[Configuration]) -> Sequence[float]:
        rows = np.array([self.row(config) for config in configs])
        predicted = self.model.rewards(rows) - self.base + np.array([self._correction(row) for row in rows])
        return [float(one) for one in np.exp(predicted)]

    def expected(self, configs: Sequence[Configuration]) -> Sequence[float]:
        return [float(one) for one in np.exp(self.model.rewards(np.array([self.row(config) for config in configs])) - self.base)]

    def row(self, config: Configuration) -> Floats:
        return np.concatenate((self.model.encoder.row(config), self.features))

    def _correction(self, row: Floats) -> float:
        """sum(k e) / (prior + sum(k)); k falls with the distance to each measurement of this search, e is its error."""
        if not self.seen:
            return 0.0
        distance = np.sqrt(((np.array(self.seen) - row) ** 2).mean(axis=1))
        near = np.exp(-0.5 * (distance / KERNEL_WIDTH) ** 2)
        return float((near * self.wrong).sum() / (PRIOR_SAMPLES + near.sum()))

    def learn(self, config: Configuration, figures: TrialFigures, reference: TrialFigures) -> None:
        """Line 12 of algorithm 3."""
        row, _, target = self.model.encoder.sample(config, self.features, self.model.objective, reference, figures)
        self.wrong.append(target + self.base - float(self.model.rewards(row[None, :])[0]))
        self.seen.append(row)

    def __str__(self) -> str:
        keys = {cause for cause, _ in self.model.edges()}.intersection(self.model.encoder.keys)
        return f"of {len(self.model.samples)} simulations; {', '.join(sorted(keys)) or 'no key'} play a part"


def samples_of(rows: Sequence[tuple[Floats, Floats, float]]) -> Samples:
    """``rows``: one at least."""
    return Samples(np.array([row for row, _, _ in rows]), np.array([row for _, row, _ in rows]), np.array([row for _, _, row in rows]))


def _predicted(regressor: Any, x: Floats) -> Floats:
    """The mean of the trees, asked one by one: scikit-learn's own predict takes longer than several small simulations."""
    if isinstance(regressor, float):
        return np.full(len(x), regressor)
    rows = np.ascontiguousarray(x, dtype=np.float32)
    mean: Floats = np.mean([tree.tree_.predict(rows)[:, 0] for tree in regressor.estimators_], axis=0)
    return mean
