"""A call of a unit that is computed twice: forward without a graph, and again with one when its backward comes, as checkpointing does.

Between calls autograd's own graph stands, and the call is one node of it, so sums of gradients and hooks are the same as without parts.
The call's node also stands in the history of its inputs: uses of an input after the call come after that node in the graph. So the node
gets the sum of these later gradients, and adds its own where autograd would, in the same order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...engine.errors import UsageError
from ..train import rng
from .interception import Unit
from .micro_batch import IN_PLACE, MicroBatch
from .module_state import Held, held_by, hold

_AUTOCAST_DEVICES = ("cpu", "cuda")
_IN_ARGUMENTS = "changes what it is given", "let it change a copy, as x.clone() makes it"


class NoUnit(UsageError):
    """A module cannot be a unit as it stands; ``unit``: its name. Modules in it may still be units."""

    def __init__(self, unit: str, what: str, remedy: str) -> None:
        super().__init__(f"memory: {unit} {what}, so that it cannot be computed again; {remedy}, or write 'memory: {{swap: off}}'")
        self.unit = unit


class ComputesOtherwise(UsageError):
    """A unit does something else when it is computed again."""

    def __init__(self, unit: str, why: str) -> None:
        super().__init__(
            f"memory: {unit} does something else when it is computed a second time ({why}); if it extends a key-value cache, build the "
            "model with use_cache=False, else let it change nothing but its buffers, or write 'memory: {swap: off}'"
        )


class Leaked(Exception):
    """Gradients have come to a tensor that a unit computed without keeping anything for its backward."""

    def __init__(self, unit: str) -> None:
        super().__init__(unit)
        self.unit = unit


@dataclasses.dataclass(slots=True)
class _Made:
    """An input that another call of the same part has made. It is not kept: it is made again when that call is computed again."""

    call: UnitCall
    number: int
    version: int  #: torch's count of its changes in place

    @property
    def value(self) -> Any:
        assert self.call.again is not None
        return self.call.again.made[self.number]


class _Node(torch.autograd.Function):
    """The call in autograd's graph. Its ``inputs`` are outputs too, so that their later uses come after it in the graph."""

    @staticmethod
    def forward(ctx: Any, call: UnitCall, made: Sequence[torch.Tensor], owned: int, root: torch.Tensor, *inputs: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.call, ctx.made = call, len(made)
        ctx.mark_dirty(*inputs[:owned])
        return (*made, *inputs[:owned])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call, ctx.call = ctx.call, None
        return (None, None, None, None, *call.back(gradients[: ctx.made], gradients[ctx.made :]))


class _Entry(torch.autograd.Function):
    """Where a value enters a unit. Its gradient is kept as it comes, not as ``.grad`` of a leaf, which has the value's layout in memory.

    For a transposed view that layout would change the order of later sums.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, came: list[torch.Tensor]) -> torch.Tensor:
        ctx.came = came
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.came.append(gradients[0])
        return None, None


class _Again:
    """The results of a call that was computed again, with their graph."""

    def __init__(
        self, entries: list[torch.Tensor], came: list[list[torch.Tensor]], made: list[Any], shared: list[nn.Parameter], visit: int
    ) -> None:
        self.entries, self.came, self.made, self.shared, self.visit = entries, came, made, shared, visit


class UnitCall:
    """One call of a unit by a micro-batch, at ``place``, in part ``part``."""

    def __init__(self, unit: Unit, run: MicroBatch, part: int, place: int) -> None:
        self.unit, self.run, self.part, self.place, self.visit = unit, run, part, place, run.visit
        self.again: _Again | None = None

    def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The unit's answer. Its gradients will come to `back`."""
        flat, self.form = flattened((args, kwargs))
        self.generators, self.autocast = rng.get_state(), _autocast()
        self.before = [slot.get().clone() for slot in self.unit.moving], held_by(self.unit.changing)
        own: dict[int, torch.Tensor] = {}  #: by the id of each tensor that was given: the one that the unit sees
        seen = [own.setdefault(id(leaf), _kept(leaf)) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
        # Gradients are enabled, so that the same kernels run as on the way back. Nothing is kept for a backward.
        with torch.autograd.graph.saved_tensors_hooks(lambda _: None, self._leaked), _without_cache(), self._unchanged(seen):
            made, form = flattened(self._computed(seen))
        given = {id(own[id(leaf)]): leaf for leaf in _tensors(flat)}
        self.inputs = [leaf for leaf in dict.fromkeys(_tensors(flat)) if leaf.requires_grad]
        answer = [given.get(id(leaf), self._apart(leaf)) if isinstance(leaf, torch.Tensor) else leaf for leaf in made]
        self.numbers = [number for number, leaf in enumerate(made)
                        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and id(leaf) not in given]  # fmt: skip
        for number, out in zip(self.numbers, self._joined([answer[number] for number in self.numbers]), strict=True):
            answer[number] = out
            out.made_by = _Made(self, number, out._version)  # type: ignore[attr-defined]
        self._keep(flat)
        return unflattened(answer, form)

    def _leaked(self, _: None) -> torch.Tensor:
        raise Leaked(self.unit.name)

    def _apart(self, leaf: torch.Tensor) -> torch.Tensor:
        """A tensor of the answer without its history. It is copied where it lies in the memory of weights, which will leave the device."""
        if leaf._is_view() or leaf.is_leaf:
            weights = {each.untyped_storage()._cdata for each in (*self.unit.module.parameters(), *self.unit.module.buffers())}
            if leaf.untyped_storage()._cdata in weights:
                return leaf.detach().clone()
        return leaf.detach()

    @contextmanager
    def _unchanged(self, seen: Sequence[Any]) -> Iterator[None]:
        """NoUnit where the call changes its arguments in place."""
        versions = [leaf._version for leaf in _tensors(seen)]
        try:
            yield
        except RuntimeError as error:
            if "leaf Variable that requires grad" not in str(error):
                raise
            raise NoUnit(self.unit.name, *_IN_ARGUMENTS) from None
        if versions != [leaf._version for leaf in _tensors(seen)]:
            raise NoUnit(self.unit.name, *_IN_ARGUMENTS)

    def _joined(self, made: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors that the call has made, joined to autograd's graph."""
        # A view shares its history with its base, so it is left alone; its sum may be in another order.
        self.inputs.sort(key=lambda leaf: leaf.is_leaf or leaf._is_view() or bool(leaf._backward_hooks) or leaf.retains_grad)
        owned = sum(not (leaf.is_leaf or leaf._is_view() or leaf._backward_hooks or leaf.retains_grad) for leaf in self.inputs)
        self.shared = [slot for slot in self.unit.shared if slot.get().requires_grad]
        weights = [slot.get() for slot in self.shared]
        root = torch.empty(0, requires_grad=True)
        with torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(self.inputs[:owned])):  # their content does not change
            return _Node.apply(self, made, owned, root, *self.inputs, *weights)[: len(made)]  # type: ignore[no-untyped-call, no-any-return]

    def _keep(self, flat: list[Any]) -> None:
        """Keep what is needed to compute the call again."""
        self.kept: list[Any] = []
        for leaf in flat:
            made = getattr(leaf, "made_by", None) if isinstance(leaf, torch.Tensor) else None
            if made is not None and made.call.visit == self.visit and made.call.run is self.run and leaf._version == made.version:
                self.kept.append(made)
            else:
                self.kept.append(_kept(leaf) if isinstance(leaf, torch.Tensor) else leaf)
        self.versions = [leaf._version if isinstance(leaf, torch.Tensor) else None for leaf in self.kept]
        places = {id(leaf): number for number, leaf in reversed(list(enumerate(flat)))}
        self.same = [places[id(leaf)] for leaf in flat]  #: of each the first place at which the same one stands
        self.wanted = [places[id(leaf)] for leaf in self.inputs]
        del self.inputs

    def _computed(self, seen: Sequence[Any]) -> Any:
        args, kwargs = unflattened(seen, self.form)
        answer = self.unit.forward(*args, **kwargs)
        after, _ = flattened((args, kwargs))
        if len(after) != len(seen) or any(one is not other for one, other in zip(after, seen, strict=True)):
            raise NoUnit(self.unit.name, *_IN_ARGUMENTS)
        return answer

    # ---- on the way back ----

    def back(self, came: Sequence[torch.Tensor | None], later: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Gradients of its inputs, from the gradients of its outputs (``came``) and of later uses of its inputs (``later``)."""
        if all(gradient is None for gradient in came):
            self.kept = []
            return [*later, *[None] * (len(self.wanted) + len(self.shared) - len(later))]
        self.run.pause(self.part, back=True)
        self.run.rest(self.place)
        self.run.computing()
        again = self._recomputed()
        self.run.computed()
        pairs = [(again.made[number], gradient) for number, gradient in zip(self.numbers, came, strict=True) if gradient is not None]
        pairs += [(entry, gradient) for entry, gradient in zip(again.entries, later, strict=False) if gradient is not None]
        self.again, self.kept = None, []
        try:
            torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])
        except Leaked as error:
            raise ComputesOtherwise(error.unit, "it uses what it has kept of the first time") from None
        self.run.gone_back(self.part)
        return [*(found[-1] if found else None for found in again.came), *(weight.grad for weight in again.shared)]

    def _recomputed(self) -> _Again:
        """Compute the call again, after the calls of the same part that make its inputs."""
        wanted, order = [self], list[UnitCall]()
        while wanted:
            call = wanted.pop()
            if call.again is None or call.again.visit != self.run.visit:
                order.append(call)
                wanted += [leaf.call for leaf in call.kept if isinstance(leaf, _Made)]
        for call in reversed(order):
            if call.again is None or call.again.visit != self.run.visit:
                call._compute_again()
        assert self.again is not None
        return self.again

    @torch.enable_grad()
    def _compute_again(self) -> None:
        flat: list[Any] = []
        came: dict[int, list[torch.Tensor]] = {number: [] for number in self.wanted}
        for number, (leaf, version) in enumerate(zip(self.kept, self.versions, strict=True)):
            if self.same[number] != number:
                flat.append(flat[self.same[number]])
                continue
            if isinstance(leaf, torch.Tensor) and leaf._version != version:
                raise UsageError(f"{IN_PLACE} (what {self.unit.name} is given)")
            value = leaf.value if isinstance(leaf, _Made) else leaf
            value = _kept(value) if isinstance(value, torch.Tensor) else value
            flat.append(_Entry.apply(value, came[number]) if number in came else value)  # type: ignore[no-untyped-call]
        weights = [slot.get() for slot in self.shared]
        shared = [nn.Parameter(weight.detach()) for weight in weights]
        try:
            for slot, copy_of in zip(self.shared, shared, strict=True):
                slot.put(copy_of)
            with _under(self.autocast), self._as_it_was():
                made, _ = flattened(self._computed(flat))
        finally:
            for slot, weight in zip(self.shared, weights, strict=True):
                slot.put(weight)
        self.again = _Again([flat[number] for number in self.wanted], list(came.values()), made, shared, self.run.visit)

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """In the block, generators, buffers and attributes are as they were before the call; afterwards they are as they are now."""
        now = rng.get_state(), [slot.get() for slot in self.unit.moving], held_by(self.unit.changing)
        self._put_back(self.generators, *self.before)
        try:
            yield
        finally:
            self._put_back(*now)

    def _put_back(self, generators: Any, buffers: Sequence[torch.Tensor], held: Held) -> None:
        rng.set_state(generators)
        for slot, value in zip(self.unit.moving, buffers, strict=True):
            slot.put(value)  # another tensor: autograd refuses to go back through statistics that have changed since
        hold(held)


def _kept(leaf: torch.Tensor) -> torch.Tensor:
    """The tensor without its history; it still requires a gradient if it did."""
    return leaf.detach().requires_grad_(leaf.requires_grad)


def _tensors(flat: Sequence[Any]) -> Iterator[torch.Tensor]:
    return (leaf for leaf in flat if isinstance(leaf, torch.Tensor))


# ---- values of several tensors ----


@dataclasses.dataclass(slots=True)
class _Form:
    """How a value is put together from its leaves; ``inner``: the same for leaves that are dataclasses."""

    spec: Any
    inner: dict[int, tuple[Any, list[str], _Form, int]]


def flattened(value: Any) -> tuple[list[Any], _Form]:
    """The leaves of a value. torch takes a dataclass for one leaf; here its fields are leaves too."""
    leaves, spec = tree_flatten(value)
    flat: list[Any] = []
    form = _Form(spec, {})
    for number, leaf in enumerate(leaves):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            names = [each.name for each in dataclasses.fields(leaf) if hasattr(leaf, each.name)]
            inner, how = flattened([getattr(leaf, name) for name in names])
            form.inner[number] = leaf, names, how, len(inner)
            flat += inner
        else:
            flat.append(leaf)
    return flat, form


def unflattened(flat: Sequence[Any], form: _Form) -> Any:
    leaves: list[Any] = []
    place = 0
    for number in range(form.spec.num_leaves):
        if number in form.inner:
            value, names, how, count = form.inner[number]
            made = copy(value)
            for name, each in zip(names, unflattened(flat[place : place + count], how), strict=True):
                object.__setattr__(made, name, each)
            leaves.append(made)
            place += count
        else:
            leaves.append(flat[place])
            place += 1
    return tree_unflatten(leaves, form.spec)


# ---- autocast ----


def _autocast() -> list[tuple[str, bool, torch.dtype]]:
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES]


@contextmanager
def _under(states: Sequence[tuple[str, bool, torch.dtype]]) -> Iterator[None]:
    with ExitStack() as stack:
        for kind, enabled, dtype in states:
            if enabled or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        yield


@contextmanager
def _without_cache() -> Iterator[None]:
    """Without autocast's cache: a weight that it has cast here has no graph, and must not be used later."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
