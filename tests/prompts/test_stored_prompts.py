"""The prompt bank in the tables: what is refused, where new prompts go, what they replace; its clusters, and its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.engine.errors import Conflict, UsageError
from stoker.engine.home import Home
from stoker.engine.prompts import stored_prompts
from stoker.engine.prompts.bank_files import BankFiles
from stoker.engine.prompts.clusters import cosine_distances, count_for, k_medoids
from stoker.engine.prompts.stored_prompts import BankKey, NewClusters, NewPrompt, NewPrompts, add_prompts, require_prompts, set_clusters
from stoker.engine.store.store import Store
from stoker.runners.prompts.lookup import prompts_of

BANK = BankKey(llm="tiny", revision="r1", tokenizer="t1")
OTHER = BankKey(llm="tiny", revision="r2", tokenizer="t1")


def prompt(text: str, *features: float) -> NewPrompt:
    return NewPrompt(text=text, features=list(features), source="test", task="sms")


def add(store: Store, *prompts: NewPrompt, bank: BankKey = BANK) -> dict:
    require_prompts(prompts)
    return store.write(add_prompts, NewPrompts(bank, prompts, "ann"))


def medoids(store: Store) -> dict[str, str]:
    """Text of each prompt, and of its representative."""
    with store.read() as con:
        return dict(con.execute("SELECT p.text, m.text FROM prompts p JOIN prompts m ON m.id = p.medoid").fetchall())


def clustered(store: Store) -> dict[str, int]:
    """A bank of two clusters, around `a` and `b`; numbers by text."""
    texts = {"a": (1.0, 0.0), "a2": (1.0, 0.2), "b": (0.0, 1.0), "b2": (0.2, 1.0)}
    ids = dict(zip(texts, add(store, *(prompt(text, *features) for text, features in texts.items()))["ids"], strict=True))
    store.write(set_clusters, NewClusters(BANK, {ids["a"]: ids["a"], ids["a2"]: ids["a"], ids["b"]: ids["b"], ids["b2"]: ids["b"]}))
    return ids


def test_a_prompt_is_stored_once_and_banks_are_never_mixed(store: Store) -> None:
    assert add(store, prompt("one", 1, 0), prompt("two", 0, 1), prompt("one", 1, 0))["added"] == 2
    assert add(store, prompt("one", 1, 0), prompt("three", 1, 1)) | {"ids": []} == {"added": 1, "known": 1, "ids": [], "replaced": []}
    assert add(store, prompt("one", 1, 2, 3), bank=OTHER)["added"] == 1  # of another revision: another bank, of another length
    assert store.rows("api/bank_stamps") == []  # without clusters there is nothing that a worker could use


def test_features_of_another_length_are_refused_whole(store: Store) -> None:
    add(store, prompt("one", 1, 0))
    with pytest.raises(Conflict, match=r"has 3 numbers, those of the bank tiny@r1 \(t1\) have 2"):
        add(store, prompt("two", 1, 0, 0))
    with pytest.raises(UsageError, match=r"prompts\[1\].features: has 3 numbers, prompts\[0\] has 2"):
        add(store, prompt("two", 1, 0), prompt("three", 1, 0, 0))
    with store.read() as con:
        assert con.execute("SELECT text FROM prompts").fetchall() == [("one",)]


@pytest.mark.parametrize("features", [(0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0), (1e300, 1.0)])
def test_features_without_a_direction_are_refused(features: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="direction"):
        require_prompts([prompt("x", *features)])


def test_a_new_prompt_goes_to_the_nearest_representative(store: Store) -> None:
    """4.4.3.3, first and second step."""
    clustered(store)
    add(store, prompt("near a", 5.0, 1.0), prompt("near b", 0.1, 0.3))
    assert medoids(store) == {"a": "a", "a2": "a", "b": "b", "b2": "b", "near a": "a", "near b": "b"}


def test_a_full_bank_replaces_what_is_nearest_to_the_representative(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.4.3.3, third step: in the cluster of the new prompt; the representative, at distance 0, stays."""
    ids = clustered(store)
    monkeypatch.setattr(stored_prompts, "CAPACITY", 4)
    assert add(store, prompt("far a", 1.0, 0.9))["replaced"] == [ids["a2"]]
    assert set(medoids(store)) == {"a", "b", "b2", "far a"}
    answer = add(store, prompt("like a", 1.0, 0.01))  # it is the nearest itself: the bank is as it was
    assert answer["replaced"] == answer["ids"] and set(medoids(store)) == {"a", "b", "b2", "far a"}


def test_a_full_bank_without_clusters_refuses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_prompts, "CAPACITY", 1)
    with pytest.raises(Conflict, match="no clusters yet"):
        add(store, prompt("one", 1, 0), prompt("two", 0, 1))


def test_clusters_take_in_what_came_meanwhile_and_refuse_what_is_gone(store: Store) -> None:
    ids = clustered(store)
    (late,) = add(store, prompt("late", 0.0, 2.0))["ids"]
    one = dict.fromkeys(ids.values(), ids["a"])
    assert store.write(set_clusters, NewClusters(BANK, one)) == {"clusters": 1, "prompts": 5}
    assert medoids(store)["late"] == "a" and late not in one
    for wrong in ({ids["a"]: ids["b"]}, {999: 999}, {}):
        with pytest.raises(Conflict, match="it has changed"):
            store.write(set_clusters, NewClusters(BANK, wrong))
    with pytest.raises(Conflict):  # of another bank
        store.write(set_clusters, NewClusters(OTHER, {ids["a"]: ids["a"]}))


def test_the_file_is_as_the_tables_are(store: Store, home: Home) -> None:
    files = BankFiles(store, home)
    add(store, prompt("of another", 1, 2, 3), bank=OTHER)
    clustered(store)
    files.refresh()
    path = home.bank(*BANK.key)
    with np.load(path, allow_pickle=False) as bank:
        assert bank["prompts"].tolist() == ["a", "a2", "b", "b2"] and bank["tasks"].tolist() == ["sms"] * 4
        assert bank["medoid"].tolist() == [0, 0, 2, 2] and bank["medoid"].dtype == np.int32
        assert bank["features"].shape == (4, 2) and bank["features"].dtype == np.float32
        assert str(bank["llm"]) == "tiny@r1" and str(bank["tokenizer"]) == "t1"
    assert not home.bank(*OTHER.key).exists()
    written = path.stat().st_mtime_ns
    files.refresh()
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"damaged")
    files.refresh()
    add(store, prompt("more", 1.0, 0.3))
    files.refresh()
    with np.load(path, allow_pickle=False) as bank:
        assert bank["prompts"].tolist()[-1] == "more" and bank["medoid"].tolist() == [0, 0, 2, 2, 0]


def test_a_tuned_prompt_keeps_its_vectors(store: Store, home: Home) -> None:
    clustered(store)
    tuned = NewPrompt(text="tuned", features=[0.1, 1.0], source="job 3", vectors=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    add(store, tuned, prompt("last", 1.0, 0.3))
    BankFiles(store, home).refresh()
    with np.load(home.bank(*BANK.key), allow_pickle=False) as bank:
        texts = prompts_of(bank)
    assert [text for text in texts if isinstance(text, str)] == ["a", "a2", "b", "b2", "last"]
    assert np.array_equal(np.asarray(texts[4]), [[1, 2], [3, 4], [5, 6]])
    for wrong in ([1.0, 2.0, 3.0], [1.0, float("nan")], [0.0] * 258):
        with pytest.raises(UsageError, match=r"prompts\[0\].vectors: must be at most 128 times 2 finite numbers, not"):
            add(store, NewPrompt(text="x", features=[1.0, 1.0], source="job 3", vectors=wrong))


@pytest.mark.parametrize("content", [b"", b"damaged", b"PK\x03\x04 and no more", None], ids=["empty", "no zip", "cut zip", "cut"])
def test_a_damaged_file_is_written_again(store: Store, home: Home, content: bytes | None) -> None:
    files = BankFiles(store, home)
    clustered(store)
    files.refresh()
    path = home.bank(*BANK.key)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30] if content is None else content)
    files.refresh()
    with np.load(path, allow_pickle=False) as bank:
        assert bank["prompts"].tolist() == ["a", "a2", "b", "b2"]


def worlds() -> st.SearchStrategy[np.ndarray]:
    sizes = st.tuples(st.integers(1, 25), st.integers(1, 4), st.integers(0, 2**32 - 1))
    return sizes.map(lambda of: np.random.default_rng(of[2]).normal(size=of[:2]).astype(np.float32) + 0.01)


@given(features=worlds(), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_every_prompt_is_with_its_nearest_representative(features: np.ndarray, share: float, seed: int) -> None:
    distances = cosine_distances(features)
    k = 1 + round(share * (len(features) - 1))
    found = k_medoids(distances, k, seed=seed)
    assert len(set(found.medoids.tolist())) == k and set(found.member.tolist()) <= set(found.medoids.tolist())
    assert (found.member[found.medoids] == found.medoids).all()
    nearest = distances[:, found.medoids].min(axis=1)
    rows = np.arange(len(features))
    assert np.allclose(distances[rows, found.member], nearest) and found.distance == pytest.approx(float(nearest.mean()), abs=1e-6)
    for out in range(k):  # no swap improves it: that is what the method promises
        for candidate in range(len(features)):
            swapped = found.medoids.copy()
            swapped[out] = candidate
            assert distances[:, swapped].min(axis=1).sum() >= nearest.sum() - 1e-4


def test_groups_that_are_there_are_found() -> None:
    random = np.random.default_rng(3)
    centres = np.eye(8)[:5]
    features = np.concatenate([centre + random.normal(0, 0.05, (20, 8)) for centre in centres]).astype(np.float32)
    found = k_medoids(cosine_distances(features), 5)
    assert sorted(row // 20 for row in found.medoids.tolist()) == [0, 1, 2, 3, 4]
    assert (found.member // 20 == np.arange(100) // 20).all()
    assert found.scores == 5 + 20  # a lookup: all representatives, then one cluster


def test_how_many_clusters() -> None:
    assert [count_for(n) for n in (1, 4, 100, 500, 3000)] == [1, 2, 10, 22, 50]


def test_the_path_of_a_bank_says_which_it_is(home: Home) -> None:
    assert home.bank(*BANK.key) == Path(home.path, "prompts", "tiny@r1", "t1", "bank.npz")
    for wrong in ("../up", "", "a/b", "x" * 101):
        with pytest.raises(UsageError, match=r"revision: .* is no name"):
            BankKey(llm="tiny", revision=wrong, tokenizer="t").require_names()
