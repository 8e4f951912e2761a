"""GPT-2 of the package transformers, trained in less memory than it needs: four lines, and a job that names them (docs/memory.md).

    stoker submit swapped.yaml --follow      # of what stands below; in the folder of this file

name: swapped-gpt2
entrypoint: swap_transformers:task
params: {width: 256, layers: 6}
memory: {cap: 24MiB, accumulate: 2}
stop: {iterations: 40}
estimate: 5m

It learns to go on with a text, byte by byte: this file, unless `params: {data: FILE}` names another one. Its weights take 20 MB, with
gradients and AdamW's state 80. The losses are those of `memory: {swap: off, accumulate: 2}`, to the bit on a CPU slot.
Any model of transformers that trains under gradient checkpointing can stand in its place, as
`AutoModelForCausalLM.from_pretrained(FOLDER, use_cache=False)`; `use_cache=False`, as a training has no use for a cache of keys.
"""

from pathlib import Path

import torch
from stoker.runners.training import Task
from transformers import GPT2Config, GPT2LMHeadModel

ENDS = {"bos_token_id": 0, "eos_token_id": 0}  # bytes that no text has


def task(data: str = __file__, width: int = 256, layers: int = 6, length: int = 64) -> Task:
    model = GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=layers, n_head=8, n_positions=length, vocab_size=256, use_cache=False, **ENDS))
    text = torch.tensor(list(Path(data).read_bytes()))
    samples = text.unfold(0, length, length // 2)
    return Task(model=model, train=samples, loss=lambda model, batch: model(input_ids=batch, labels=batch).loss, batch_size=4)
