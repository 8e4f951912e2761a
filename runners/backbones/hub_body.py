"""The body of a model of `hub_model` as a classifier needs it: texts or pictures in, a vector of each out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .hub_model import HubModel

LAYERS = ("head", "last", "all")  #: what of a classifier is trained: the head alone, the last layer too, or all


class HubBody(nn.Module):
    """``layers``: one of `LAYERS`. What is not trained is without gradients and dropout."""

    reads_texts = True

    def __init__(self, found: HubModel, layers: str) -> None:
        super().__init__()
        self.body = found.body
        self.bidirectional = found.bidirectional
        self.skipped = 0  #: places before the first token, of a prompt that is trained
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

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.body(input_ids=tokens, attention_mask=mask.long()).last_hidden_state.float()
        states = states[:, self.skipped :]
        if not self.bidirectional:  # the last token alone has seen all
            return states[torch.arange(len(tokens), device=tokens.device), mask.sum(1) - 1]
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)


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
    """The last of its layers, and what the model defines after them, such as the norm at its end."""
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
