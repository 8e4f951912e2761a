"""Causal models as rows (`causal_models`): they outlive the daemon, and are of one version of a policy."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...policies.autosched.causal_model import CausalModel
from ...policies.autosched.search_space import Space
from ...policies.own import Loaded
from ..store.store import Store
from ..store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class StoredModel:
    pool: str
    policy: str
    version: str  #: of the policy, as `version_of` has it
    model: CausalModel


def version_of(found: Loaded) -> str:
    """Digest of a policy's code and of its keys with their ranges: samples of another version are worth nothing."""
    source = found.code or inspect.getsource(sys.modules[found.policy.__module__])
    keys = [(key.name, repr(key.default), sorted(key.metadata.items(), key=str)) for key in dataclasses.fields(found.policy.Config)]
    return hashlib.sha256(f"{source}\n{keys!r}".encode()).hexdigest()[:16]


def keep_model(tx: Transaction, batch: Sequence[StoredModel]) -> Sequence[None]:
    """Replace the models of before."""
    rows: list[dict[str, Any]] = [
        {"pool": one.pool, "policy": one.policy, "objective": one.model.objective, "version": one.version,
         "samples": len(one.model.samples), "edges": json.dumps(one.model.edges()), "learnt": json.dumps(one.model.plain()),
         "updated_at": tx.now}
        for one in batch
    ]  # fmt: skip
    tx.upsert("causal_models", ["pool", "policy", "objective"], rows)
    return [None] * len(batch)


def stored_model(store: Store, pool: str, policy: str, loaded: Loaded, objective: str, space: Space) -> StoredModel:
    """The model of this version of the policy; a new one without samples where none is kept."""
    version = version_of(loaded)
    rows = store.rows("policy/causal_model", pool, policy, objective, version)
    model = CausalModel.of_plain(space, objective, json.loads(rows[0][0])) if rows else CausalModel.untrained(space, objective)
    return StoredModel(pool, policy, version, model)
