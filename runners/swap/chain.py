"""A model as a chain of operations that can be cut (004 ch. 3.3.4: the graph G(V, E), its nodes in topological order).

Between any two nodes it may be cut; what is still wanted of the values before the cut crosses it, several tensors where need be. A cut is
not offered where the two sides could not be computed apart: where an operation changes in place what crosses, or where one module's
weights are used on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_iter

from ...engine.errors import UsageError
from .model_graph import Fixed, Traced, arguments, held_by, require_same, without_gradients

Values = dict[fx.Node, Any]  #: what nodes have computed


class Chain:
    """The nodes of a model in order, which are to be computed in parts."""

    def __init__(self, model: nn.Module, traced: Traced) -> None:
        graph = traced.graph
        self.model, self.graph, self.given = model, graph, traced.given
        self.inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self.nodes = [node for node in graph.nodes if node.op in ("call_module", "call_function", "call_method")]
        (self.output,) = (node for node in graph.nodes if node.op == "output")
        self.place = {node: index for index, node in enumerate(self.nodes)}
        self.place |= dict.fromkeys(self.inputs, -1)
        last = len(self.nodes)
        #: of each value the place of the last node that uses it
        self.last_use = {
            node: max((last if user.op == "output" else self.place.get(user, last) for user in node.users), default=-1)
            for node in (*self.inputs, *self.nodes)
        }
        self._modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.buffers = dict(model.named_buffers(remove_duplicate=False))
        #: tensors that are neither: constants of the forward, attributes that were not registered; they are loaded as these are
        self.constants = self._constants()
        self.tensors_of = [self._tensors(node) for node in self.nodes]  #: names of parameters and buffers that each node uses
        if not self.nodes:
            raise UsageError("memory: the model cannot be cut into parts: its forward computes nothing")
        for name, module in self._modules.items():
            if getattr(module, "sparse", None) is True and any(each.requires_grad for each in module.parameters()):
                raise UsageError(f"memory: {name} has sparse gradients, which cannot be swapped out; write sparse=False for it")
        self._fixed = Fixed(model, {str(node.target) for node in self.nodes if node.op == "call_module"})

    def __len__(self) -> int:
        return len(self.nodes)

    def _constants(self) -> dict[str, torch.Tensor]:
        names = {str(node.target) for node in self.graph.nodes if node.op == "get_attr"}
        values = {name: self.attribute(name) for name in sorted(names - self.parameters.keys() - self.buffers.keys())}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def _tensors(self, node: fx.Node) -> list[str]:
        names = []
        if node.op == "call_module":
            prefix = f"{node.target}."
            names = [name for name in (*self.parameters, *self.buffers) if name.startswith(prefix)]
        used = [str(used.target) for used in node.all_input_nodes if used.op == "get_attr"]
        return names + [name for name in used if name in self.parameters or name in self.buffers or name in self.constants]

    def master(self, name: str) -> torch.Tensor:
        """A parameter, buffer or constant as it is on the host."""
        for held in (self.parameters, self.buffers, self.constants):
            if name in held:
                return held[name]
        raise KeyError(name)

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """The model computes with this one from here on."""
        path, _, last = name.rpartition(".")
        module = self._modules[path]
        place: dict[str, Any] = module._parameters if name in self.parameters else module._buffers if name in self.buffers else vars(module)
        place[last] = tensor

    def crossing(self, cut: int) -> list[fx.Node]:
        """Values that cross a cut before node ``cut``: computed before it, used by it or later."""
        return [node for node in (*self.inputs, *self.nodes[:cut]) if self.last_use[node] >= cut]

    def wanted(self, start: int, stop: int) -> list[fx.Node]:
        """Values from before the part [start, stop) that it uses."""
        ours = set(self.nodes[start:stop])
        users: list[fx.Node] = [*self.nodes[start:stop], *([self.output] if stop == len(self) else [])]
        used = {node for user in users for node in user.all_input_nodes if node.op != "get_attr" and node not in ours}
        return [node for node in (*self.inputs, *self.nodes[:start]) if node in used]

    def made(self, start: int, stop: int) -> list[fx.Node]:
        """Values of the part [start, stop) that are used after it."""
        return [node for node in self.nodes[start:stop] if self.last_use[node] >= stop]

    def names(self, start: int, stop: int) -> list[str]:
        """Parameters and buffers of the part."""
        return list(dict.fromkeys(name for names in self.tensors_of[start:stop] for name in names))

    def bound_cuts(self, names: set[str]) -> set[int]:
        """Cuts that would put the uses of one of these names into two parts."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for index, used in enumerate(self.tensors_of):
            for name in set(used) & names:
                first.setdefault(name, index)
                last[name] = index
        return {cut for name in first for cut in range(first[name] + 1, last[name] + 1)}

    def binding(self) -> str | None:
        """The trained parameter that keeps half of the chain or more in one part, as it is used far apart under one name."""
        trained = [name for name, value in self.parameters.items() if value.requires_grad]
        widest = max(trained, key=lambda name: len(self.bound_cuts({name})), default=None)
        return widest if widest is not None and 2 * len(self.bound_cuts({widest})) >= len(self) > 1 else None

    def require_unchanged(self) -> None:
        """UsageError where the model is not what was traced, so that the graph would compute something else than its forward."""
        self._fixed.require(self.model)

    def unchanged(self) -> bool:
        with suppress(UsageError):
            self.require_unchanged()
            return True
        return False

    # ---- computing ----

    def compute(self, values: Values, start: int, stop: int) -> None:
        """Compute the nodes of a part; values that nothing wants any more are let go."""
        for index in range(start, stop):
            self.compute_node(values, index)

    def compute_node(self, values: Values, index: int) -> Any:
        node = self.nodes[index]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: self._value(values, used))
        with without_gradients(node):
            if node.op == "call_module":
                module = self._modules[str(node.target)]
                before = {} if type(module).__module__.startswith("torch.nn") else held_by(module)
                result = module(*args, **kwargs)
                if before:
                    require_same(module, before, str(node.target))
            elif node.op == "call_function":
                result = node.target(*args, **kwargs)
            else:
                result = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        values[node] = result
        for used in {*node.all_input_nodes, node}:
            if used.op != "get_attr" and self.last_use[used] <= index:
                del values[used]
        return result

    def answer(self, values: Values) -> Any:
        """What the model's forward returns."""
        return fx.node.map_arg(self.output.args[0], lambda used: self._value(values, used))

    def _value(self, values: Values, node: fx.Node) -> Any:
        return self.attribute(str(node.target)) if node.op == "get_attr" else values[node]

    def attribute(self, name: str) -> Any:
        path, _, last = name.rpartition(".")
        return getattr(self._modules[path], last)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
        """The inputs of the model as values."""
        if any(str(node.target).startswith("*") for node in self.inputs):
            raise UsageError("memory: the model cannot be cut into parts: its forward takes *args or **kwargs; name its arguments")
        values, given = arguments(self.model, args, kwargs)
        for name in sorted(given.keys() | self.given.keys()):
            now, before = (f"{held[name]!r}" if name in held else "a value" for held in (given, self.given))
            if now != before:
                raise UsageError(
                    f"memory: the task's loss calls the model with {name} = {now}, and before with {before}: a model that is cut into "
                    "parts computes the same in each batch; write 'memory: {swap: off}'"
                )
        return {node: values[str(node.target)] for node in self.inputs if self.last_use[node] >= 0}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a value."""
    return (leaf for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor))


def versions(value: Any) -> list[int]:
    """Of all tensors in it torch's count of their changes in place."""
    return [tensor._version for tensor in tensors(value)]


def size_of(value: Any, rounded: Callable[[int], int] = int) -> int:
    """Bytes of the tensors in it, by what a device takes for each (``rounded``)."""
    return sum(rounded(tensor.numel() * tensor.element_size()) for tensor in tensors(value))
