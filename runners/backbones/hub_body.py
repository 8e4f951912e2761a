"""The body of a model of `hub_model` for a classifier: texts or pictures in, a vector of each out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..finetune.kept_features import KeptFeatures
from .hub_model import HubModel


class HubBody(nn.Module):
    """``layers``: the trained part: the head alone, the last layer too, or all. The rest is without gradients and dropout."""

    reads_texts = True

    def __init__(self, found: HubModel, layers: str) -> None:
        super().__init__()
        self.body = found.body
        self.bidirectional = found.bidirectional
        self.skipped = 0  #: places of a trained prompt before the first token
        trained = {} if layers == "head" else dict.fromkeys(_from_last_layer(found)) if layers == "last" else {self.body: None}
        self.body.requires_grad_(False)
        for module in trained:
            module.requires_grad_(True)
        inside = {inner for module in trained for inner in module.modules()}
        self._frozen = [module for module in self.body.modules() if module not in inside]

    def put(self, adapted: nn.Module, prompt: int) -> None:
        """Compute with the body in which small modules are trained; ``prompt``: tokens that it puts before the text."""
        self.body, self.skipped = adapted, prompt
        self._frozen = list(adapted.modules())

    def train(self, mode: bool = True) -> HubBody:
        super().train(mode)
        for module in self._frozen:
            module.training = False
        return self


class HubTexts(HubBody):
    """Vectors (batch, hidden) of tokens (batch, length); the mask is true where there is a token, padding is on the right."""

    def __init__(self, found: HubModel, layers: str) -> None:
        super().__init__(found, layers)
        self.hidden: int = found.config.hidden_size
        self.kept: KeptFeatures | None = None  #: the frozen part's outputs for texts
        self._order = list(found.layers) if layers == "last" else []  #: all layers, if the last alone is trained

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            return self._pooled(self._states(tokens, mask), mask)
        if not self._order:
            return self.kept.padded(tokens, mask, lambda row: self._alone(row)[0])
        states = self.kept.padded(tokens, mask, lambda row: self._before_last(row)[0])
        with _only_last(self._order, states):
            return self._pooled(self._states(tokens, mask), mask)

    def _states(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.body(input_ids=tokens, attention_mask=mask.long()).last_hidden_state.float()
        return states[:, self.skipped :]

    def _pooled(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not self.bidirectional:  # the last token alone has seen all
            return states[torch.arange(len(mask), device=mask.device), mask.sum(1) - 1]
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)

    def _alone(self, row: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(row, dtype=torch.bool)
        return self._pooled(self._states(row, mask), mask)

    def _before_last(self, row: torch.Tensor) -> torch.Tensor:
        """The last layer's input for a text, (1, length, hidden). That layer itself does not compute, so it draws nothing."""

        def reached(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            raise _Reached(given[0] if given else named["hidden_states"])

        hook = self._order[-1].register_forward_pre_hook(reached, with_kwargs=True)
        try:
            self._alone(row)
        except _Reached as found:
            return found.states
        finally:
            hook.remove()
        raise AssertionError("the last layer was not reached")

    def keeps_below(self) -> bool:
        """Whether features below the last layer can be kept, and given to it in place of the lower layers' output. Found by a trial."""
        if not self._order:
            return False
        row = torch.ones(1, 2, dtype=torch.int64, device=next(self.body.parameters()).device)
        modes = {module: module.training for module in self.body.modules()}
        try:
            with torch.no_grad():
                self.body.eval()
                plain = self._alone(row)
                with _only_last(self._order, self._before_last(row)):
                    return torch.allclose(self._alone(row), plain, rtol=1e-3, atol=1e-5)
        except (AssertionError, TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError):
            return False
        finally:
            for module, mode in modes.items():
                module.training = mode


class _Reached(Exception):
    def __init__(self, states: torch.Tensor) -> None:
        self.states = states


@contextmanager
def _only_last(layers: Sequence[nn.Module], states: torch.Tensor) -> Iterator[None]:
    """Within it the last layer gets ``states``, and the layers below are skipped."""

    def passed(*given: Any, **named: Any) -> Any:
        return given[0] if given else named["hidden_states"]

    def told(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ((states, *given[1:]), named) if given else ((), {**named, "hidden_states": states})

    for layer in layers[:-1]:
        vars(layer)["forward"] = passed
    hook = layers[-1].register_forward_pre_hook(told, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
        for layer in layers[:-1]:
            del vars(layer)["forward"]


class HubPictures(HubBody):
    """Vectors (batch, hidden) of pictures (batch, channels, height, width)."""

    reads_texts = False

    def __init__(self, found: HubModel, layers: str, side: int) -> None:
        super().__init__(found, layers)
        self._has_class = any(name.rpartition(".")[2] == "cls_token" for name, _ in self.body.named_parameters())
        with torch.no_grad():
            channels = getattr(found.model.config, "num_channels", 3)
            self.hidden = self.forward(torch.zeros(1, channels, side, side)).shape[1]

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        out: Any = self.body(pixel_values=pictures.to(next(self.body.parameters()).dtype))
        pooled: torch.Tensor | None = getattr(out, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1).float()
        states: torch.Tensor = out.last_hidden_state.float()
        if states.dim() == 4:
            return states.mean((2, 3))
        return states[:, 0] if self._has_class else states.mean(1)


def _from_last_layer(found: HubModel) -> Iterator[nn.Module]:
    """The last of its layers, and the modules that the model defines after them, such as the norm at its end."""
    if not found.layers:
        yield found.body
        return
    last = found.layers[-1]
    yield last
    path = next(name for name, module in found.body.named_modules() if module is last).split(".")
    for depth in range(len(path) - 1):  # of each module around it, those behind
        around = found.body.get_submodule(".".join(path[:depth]))
        children = list(around.named_children())
        place = [name for name, _ in children].index(path[depth])
        yield from (module for _, module in children[place + 1 :])
