"""A model as a chain of operations that can be cut (004 ch. 3.3.4: the graph G(V, E), its nodes in topological order).

The model's forward is traced by torch.fx, in which modules of torch.nn are single nodes. Between any two nodes it may be cut; what is
still wanted of the values before the cut crosses it, several tensors where need be. A cut is not offered where the two sides could
not be computed apart: where an operation changes in place what crosses, or where one module's weights are used on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_iter

from ...engine.errors import UsageError

Values = dict[fx.Node, Any]  #: what nodes have computed


class BufferChanged(UsageError):
    """The forward changes a buffer that would not be carried back: the change would be lost in silence."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"memory: the model's forward changes its buffer {name!r}, and of buffers only running statistics (running_mean, running_var, "
            "num_batches_tracked) are carried back from a part; write 'memory: {swap: off}'"
        )


class _Tracer(fx.Tracer):
    """Goes into all modules but torch's own, those that the task names as whole, and those that could not be traced."""

    proxy_buffer_attributes = True  #: else what the forward does to a buffer is done once, while tracing, and is not in the graph

    def __init__(self, whole: set[str]) -> None:
        super().__init__(autowrap_modules=(math,))
        self.whole = whole
        self.inside: list[str] = []  #: modules that are being traced, outermost first

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return name in self.whole or super().is_leaf_module(module, name)

    def call_module(self, module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        name = self.path_of_module(module)
        self.inside.append(name)
        done = super().call_module(module, forward, args, kwargs)
        self.inside.pop()
        return done


def trace(model: nn.Module, whole: Sequence[str] = ()) -> fx.Graph:
    """The graph of the model's forward in its present mode. Modules that cannot be traced into are nodes of their own."""
    leaves = set(whole)
    if unknown := leaves - {name for name, _ in model.named_modules()}:
        raise UsageError(f"memory: the task's whole modules: the model has no module {sorted(unknown)[0]!r}")
    while True:
        tracer = _Tracer(leaves)
        buffers = [(module, dict(module._buffers)) for module in model.modules()]
        try:
            graph = tracer.trace(model)
        except Exception as error:
            if not tracer.inside:
                why = " ".join(str(error).split()) or type(error).__name__
                raise UsageError(
                    f"memory: the model cannot be cut into parts: tracing its forward fails ({why}); name the modules that must stay whole "
                    "in Task.whole, or write 'memory: {swap: off}'"
                ) from None
            leaves.add(tracer.inside[-1])
        else:
            for name, value in model.named_modules():
                if replaced := [key for key, now in value._buffers.items() if isinstance(now, fx.Proxy)]:
                    raise BufferChanged(f"{name}.{replaced[0]}".lstrip("."))
            return graph
        finally:
            for module, held in buffers:
                module._buffers.update(held)


class Chain:
    """The nodes of a model in order, which are to be computed in parts."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self.model, self.graph = model, graph
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
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.buffers = dict(model.named_buffers(remove_duplicate=False))
        self.tensors_of = [self._tensors(node) for node in self.nodes]  #: names of parameters and buffers that each node uses
        self._modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
        if not self.nodes:
            raise UsageError("memory: the model cannot be cut into parts: its forward computes nothing")

    def __len__(self) -> int:
        return len(self.nodes)

    def _tensors(self, node: fx.Node) -> list[str]:
        names = []
        if node.op == "call_module":
            prefix = f"{node.target}."
            names = [name for name in (*self.parameters, *self.buffers) if name.startswith(prefix)]
        names += [str(used.target) for used in node.all_input_nodes if used.op == "get_attr"]
        return names

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

    # ---- computing ----

    def compute(self, values: Values, start: int, stop: int) -> None:
        """Compute the nodes of a part; values that nothing wants any more are let go."""
        for index in range(start, stop):
            self.compute_node(values, index)

    def compute_node(self, values: Values, index: int) -> Any:
        node = self.nodes[index]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: self._value(values, used))
        if node.op == "call_module":
            result = self._modules[str(node.target)](*args, **kwargs)
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

    def module(self, path: str) -> nn.Module:
        return self._modules[path]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Values:
        """The inputs of the model as values."""
        names = {str(node.target).lstrip("*"): node for node in self.inputs}
        values: Values = {}
        if any(str(node.target).startswith("*") for node in self.inputs):
            raise UsageError("memory: the model cannot be cut into parts: its forward takes *args or **kwargs; name its arguments")
        if len(args) > len(self.inputs) or (unknown := [name for name in kwargs if name not in names]):
            raise UsageError(f"memory: the loss calls the model with arguments that its forward does not have {unknown if kwargs else ''}")
        for node, value in zip(self.inputs, args, strict=False):
            values[node] = value
        for name, value in kwargs.items():
            values[names[name]] = value
        for node in self.inputs:
            if node not in values:
                if not node.args:
                    raise UsageError(f"memory: the loss calls the model without its argument {node.target!r}")
                values[node] = node.args[0]
        return {node: value for node, value in values.items() if self.last_use[node] >= 0}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a value."""
    return (leaf for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor))


def size_of(value: Any) -> int:
    """Bytes of the tensors in it."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(value))
