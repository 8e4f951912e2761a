"""Bytes that an item keeps in memory: data, objects, views of something larger, and what refers to itself."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from stoker.runners.loaders.readings import sizes
from stoker.runners.loaders.readings.sizes import nbytes


@dataclass
class Boxed:
    image: torch.Tensor


@dataclass(eq=False, repr=False)
class Node:
    """Of a graph in which everybody knows everybody."""

    out: list[Node] = field(default_factory=list)
    into: list[Node] = field(default_factory=list)
    near: dict[int, Node] = field(default_factory=dict)


class Unreadable:
    @property
    def nbytes(self) -> int:
        raise OSError("the file is closed")


@pytest.mark.parametrize(
    ("item", "data", "over"),
    [
        (torch.zeros(100, 10), 4000, 600),
        (np.zeros((50, 20), dtype=np.int16), 2000, 200),
        (b"x" * 500, 500, 50),
        ("text" * 100, 400, 60),
        ((torch.zeros(1000), 3), 4000, 700),
        ({"image": torch.zeros(1000), "labels": [1, 2, 3]}, 4000, 1200),
        ([torch.zeros(100) for _ in range(1000)], 400_000, 600_000),
        ([torch.zeros(100)] * 1000, 400, 9000),
        (Boxed(torch.zeros(1000)), 4000, 1000),
        (Unreadable(), 0, 100),
        (None, 0, 0),
    ],
    ids=["tensor", "array", "bytes", "text", "pair", "fields", "long list", "one of which a list is", "object", "unreadable", "nothing"],
)
def test_bytes_of_an_item(item: Any, data: int, over: int) -> None:
    assert data <= nbytes(item) <= data + over


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("layout", "data"),
    [
        (torch.sparse_coo, 500 * (2 * 8 + 4)),
        (torch.sparse_csr, 501 * 8 + 500 * (8 + 4)),
        (torch.sparse_csc, 501 * 8 + 500 * (8 + 4)),
    ],
    ids=["coo", "csr", "csc"],
)
def test_bytes_of_a_sparse_tensor(layout: torch.layout, data: int) -> None:
    item = torch.eye(500).to_sparse(layout=layout)
    assert data <= nbytes(item) <= data + 4 * 600


def test_bytes_of_small_items_are_those_of_their_objects() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        # Many: the interpreter keeps up to 2000 freed tuples and 80 lists and dicts, whose reuse is no new memory.
        held = [(number, [bytes(3), 1.5 * number], {"label": str(number)}) for number in range(1000, 21_000)]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert sum(nbytes(item) for item in held) == pytest.approx(grown, rel=0.25)


def test_a_view_counts_what_it_alone_keeps_in_memory() -> None:
    array, tensor = np.zeros((1000, 1000), dtype=np.uint8), torch.zeros(1000, 1000, dtype=torch.uint8)
    assert nbytes(array[:4, :4]) < 1000  # of a data set in memory, say
    assert nbytes(tensor[:4, :4]) < 1000
    array_crop, tensor_crop = array[:4, :4], tensor[:4, :4]
    del array, tensor
    assert 1_000_000 < nbytes((array_crop, 7)) < 1_001_000
    assert 1_000_000 < nbytes({"crop": tensor_crop}) < 1_002_000


def test_bytes_of_what_contains_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert 0 < nbytes(loop) < 200


def test_a_graph_is_counted_once_and_by_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, of = [], sizes._Count.of

    def counted(self: Any, item: Any, depth: int) -> int:
        looks.append(item)
        return of(self, item, depth)

    monkeypatch.setattr(sizes._Count, "of", counted)
    nodes = [Node() for _ in range(30)]
    for node in nodes:
        node.out, node.into, node.near = list(nodes), list(nodes), dict(enumerate(nodes))
    assert 30 * 1000 < nbytes(nodes[0]) < 30 * 10_000
    assert len(looks) < 10_000


def test_looks_are_bounded_however_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_VISITS", 50)
    deep = [[[[bytearray(10) for _ in range(30)] for _ in range(30)] for _ in range(30)] for _ in range(2)]
    seen = sizes._Count()
    assert seen.of(deep, sizes._DEPTH) > 0
    assert len(seen._seen) == 50
