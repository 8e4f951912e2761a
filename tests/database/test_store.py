"""The store: migrations, group commit, readers, backups, what bad files get."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import threading
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from stoker.engine.errors import NotFound, StoreError, UsageError
from stoker.engine.home import Home
from stoker.engine.jobs.submission import job_row
from stoker.engine.spec.model import JobSpec
from stoker.engine.store import define_views, migrate
from stoker.engine.store.backup import copy_database
from stoker.engine.store.maintenance import Retention, backup, compact, export_events, thin
from stoker.engine.store.sqlfiles import sql
from stoker.engine.store.store import Store
from stoker.policies import registry
from waiting import patient


def remember(tx, batch):
    """A write command for these tests: an event for each word; 'poison' makes the database refuse, 'missing' is a person's mistake."""
    answers = []
    for word in batch:
        if word == "poison":
            tx.execute("no_such_query_file")
        if word == "missing":
            answers.append(NotFound("missing: there is no such word"))
            continue
        tx.event("test", word)
        answers.append(len(batch))
    tx.touch("test")
    return answers


def words(store: Store) -> list[str]:
    with store.read() as con:
        return [row[0] for row in con.execute("SELECT actor FROM events ORDER BY seq").fetchall()]


class Blocked:
    """Holds the writer still, so that requests queue behind it."""

    def __init__(self, store: Store) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        threading.Thread(target=store.exclusive, args=(self,), daemon=True).start()
        assert self.entered.wait(patient(30))

    def __call__(self, _con):
        self.entered.set()
        assert self.go.wait(patient(30))


def test_what_queues_is_committed_together_and_answered_after_the_commit(store):
    blocked = Blocked(store)
    answers = [store.submit(remember, f"w{i}") for i in range(50)]
    assert not any(answer.done() for answer in answers)
    before = store.commits
    blocked.go.set()
    assert [answer.result() for answer in answers] == [50] * 50
    assert store.commits == before + 1
    assert words(store) == [f"w{i}" for i in range(50)]


def test_a_mistake_is_answered_to_the_one_who_made_it_alone(store):
    blocked = Blocked(store)
    answers = [store.submit(remember, word) for word in ("a", "missing", "b")]
    blocked.go.set()
    with pytest.raises(NotFound, match="no such word"):
        answers[1].result()
    assert (answers[0].result(), answers[2].result()) == (3, 3)
    assert words(store) == ["a", "b"]


def test_a_value_that_no_column_can_hold_is_the_requests_own_mistake(store):
    """Checks come before the writer; whoever gets past them is told so, and not in SQL, which the log has."""

    def too_large(tx, batch):
        tx.event("x", "me", job=1 << 80)
        return [None] * len(batch)

    def too_late(tx, batch):
        tx.now = 1e13
        tx.event("x", "me")
        return [None] * len(batch)

    for command in (too_large, too_late):
        with pytest.raises(UsageError, match=r"^a value of this request is larger than the database can hold; the daemon's log names it$"):
            store.write(command, None)
    assert store.write(remember, "a") == 1


def test_a_request_that_breaks_the_transaction_does_not_take_others_with_it(store):
    blocked = Blocked(store)
    answers = [store.submit(remember, word) for word in ("a", "poison", "b")]
    blocked.go.set()
    with pytest.raises(StoreError):
        answers[1].result()
    answers[0].result(), answers[2].result()
    assert words(store) == ["a", "b"]


def test_readers_do_not_wait_for_a_transaction_that_is_under_way(store):
    store.write(remember, "before")
    inside, go = threading.Event(), threading.Event()

    def slow(tx, batch):
        tx.event("test", "during")
        tx.flush()
        inside.set()
        assert go.wait(patient(30))
        return [None]

    answer = store.submit(slow, None)
    assert inside.wait(patient(30))
    assert words(store) == ["before"]  # at once, and only what is committed
    go.set()
    answer.result()
    assert words(store) == ["before", "during"]


def test_listeners_hear_topics_and_events_after_the_commit(store):
    heard = []
    store.listen(lambda commit: heard.append((commit.topics, [event["actor"] for event in commit.events], words(store))))
    store.write(remember, "x")
    assert heard == [(frozenset({"test"}), ["x"], ["x"])]


def test_a_request_that_was_cancelled_is_left_out_and_the_writer_goes_on(store):
    blocked = Blocked(store)
    answers = [store.submit(remember, word) for word in ("a", "b", "c")]
    assert answers[1].cancel()
    blocked.go.set()
    assert [answers[0].result(), answers[2].result()] == [2, 2]
    store.write(remember, "d")
    assert words(store) == ["a", "c", "d"]


def test_a_database_that_can_not_be_opened_again_fails_the_store_and_says_so(store, home, monkeypatch):
    heard = []
    store.listen(lambda commit: heard.append(commit.topics))

    def refuse(*_):
        raise StoreError("no")

    monkeypatch.setattr("stoker.engine.store.store.connect", refuse)
    with pytest.raises(StoreError):
        compact(store, home)
    assert frozenset({"fatal"}) in heard
    with pytest.raises(StoreError, match="has failed"):
        store.submit(remember, "late")
    monkeypatch.undo()
    again = Store.open(home.database)
    again.close()


def test_a_closed_store_takes_nothing_and_loses_nothing(home):
    store = Store.open(home.database)
    answers = [store.submit(remember, f"w{i}") for i in range(20)]
    store.close()
    assert all(answer.result() for answer in answers)
    with pytest.raises(StoreError, match="closed"):
        store.submit(remember, "late")
    again = Store.open(home.database)
    assert words(again) == [f"w{i}" for i in range(20)]
    again.close()


def test_migrations_are_recorded_with_their_checksums_and_applied_once(home):
    Store.open(home.database).close()
    Store.open(home.database).close()
    con = duckdb.connect(str(home.database))
    recorded = con.execute("SELECT number, checksum FROM migrations ORDER BY number").fetchall()
    con.close()
    assert recorded == [(m.number, m.checksum) for m in migrate.available()]


def test_an_edited_migration_is_refused(home):
    Store.open(home.database).close()
    con = duckdb.connect(str(home.database))
    con.execute("UPDATE migrations SET checksum = 'other' WHERE number = 1")
    con.close()
    with pytest.raises(StoreError, match="0001_init was edited after it was applied"):
        Store.open(home.database)


def test_a_file_of_a_newer_program_is_refused(home):
    Store.open(home.database).close()
    con = duckdb.connect(str(home.database))
    con.execute("INSERT INTO migrations VALUES (999, 'future', 'x', now()::TIMESTAMP)")
    con.close()
    with pytest.raises(StoreError, match=r"newer than this program.*upgrade stoker"):
        Store.open(home.database)


def test_an_upgrade_is_preceded_by_a_backup(home, monkeypatch, tmp_path):
    store = Store.open(home.database, backups=home.backups)
    store.write(remember, "kept")
    store.close()
    extra = migrate.Migration(len(migrate.available()) + 1, "more", "CREATE TABLE more (id BIGINT PRIMARY KEY)")
    everything = [*migrate.available(), extra]
    monkeypatch.setattr(migrate, "available", lambda: everything)
    store = Store.open(home.database, backups=home.backups)
    assert words(store) == ["kept"]
    store.close()
    (copy,) = home.backups.glob("*.duckdb")
    con = duckdb.connect(str(copy))
    assert con.execute("SELECT actor FROM events").fetchall() == [("kept",)]
    assert con.execute("SELECT max(number) FROM migrations").fetchall() == [(extra.number - 1,)]


def test_stored_jobs_and_slowdowns_outlive_the_priority_of_a_share_and_a_key_with_the_kind(home, monkeypatch):
    """As they were before `kinds_of_shares`: shares had a priority of their own, and slow-downs no kind."""
    everything, plain = migrate.available(), '{"name":"a","recipe":"toy","share":{"gpu":"packed","memory":null}}'
    before = plain.replace("null}", 'null,"priority":-5}')
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "available", lambda: everything[: [one.name for one in everything].index("kinds_of_shares")])
        patch.setattr("stoker.engine.store.store.define_views", lambda con: None)  # those of today are of later tables
        Store.open(home.database).close()
    con = duckdb.connect(str(home.database))
    con.execute("INSERT INTO slowdowns VALUES ('a', 'b', 'cpu', 1.5, 3, now()::TIMESTAMP)")
    con.execute("INSERT INTO schedules BY NAME SELECT 1 AS id, '0 0 * * *' AS cron, ? AS spec, 'a' AS name, 'ann' AS created_by, "
                "now()::TIMESTAMP AS created_at, true AS enabled", [f'{{"jobs":[{before},{before}]}}'])  # fmt: skip
    row = job_row(JobSpec(name="a", recipe="toy"), 0.0) | {"id": 1, "owner": "ann", "state": "pending", "unmeasured": 0, "spec": before}
    moments = {name: datetime(2026, 1, 1, tzinfo=UTC) for name in ("state_since", "submitted_at")}
    row = {name: value for name, value in (row | moments).items() if value is not None}
    sharing = plain.replace("null}", 'null,"input":"images"}')  # of a later one, but before `shared_input`
    for one in (row, row | {"id": 2, "spec": sharing}):
        con.execute(f"INSERT INTO jobs ({', '.join(one)}) VALUES ({', '.join('?' * len(one))})", list(one.values()))
    con.close()
    Store.open(home.database).close()
    con = duckdb.connect(str(home.database))
    assert con.execute("SELECT spec, input FROM jobs ORDER BY id").fetchall() == [(plain, None), (sharing, "images")]
    assert con.execute("SELECT model, beside, gpu_name, kind, slowdown, samples FROM slowdowns").fetchall() == [
        ("a", "b", "cpu", "packed", 1.5, 3)
    ]
    assert con.execute("SELECT spec FROM schedules").fetchall() == [(f'{{"jobs":[{plain},{plain}]}}',)]


def test_what_was_set_with_a_key_of_tiresias_that_is_gone_goes_on_without_it(home):
    Store.open(home.database).close()
    con = duckdb.connect(str(home.database))
    sets, found = "INSERT INTO policy_settings BY NAME SELECT", "INSERT INTO tunings BY NAME SELECT"
    con.execute(f"""{sets} 1 AS id, 'default' AS pool, 'tiresias' AS policy, 30 AS interval, now()::TIMESTAMP AS ts, 'ann' AS set_by,
        '{{"within": "submitted", "queues": 2}}' AS config""")
    con.execute(f"{sets} 2 AS id, config, pool, 'own:Own' AS policy, interval, ts, set_by FROM policy_settings")
    con.execute(f"""{found} 1 AS id, pool, policy, 'jct' AS objective, ts, config AS before, '{{"queues": 4}}' AS after,
        1 AS predicted_gain, 60 AS period, 1 AS expected, 1 AS trials, 1 AS simulated, 0 AS rejected, 0 AS failed, 1 AS seconds,
        'applied' AS outcome, '' AS why, 'ann' AS asked_by FROM policy_settings WHERE id = 1""")
    con.execute(next(one.text for one in migrate.available() if one.name == "tiresias_lists"))
    settings = [json.loads(config) for (config,) in con.execute("SELECT config FROM policy_settings ORDER BY id").fetchall()]
    assert settings == [{"queues": 2}, {"within": "submitted", "queues": 2}]
    assert con.execute("SELECT before->>'queues', before->>'within', after->>'queues' FROM tunings").fetchall() == [("2", None, "4")]
    registry.create("tiresias", settings[0])


def test_a_migration_that_fails_leaves_the_file_as_it_was(home, monkeypatch):
    Store.open(home.database).close()
    broken = migrate.Migration(len(migrate.available()) + 1, "broken", "CREATE TABLE half (id BIGINT); SELECT nonsense FROM nowhere")
    everything = [*migrate.available(), broken]
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "available", lambda: everything)
        with pytest.raises(StoreError, match="nowhere"):
            Store.open(home.database)
    store = Store.open(home.database)
    with store.read() as con:
        assert con.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'half'").fetchall() == [(0,)]
    store.close()


def views_of(path: Path) -> list[tuple]:
    with duckdb.connect(str(path)) as con:
        return con.execute(sql("store/views_as_stored")).fetchall()


def test_an_opening_that_finds_all_as_it_should_be_writes_nothing(home, template):
    shutil.copyfile(template, home.database)
    Store.open(home.database).close()
    assert home.database.read_bytes() == template.read_bytes()


@pytest.mark.parametrize(
    "by_hand",
    [
        "CREATE OR REPLACE VIEW slo AS SELECT 1 AS verdict",
        "DROP VIEW slo",
        "COMMENT ON COLUMN slo.verdict IS 'something else'",
        "CREATE TABLE other (a INTEGER); CREATE OR REPLACE VIEW slo AS SELECT * FROM other; DROP TABLE other",
        "COMMENT ON TABLE migrations IS NULL; DROP VIEW slo",
    ],
)
@pytest.mark.sampled(2)
def test_views_that_other_hands_have_changed_are_defined_anew(home, template, by_hand):
    shutil.copyfile(template, home.database)
    with duckdb.connect(str(home.database)) as con:
        con.execute(by_hand)
    assert views_of(home.database) != views_of(template)
    Store.open(home.database).close()
    assert views_of(home.database) == views_of(template)


def test_views_of_another_version_of_the_program_are_defined_anew(home, template, monkeypatch, tmp_path):
    shutil.copyfile(template, home.database)
    files = [Path(shutil.copy(file, tmp_path)) for file in define_views.view_files()]
    (changed,) = (file for file in files if file.stem == "50_jct")
    changed.write_text(changed.read_text() + "\nCOMMENT ON VIEW jct IS 'told otherwise';\n")
    with monkeypatch.context() as patch:
        patch.setattr(define_views, "view_files", lambda: files)
        Store.open(home.database).close()
        assert {row[2] for row in views_of(home.database) if row[0] == "jct"} == {"told otherwise"}
    Store.open(home.database).close()
    assert views_of(home.database) == views_of(template)


@pytest.mark.slow
def test_a_kill_while_views_are_defined_leaves_them_whole_or_to_be_defined(home, template):
    killed = home.path / "killed.duckdb"
    shutil.copyfile(template, killed)
    with duckdb.connect(str(killed)) as con:
        con.execute("DROP VIEW slo")
        con.execute("CHECKPOINT")
        con.execute("PRAGMA disable_checkpoint_on_shutdown")
        define_views.define_views(con)
    written = killed.with_name("killed.duckdb.wal").read_bytes()
    for part in (1.0, 0.97, 0.6, 0.3, 0.02):
        shutil.copyfile(killed, home.database)
        home.database.with_name(home.database.name + ".wal").write_bytes(written[: int(part * len(written))])
        Store.open(home.database).close()
        assert views_of(home.database) == views_of(template), part


def test_an_empty_file_left_by_a_kill_at_the_very_start_is_no_obstacle(home):
    home.database.touch()
    Store.open(home.database).close()


@pytest.mark.parametrize("content", [b"this is no database", b"\0" * 8192])
def test_a_file_that_is_no_database_gets_one_clear_error(home, content):
    home.database.write_bytes(content)
    with pytest.raises(StoreError) as error:
        Store.open(home.database)
    assert "\n" not in str(error.value) and str(home.database) in str(error.value)


def test_a_damaged_file_gets_one_clear_error(home):
    store = Store.open(home.database)
    for i in range(2000):
        store.submit(remember, f"w{i}")
    store.close()
    data = bytearray(home.database.read_bytes())
    data[:16384] = bytes(len(data[:16384]))
    home.database.write_bytes(data)
    with pytest.raises(StoreError):
        Store.open(home.database)


def test_a_file_that_another_process_holds_is_named_as_such(home):
    script = textwrap.dedent(f"""
        import sys, duckdb
        con = duckdb.connect({str(home.database)!r}); con.execute("CREATE TABLE t (i INTEGER)")
        print("ready", flush=True); sys.stdin.read()
    """)
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(StoreError, match="held by another process"):
            Store.open(home.database)
    finally:
        other.communicate()


def test_a_backup_is_verified_complete_and_never_overwrites(store, home, tmp_path):
    for i in range(10):
        store.write(remember, f"w{i}")
    made = backup(store, home, tmp_path / "copy.duckdb")
    assert made["tables"]["events"] == 10
    con = duckdb.connect(str(tmp_path / "copy.duckdb"), read_only=True)
    assert con.execute("SELECT count(*) FROM events").fetchall() == [(10,)]
    con.close()
    with pytest.raises(UsageError, match="exists"):
        backup(store, home, tmp_path / "copy.duckdb")
    with pytest.raises(UsageError, match="not absolute"):
        backup(store, home, Path("copy.duckdb"))
    assert [p.name for p in tmp_path.iterdir()] == ["copy.duckdb"]
    restored = Store.open(tmp_path / "copy.duckdb")
    assert words(restored) == [f"w{i}" for i in range(10)]
    restored.close()


def test_a_copy_that_fails_leaves_nothing_behind(store, tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="disk is full"):
        store.exclusive(lambda con: copy_database(con, tmp_path / "x.duckdb"))
    assert list(tmp_path.iterdir()) == []
    store.write(remember, "goes on")


def test_compaction_keeps_everything_and_writers_and_readers_go_on(store, home):
    for i in range(5):
        store.write(remember, f"w{i}")
    stop = threading.Event()
    failures = []

    def reading():
        while not stop.is_set():
            try:
                assert len(words(store)) >= 5
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=reading) for _ in range(3)]
    for thread in threads:
        thread.start()
    compact(store, home)
    store.write(remember, "after")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert words(store) == [*(f"w{i}" for i in range(5)), "after"]


def test_retention_thins_and_exports(store, home):
    def fill(tx, batch):
        day = 86_400.0
        tx.insert("telemetry", [{"ts": tx.now - age * day - second, "gpu_id": "g", "node_id": "n", "utilisation": 0.5}
                                for age in (0, 5, 40) for second in range(0, 120, 5)])  # fmt: skip
        tx.insert("metrics", [{"job_id": 1, "lease_id": 1, "rank": 0, "seq": step, "ts": tx.now - 20 * day, "step": step,
                               "name": "loss", "value": 1.0} for step in range(1, 36)])  # fmt: skip
        for i in range(4):
            tx.event("test", f"w{i}")
        return [None]

    store.write(fill, None)
    removed = store.write(thin, Retention())
    with store.read() as con:
        ages = con.execute(
            "SELECT round(epoch(make_timestamp(epoch_us(now())) - ts) / 86400)::INTEGER, count(*) FROM telemetry GROUP BY 1 ORDER BY 1"
        )
        counts = dict(ages.fetchall())
        steps = [row[0] for row in con.execute("SELECT step FROM metrics ORDER BY step").fetchall()]
    assert counts[0] == 24 and 2 <= counts[5] <= 3 and 40 not in counts
    assert steps == [10, 20, 30, 35]
    assert removed["metrics"] == 31
    target = export_events(store, home, Retention(events=-1.0))
    rows = duckdb.sql(f"SELECT actor FROM read_parquet('{target}') ORDER BY seq").fetchall()
    assert rows == [("w0",), ("w1",), ("w2",)]
    assert words(store) == ["w3"]  # numbering goes on from the newest


def test_numbers_go_on_after_a_restart(home):
    store = Store.open(home.database)
    for _ in range(3):
        store.write(remember, "x")
    store.close()
    store = Store.open(home.database)
    store.write(remember, "y")
    with store.read() as con:
        assert con.execute("SELECT list(seq ORDER BY seq) FROM events").fetchall() == [([1, 2, 3, 4],)]
    store.close()


@pytest.mark.slow
def test_kill_reopen_close_reopen_look_up_write(home: Home):
    """The sequence in which DuckDB before 2.0 lost index entries (duckdb#23645): nothing acknowledged may be missing."""
    script = textwrap.dedent(f"""
        import sys, pathlib
        sys.path[:0] = [{str(Path(__file__).parents[1])!r}, {str(Path(__file__).parent)!r}]
        from stoker.engine.store.store import Store
        from test_store import remember
        store = Store.open(pathlib.Path({str(home.database)!r}))
        i = 0
        while True:
            store.write(remember, f"w{{i}}")
            print(i, flush=True)
            i += 1
    """)
    acknowledged = 0
    for _ in range(2):
        victim = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        for _ in range(30):
            assert victim.stdout.readline()
            acknowledged += 1
        victim.kill()
        rest, _ = victim.communicate()
        acknowledged += len(rest.splitlines())
        Store.open(home.database).close()
        store = Store.open(home.database)
        with store.read() as con:
            newest = con.execute("SELECT max(seq) FROM events").fetchall()[0][0]
            assert acknowledged <= newest <= acknowledged + 2
            assert con.execute("SELECT count(*) FROM events WHERE seq = $1", [newest]).fetchall() == [(1,)]
            assert con.execute("SELECT count(*) FROM events").fetchall() == [(newest,)]
        store.write(remember, "again")
        acknowledged = newest + 1
        store.close()
