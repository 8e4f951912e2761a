"""The evaluation of PerFect: what it compares, how it is paired, and that nothing measured is measured twice. Trains nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import perfect_store
import pytest
from perfect_case import BATCH, Case, Measured, Point
from perfect_statistics import Results, paired
from perfect_store import Store, run
from perfect_tables import CLAIMS, PERFECT, PLAIN, TABLES, Plan, Row, Scale, Table, same_decodes


def measured(accuracy: float, decodes: int = 640, switched: int | None = None, stage_1_decodes: int = 0) -> Measured:
    curve = [Point(10, decodes // 2, 1.0, accuracy - 1), Point(20, decodes, 2.0, accuracy)]
    return Measured(
        curve=curve,
        cpu=2.0,
        decodes=decodes,
        decode_cpu=1.0,
        rates=[0.05] * 20,
        switched=switched,
        stage_1_decodes=stage_1_decodes,
        stage_1_decode_cpu=0.5,
        peak=None,
        search_cpu=0.0,
    )


def test_differences_are_paired_by_seed() -> None:
    """A spread that both have in common is none of the difference: [98, 90] - [97, 89] is 1, for sure."""
    same = paired([98.0, 90.0], [97.0, 89.0])
    assert (same.mean, same.half) == (1.0, 0.0)
    assert same.above and not same.below
    known = paired([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0])
    assert known.half == pytest.approx(3.18 * 1.290994 / 2)  # t(0.975, 3) · s / sqrt(n)
    assert not paired([1.0, -0.5], [0.0, 0.0]).above
    assert not paired([1.0], [2.0]).below  # one seed says nothing


def test_a_row_says_what_was_saved_and_lost() -> None:
    plan = Plan([Table("One", [Row("plain", PLAIN), Row("PerFect", PERFECT)], timed=True)], Scale(seeds=2, more=0))
    runs = {case: measured(97.0 + case.seed) for case in plan.trainings(PLAIN)}
    runs |= {
        case: measured(96.0 + case.seed, decodes=320, switched=15, stage_1_decodes=15 * BATCH // 3) for case in plan.trainings(PERFECT)
    }
    tables = Results(plan, runs).tables()
    plain, perfect = tables["One"]
    assert (perfect["difference"], perfect["lost"], plain["lost"]) == (-1.0, "yes", "no")
    assert (perfect["decodes saved %"], perfect["before the switch %"]) == (50, 67)
    assert plain["steps to target"] == 15  # 97.5 less a standard deviation of 0.7: one reaches it at 20, the other at 10
    assert perfect["steps to target"] == "20 (1 of 2)"
    assert (plain["warned"], perfect["warned"]) == ("no", "yes")  # three uses in successive batches
    verdict = {row["thesis"]: row["so"] for row in tables["Beside the thesis"]}
    assert verdict == {"PerFect 3 reaches plain loading, buffer of 1 batch": "no"}


def test_all_seeds_of_all_rows_are_trained_and_only_timed_ones_decode() -> None:
    plan = Plan(list(TABLES.values()), Scale(seeds=2, more=1))
    trained = Counter(plan)
    for table in TABLES.values():
        for row in table.rows:
            for case in (row.case, row.baseline):
                assert [one.seed for one in plan.trainings(case)] == [0, 1, 2]
                assert all(trained[one] for one in plan.trainings(case))
    assert [one.decode for one in plan.trainings(PLAIN)] == [True, True, False]
    assert not any(one.decode for one in plan.trainings(replace(PERFECT, last=0.05)))


def test_every_claim_has_its_rows() -> None:
    there = {case for table in TABLES.values() for row in table.rows for case in (row.case, row.baseline)}
    assert [claim.thesis for claim in CLAIMS if not {claim.one, claim.other} <= there] == []


def test_plain_loading_with_as_many_decodes_is_that() -> None:
    """Three quarters with 3 uses, one quarter without: half of the decodes."""
    assert same_decodes(3) == PLAIN.steps / 2


def test_an_interrupted_evaluation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Case] = []

    def measure(case: Case) -> Measured:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(case)
        return measured(90.0 + case.seed)

    monkeypatch.setattr(perfect_store, "measure", measure)
    cases = [replace(PLAIN, seed=seed) for seed in (0, 1, 2, 1)]
    with pytest.raises(KeyboardInterrupt):
        run(cases, Store(tmp_path), 1, lambda *_: None)
    (tmp_path / "plain-0.partial").write_text("a run that was being written")
    kept, made[:] = made.copy(), []
    runs = run(cases, Store(tmp_path), 1, lambda *_: None)
    assert (kept, made) == (cases[:2], cases[2:3])
    assert {case.seed: one.accuracy for case, one in runs.items()} == {0: 90.0, 1: 91.0, 2: 92.0}


@pytest.mark.slow
def test_images_from_memory_train_alike_and_echoes_come_so_often() -> None:
    """Ablations rest on the first; the second is what data echoing is."""
    from perfect_loading import Echo, Reader
    from perfect_training import Training

    case = replace(PERFECT, images=64, steps=12)
    decoded, remembered = Training(case).run(), Training(replace(case, decode=False)).run()
    assert [point.accuracy for point in decoded.curve] == [point.accuracy for point in remembered.curve]
    assert (decoded.decodes, decoded.switched, decoded.rates) == (remembered.decodes, remembered.switched, remembered.rates)
    assert decoded.stage_1_decodes == pytest.approx(9 * BATCH / 3, abs=BATCH)
    echoing = Case("echo", 3, images=4 * BATCH, decode=False)
    reader = Reader(echoing)
    echo = Echo(reader, echoing)
    used = Counter(id(sample) for _ in range(6) for sample in echo.next())  # of images held in memory, the same object each time
    assert max(used.values()) == 3
    assert reader.decodes == -(-(6 + 1) * BATCH // 3)  # six batches, and one that is held
