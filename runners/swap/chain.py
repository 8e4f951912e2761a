"""A model as a chain of operations that can be cut (004 ch. 3.3.4: the graph G(V, E), its nodes in topological order).

The model's forward is traced by torch.fx, in which modules of torch.nn are single nodes. Between any two nodes it may be cut; what is
still wanted of the values before the cut crosses it, several tensors where need be. A cut is not offered where the two sides could
not be computed apart: where an operation changes in place what crosses, or where one module's weights are used on both sides.
"""

from __future__ import annotations

import math
from collections import deque
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


class AttributeChanged(UsageError):
    """The forward changes what is neither parameter nor buffer: parts are computed twice, and traced code runs once for all steps."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"memory: the model's forward changes its attribute {name!r}, which a model that is cut into parts cannot keep; "
            "leave that out, or write 'memory: {swap: off}'"
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
        attributes = held_by(model)
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
            require_same(model, attributes)
            return graph
        finally:
            for module, held in buffers:
                module._buffers.update(held)


Held = dict[nn.Module, dict[str, tuple[Any, Any]]]  #: attributes of modules: the value, and what is in it where that is a container


def held_by(module: nn.Module) -> Held:
    """What the module and those in it hold beside parameters, buffers and modules."""
    own = ("_parameters", "_buffers", "_modules")
    return {
        each: {
            name: (value, _content(value))
            for name, value in vars(each).items()
            if name not in own and not name.startswith("_tensor_constant")  # those that tracing has put there
        }
        for each in module.modules()
    }


def _content(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value._version
    if isinstance(value, Mapping):
        return [(name, id(each)) for name, each in value.items()]
    return list(map(id, value)) if isinstance(value, (list, set, deque)) else None


def require_same(module: nn.Module, before: Held, path: str = "") -> None:
    """AttributeChanged where the module does not hold what it held; that is put back where it was another value."""
    paths = {each: name for name, each in module.named_modules(prefix=path)}
    for each, held in held_by(module).items():
        for name in held.keys() | before[each].keys():
            was, now = before[each].get(name), held.get(name)
            if was is None or now is None or was[0] is not now[0] or was[1] != now[1]:
                vars(each).update({name: was[0]} if was is not None else {})
                raise AttributeChanged(f"{paths[each]}.{name}".lstrip("."))


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
        self._modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.buffers = dict(model.named_buffers(remove_duplicate=False))
        #: tensors that are neither: constants of the forward, attributes that were not registered; they are loaded as these are
        self.constants = self._constants()
        self.tensors_of = [self._tensors(node) for node in self.nodes]  #: names of parameters and buffers that each node uses
        if not self.nodes:
            raise UsageError("memory: the model cannot be cut into parts: its forward computes nothing")

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

    # ---- computing ----

    def compute(self, values: Values, start: int, stop: int) -> None:
        """Compute the nodes of a part; values that nothing wants any more are let go."""
        for index in range(start, stop):
            self.compute_node(values, index)

    def compute_node(self, values: Values, index: int) -> Any:
        node = self.nodes[index]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda used: self._value(values, used))
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
