"""The policy in docs/writing-a-policy.md is run as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from stoker.engine.scheduling.plan_check import check
from stoker.policies import registry
from views import Job, make_view, reasons, views
from views import given as given_gpus

GUIDE = Path(__file__).parents[2] / "docs" / "writing-a-policy.md"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    code = re.search(r"<!-- example: smallest -->\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL).group(1)
    folder = tmp_path_factory.mktemp("guide")
    (folder / "smallest.py").write_text(code)
    sys.path.insert(0, str(folder))
    yield "smallest:SmallestFirst"
    sys.path.remove(str(folder))
    sys.modules.pop("smallest", None)


def test_the_example_does_what_it_says(example):
    policy = registry.create(example, {"largest": 2})
    view = make_view([4], [Job(1, held=(3,)), Job(2, gpus=4), Job(3, gpus=2), Job(4), Job(5, gpus=2)])
    plan = policy.plan(view)
    assert given_gpus(plan) == {3: (0, 1), 4: (2,)}
    assert reasons(plan) == {2: "too-large", 5: "resources"}
    assert registry.describe_one(example)["config"][0]["name"] == "largest"


@given(view=views())
def test_its_plans_are_valid(example, view):
    check(registry.create(example, {}).plan(view), view)
