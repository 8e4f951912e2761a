"""The agent of InTune (003 ch. 4): a deep Q-network with a branch a knob, and its replay.

One knob's branch chooses among −5, −1, 0, +1, +5. Branches are chosen apart (Tavakoli et al., Action Branching Architectures, 2018): five
knobs are 25 outputs instead of 5^5 = 3 125 joint actions. All branches share one three-layer perceptron that sees the knob's own row
(features.py); its sixth output is the row's part of the state's value, which makes the branches dueling: Q = mean of values + advantage.
The target is that of double Q-learning, averaged over the branches.
"""

from __future__ import annotations

import copy
import io
import json
import math
import zipfile
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .....engine.errors import UsageError
from .features import VERSION, WIDTHS, Rows

STEPS = (-5, -1, 0, 1, 5)  #: of a knob, 003 ch. 4.3
STAY = STEPS.index(0)
SHIPPED = "dqn.npz"

Choice = NDArray[np.int64]  #: shape (knobs,): places in STEPS


class Network(nn.Module):
    """Three layers with ReLU between. Rows (..., knobs, width) -> action values (..., knobs, len(STEPS))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, len(STEPS) + 1)
        )

    def forward(self, rows: Tensor, present: Tensor) -> Tensor:
        """``present`` (..., knobs): 1 if a row is a knob, 0 if it pads a shorter pipeline."""
        out = self.layers(rows)
        advantage = out[..., :-1]
        value = (out[..., -1] * present).sum(-1, keepdim=True) / present.sum(-1, keepdim=True)
        valued: Tensor = value.unsqueeze(-1) + advantage - advantage.mean(-1, keepdim=True)
        return valued


@dataclass(frozen=True, slots=True)
class Learning:
    """How an agent learns."""

    hidden: int = 64
    rate: float = 1e-3
    batch: int = 128
    discount: float = 0.9  #: a change shows in a window or two, the way to the best takes some ten windows
    ahead: int = 3  #: rewards that are summed before the network is asked: a change acts once the old queues are empty
    target_rate: float = 0.01  #: of the slow copy of the network towards the network, each update
    replay: int = 40_000


class Replay:
    """The last transitions, in arrays: rows, choices, discounted reward, rows after it, and which rows are knobs."""

    def __init__(self, capacity: int, knobs: int, width: int) -> None:
        self.capacity, self.size, self._next = capacity, 0, 0
        self.rows = np.zeros((capacity, knobs, width), np.float32)
        self.after = np.zeros((capacity, knobs, width), np.float32)
        self.chosen = np.zeros((capacity, knobs), np.int64)
        self.earned = np.zeros(capacity, np.float32)
        self.present = np.zeros((capacity, knobs), np.float32)

    def add(self, rows: Rows, chosen: Choice, earned: float, after: Rows) -> None:
        count, at = len(rows), self._next
        self.rows[at, :count], self.after[at, :count] = rows, after
        self.chosen[at, :count] = chosen
        self.earned[at] = earned
        self.present[at] = np.arange(self.present.shape[1]) < count
        self._next = (at + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        picked = rng.integers(0, self.size, count)
        chosen = (self.rows, self.chosen, self.earned, self.after, self.present)
        rows, choices, earned, after, present = (torch.from_numpy(each[picked]) for each in chosen)
        return rows, choices, earned, after, present


@dataclass(slots=True)
class Trail:
    """The windows of one pipeline that are not yet ``ahead`` old."""

    rows: list[Rows]
    chosen: list[Choice]
    earned: list[float]


class QAgent:
    """Chooses, remembers and learns. One agent may steer many pipelines at once, each with a trail of its own."""

    def __init__(self, layout: str = "stages", learning: Learning | None = None, *, knobs: int, seed: int = 0) -> None:
        self.layout = layout
        self.learning = learning or Learning()
        self.updates = 0
        self._rng = np.random.default_rng([seed, 0xA6])
        with torch.random.fork_rng(devices=[]):  # the caller's random state is the training job's
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs' too
            self.network = Network(WIDTHS[layout], self.learning.hidden)
        self._slow = copy.deepcopy(self.network)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=self.learning.rate)
        self.replay = Replay(self.learning.replay, knobs, WIDTHS[layout])
        self.recipe: dict[str, Any] = {}

    @torch.no_grad()
    def choose(self, rows: Rows, exploration: float = 0.0) -> Choice:
        """The best step of each knob, or with that probability any. Rows of several pipelines may stand in one array.

        The value of the state is the same for all steps of a knob, so the advantages alone decide.
        """
        chosen: Choice = self.network.layers(torch.from_numpy(rows))[:, :-1].argmax(-1).numpy()
        random = self._rng.random(len(rows)) < exploration
        chosen[random] = self._rng.integers(0, len(STEPS), int(random.sum()))
        return chosen

    def remember(self, trail: Trail, rows: Rows, chosen: Choice, earned: float, after: Rows) -> None:
        """The outcome of a choice; a transition is complete, and kept, when ``ahead`` windows have followed it."""
        trail.rows.append(rows)
        trail.chosen.append(chosen)
        trail.earned.append(earned)
        if len(trail.rows) == self.learning.ahead:
            total = sum(self.learning.discount**k * each for k, each in enumerate(trail.earned))
            self.replay.add(trail.rows.pop(0), trail.chosen.pop(0), total, after)
            trail.earned.pop(0)

    def learn(self) -> float:
        """One update from the replay; the loss."""
        rows, chosen, earned, after, present = self.replay.sample(self._rng, self.learning.batch)
        with torch.no_grad():
            best = self.network(after, present).argmax(-1, keepdim=True)
            later = (self._slow(after, present).gather(-1, best).squeeze(-1) * present).sum(-1) / present.sum(-1)
            target = earned + self.learning.discount**self.learning.ahead * later
        valued = self.network(rows, present).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        error = nn.functional.smooth_l1_loss(valued, target.unsqueeze(-1).expand_as(valued), reduction="none")
        loss = (error * present).sum() / present.sum()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
        self._optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self._slow.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, self.learning.target_rate)
        self.updates += 1
        return float(loss.detach())

    def pace(self, done: float) -> None:
        """Sets the learning rate for a training of which that share is done: falling to a tenth along a cosine."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning.rate * (0.55 + 0.45 * math.cos(math.pi * done))

    # -- weights

    def save(self, path: Path, recipe: dict[str, Any]) -> None:
        """The network and its recipe; the same bytes for the same weights and recipe."""
        about = {"layout": self.layout, "version": VERSION, "steps": STEPS, "learning": asdict(self.learning), "recipe": recipe}
        arrays = {name: tensor.numpy() for name, tensor in self.network.state_dict().items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez(file, about=np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8), **arrays)

    def load(self, path: Path | None = None) -> None:
        """Takes the weights of a file, or those that ship. UsageError: no such file, not one of ours, of another layout, or damaged."""
        name = SHIPPED if path is None else str(path)
        try:
            packed = resources.files(__package__).joinpath("weights", SHIPPED).read_bytes() if path is None else path.read_bytes()
        except OSError as error:
            raise UsageError(f"weights: {name} cannot be read ({error.strerror}); make it with {PRETRAIN} --out {name}") from None
        about, arrays = _unpacked(packed, name)
        _fits(about, self, name)
        mine = self.network.state_dict()
        wrong = [key for key, tensor in mine.items() if key not in arrays or arrays[key].shape != tuple(tensor.shape)]
        if wrong:
            raise UsageError(f"weights: {name} does not fit the network at {wrong[0]}; make it again with {PRETRAIN}")
        self.network.load_state_dict({key: torch.from_numpy(arrays[key]) for key in mine})
        self._slow.load_state_dict(self.network.state_dict())
        self.recipe = about["recipe"]


PRETRAIN = "`python benchmarks/intune_pretrain.py`"


def _unpacked(packed: bytes, name: str) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as file:
            return json.loads(file["about"].tobytes()), {key: file[key] for key in file.files if key != "about"}
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"weights: {name} is not a file of this agent's weights ({error}); make one with {PRETRAIN}") from None


def _fits(about: dict[str, Any], agent: QAgent, name: str) -> None:
    wanted = {"layout": agent.layout, "version": VERSION, "steps": list(STEPS), "hidden": agent.learning.hidden}
    found = {**about, "hidden": about["learning"]["hidden"]}
    for key, value in wanted.items():
        if found.get(key) != value:
            raise UsageError(f"weights: {name} has {key} {found.get(key)!r}, this agent needs {value!r}; make it again with {PRETRAIN}")
