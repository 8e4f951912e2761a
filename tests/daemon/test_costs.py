"""What jobs cost: GPU-time and kept files, each at the prices of its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, until
from sharing.one_runner import Host
from stoker.engine.fleet.prices import keep_prices
from stoker.engine.fleet.registration import NodeChange, change_node
from stoker.engine.home import Home
from stoker.engine.protocol import JobFiles
from stoker.engine.store.store import Store
from stoker.runners.kept_files import MOST_ENTRIES, UNIT, kept_files

HOUR = 3600.0
GIB = 1 << 30


def write(tx: Any, batch: Sequence[dict[str, list[dict[str, Any]]]]) -> list[None]:
    for tables in batch:
        for table, rows in tables.items():
            tx.insert(table, rows)
    return [None for _ in batch]


def lease(number: int, job: int, gpu: str, begin: float, end: float, share: str = "exclusive") -> dict[str, list[dict[str, Any]]]:
    return {
        "leases": [{"id": number, "job_id": job, "attempt": number, "gpu_count": 1, "state": "ended", "granted_at": begin,
                    "started_at": begin, "ended_at": end, "policy": "t", "share": share}],
        "lease_gpus": [{"lease_id": number, "gpu_id": gpu, "node_id": "n1"}],
    }  # fmt: skip


def prices(ts: float, storage: float = 0.0, **gpus: float) -> dict[str, list[dict[str, Any]]]:
    rows = [("storage", "", storage)] + [("gpu", "" if name == "other" else name, price) for name, price in gpus.items()]
    return {"prices": [{"ts": ts, "what": what, "gpu_name": name, "price": price} for what, name, price in rows]}


def costs(host: Host) -> list[tuple[Any, ...]]:
    return host.rows("SELECT job_id, gpu_hours, gpu_cost, storage_cost FROM costs ORDER BY job_id")


def test_a_lease_costs_what_its_gpus_cost_when_it_was_granted(store: Store) -> None:
    host = Host(store, slots=1)
    first, second = host.submit("a"), host.submit("b")
    then = time.time() - 100 * HOUR
    store.write(write, prices(then, other=2.0) | lease(1, first, "n1/cpu0", then - HOUR, then - HOUR / 2))  # before there were prices
    store.write(write, prices(then + 10 * HOUR, other=3.0, cpu=5.0) | lease(2, first, "n1/cpu0", then + HOUR, then + 11 * HOUR))
    store.write(write, lease(3, second, "n1/cpu0", then + 11 * HOUR, then + 12 * HOUR))
    assert costs(host) == [(first, pytest.approx(10.5), pytest.approx(21.0), 0), (second, pytest.approx(1), pytest.approx(5), 0)]


def test_who_shares_a_gpu_pays_half_of_it(store: Store) -> None:
    host = Host(store, slots=1)
    jobs = [host.submit("a"), host.submit("b")]
    then = time.time() - 100 * HOUR
    store.write(write, prices(then, other=2.0))
    for number, job in enumerate(jobs, 1):
        store.write(write, lease(number, job, "n1/cpu0", then, then + HOUR, "packed"))
    assert [row[2] for row in costs(host)] == [pytest.approx(1.0)] * 2


def test_files_cost_as_long_as_they_are_kept_at_the_price_of_each_time(store: Store) -> None:
    host = Host(store)
    job = host.submit("a")
    now = time.time()
    store.write(write, prices(now - 30 * HOUR, storage=1.0, other=1.0))
    store.write(write, prices(now - 10 * HOUR, storage=4.0, other=1.0))
    kept = [(now - 20 * HOUR, 2 * GIB), (now - 5 * HOUR, 0)]
    store.write(write, {"job_files": [{"place": "h:/h", "job_id": job, "since": since, "bytes": size} for since, size in kept]})
    assert costs(host)[0][3] == pytest.approx(2 * (10 * 1.0 + 5 * 4.0), rel=1e-3)
    assert host.rows("SELECT stored_bytes, stored_gib_hours FROM costs") == [(0, pytest.approx(30.0, rel=1e-3))]


def test_only_a_change_of_prices_is_put_on_record(store: Store) -> None:
    for gpu_hour in (1.0, 1.0, 2.0, 2.0, 1.0):
        store.write(keep_prices, {("gpu", ""): gpu_hour, ("storage", ""): 0.0})
    assert store.rows("store/prices_in_force") == [("gpu", "", 1.0), ("storage", "", 0.0)]
    with store.read() as con:
        assert con.execute("SELECT price FROM prices WHERE what = 'gpu' ORDER BY ts").fetchall() == [(1.0,), (2.0,), (1.0,)]


def test_what_runners_tell_of_files_is_stored_when_it_changes(store: Store) -> None:
    host = Host(store, nodes=2)  # both with the same home
    job, gone = host.submit("a"), host.submit("b")

    def stored() -> list[tuple[int, int]]:
        return host.rows("SELECT job_id, stored_bytes FROM costs ORDER BY job_id")

    for _ in range(2):
        host.report(files=[JobFiles(job, 3 << 20), JobFiles(gone, 1 << 20)])
    host.report()  # says nothing of files
    assert stored() == [(job, 3 << 20), (gone, 1 << 20)]
    host.report(files=[JobFiles(job, 5 << 20)])
    assert stored() == [(job, 5 << 20), (gone, 0)]
    assert host.rows("SELECT count(*) FROM job_files") == [(4,)]
    store.write(change_node, NodeChange("n1", "gone", "t", "test"))
    assert stored() == [(job, 5 << 20), (gone, 0)], "the other runner of this home has them still"
    store.write(change_node, NodeChange("n2", "gone", "t", "test"))
    assert stored() == [(job, 0), (gone, 0)]


def test_whole_mebibytes_of_directories_are_counted_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "jobs/7/checkpoints/deep").mkdir(parents=True)
    (tmp_path / "jobs/7/checkpoints/deep/weights").write_bytes(b"\1" * (3 * UNIT))
    (tmp_path / "jobs/8").mkdir()
    (tmp_path / "jobs/8/log").write_text("a line\n")
    (tmp_path / "jobs/9").mkdir()
    (tmp_path / "jobs/9/all").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "jobs/other").mkdir()
    (tmp_path / "jobs/other/weights").write_bytes(b"\1" * (3 * UNIT))
    assert kept_files(tmp_path) == [JobFiles(7, 3 * UNIT)]
    assert kept_files(tmp_path / "none") == []


def test_no_job_keeps_the_agent_busy_with_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.runners.kept_files.MOST_ENTRIES", 3)
    (tmp_path / "jobs/7").mkdir(parents=True)
    for number in range(5):
        (tmp_path / f"jobs/7/{number}").write_bytes(b"\1" * UNIT)
    assert MOST_ENTRIES > 1000
    assert kept_files(tmp_path) == [JobFiles(7, 3 * UNIT)]


@pytest.mark.slow
def test_a_host_with_prices(home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]) -> None:
    """From the configuration and the files of a job to what its user is told."""
    home.config.write_text("[prices]\ngpu_hour = 2.0\ngpus = {cpu = 36000.0}\nstorage_gib_hour = 0.5\n")
    jobs = Jobs(start_daemon().client())
    runner = start_runner(slots=1)
    job = jobs.shell("keeps", 'head -c 4000000 /dev/urandom > "$STOKER_CHECKPOINT_DIR/weights"')
    jobs.ended(job)
    runner.stop()
    runner.launch()  # it looks at once, then every ten minutes
    until(lambda: jobs.sql("SELECT stored_bytes FROM costs") != [(0,)])
    ((name, hours, cost, stored, total),) = jobs.sql("SELECT name, gpu_hours, gpu_cost, stored_bytes, cost FROM costs")
    assert (name, stored) == ("keeps", 3 << 20)
    (slot,) = jobs.sql("SELECT DISTINCT name FROM gpus")
    assert cost == pytest.approx(hours * (36000.0 if slot == ("cpu",) else 2.0))
    assert total >= cost > 0
    told = command(home, "report", "--out", str(home.path / "page"))
    assert told.code == 0, told
    page = (home.path / "page/index.html").read_text()
    assert "Cost" in page
    assert "3.0 MiB" in page or "3 MiB" in page
