"""Traces in the database: added whole or not at all, listed, read back, dropped; over HTTP and by the command line."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from e2e import DaemonProcess, free_port
from stoker.engine.api.studies import uploads
from stoker.engine.api.studies.uploads import Uploads, begin
from stoker.engine.cli.main import run
from stoker.engine.cli.tracing import trace_send
from stoker.engine.cli.tracing.trace_send import send_trace
from stoker.engine.cli.tracing.trace_source import load_trace
from stoker.engine.client import Client
from stoker.engine.errors import Conflict, LimitExceeded, NotFound, StokerError, StoreError, Unauthorized, UsageError
from stoker.engine.home import Home
from stoker.engine.store.store import Store
from stoker.engine.studies.stored_traces import NewTrace, add_trace, drop_trace
from stoker.engine.traces.read import read
from stoker.engine.traces.trace import Trace, TraceJob

pytestmark = pytest.mark.xdist_group("trace-store")

CSV = "job_id,job_key,submit,duration,num_gpu,vc\n0,k1,0,79,1,v\n1,k2,600,82,4,w\n2,k3,700,0,4,w\n"


def make_trace(name: str, jobs: int = 3, sha256: str = "a") -> Trace:
    """A trace with something in every column."""
    made = [
        TraceJob(
            key=f"{name}-{i}", submitted=i / 3, duration=1.5 + i, gpus_min=1 + i % 4, gpus_max=8, user_name=f"u{i % 2}", pool="é\u2028\x00",
            model="bert", batch_size=64, iterations=1e9 + 0.5, status="Pass", priority=-i, estimate=0.1 + 0.2, demand="soft",
            deadlines=(10.0, 20.5), rewards=(80.0, 50.0), stop="performance", scale="small", raw={"a,b": 'x"y', "line": str(i)},
        )
        for i in range(jobs)
    ]  # fmt: skip
    return Trace(
        name=name, format="philly", source="/a b.csv", sha256=sha256, jobs=made, starts_at=1504521041.25, dropped={"x": 1},
        repaired={"y": 2}, recipe={"seed": 1, "mix": ["a"]},
    )  # fmt: skip


# -- the tables -----------------------------------------------------------------------------------------------------------


def request(name: str, jobs: int = 3, sha256: str = "a") -> NewTrace:
    return begin(make_trace(name, jobs, sha256), "me").request()


def count(store: Store, table: str) -> int:
    with store.read() as con:
        return int(con.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])


def test_a_trace_is_added_once(store: Store) -> None:
    first = store.write(add_trace, request("a"))
    assert first == {"id": 1, "name": "a", "jobs": 3, "existing": False}
    assert store.write(add_trace, request("a")) == first | {"existing": True}
    assert store.write(add_trace, request("b"))["id"] == 2
    with pytest.raises(Conflict, match=r"trace 'a' is there already with other content, from /a b\.csv: give another name with --name"):
        store.write(add_trace, request("a", sha256="other"))
    with pytest.raises(Conflict):
        store.write(add_trace, request("a", jobs=2))
    assert (count(store, "traces"), count(store, "trace_jobs")) == (2, 6)
    assert [row["kind"] for row in store.objects("api/events", 0)] == []  # they belong to no job
    with store.read() as con:
        assert con.execute("SELECT kind, actor, reason FROM events ORDER BY seq").fetchall() == [("trace.added", "me", "3 jobs")] * 2


def test_requests_of_one_batch_see_each_other(store: Store) -> None:
    answers = store.write(lambda tx, _: [add_trace(tx, [request("a"), request("a"), request("a", sha256="b")])], None)  # type: ignore[arg-type, return-value]
    assert [answer["existing"] for answer in answers[:2]] == [False, True]
    assert isinstance(answers[2], Conflict)


def test_a_trace_that_breaks_off_leaves_nothing(store: Store) -> None:
    def torn() -> Iterator[list[dict[str, Any]]]:
        yield [uploads.job_row(job) for job in make_trace("a").jobs]
        raise OSError("the disk is gone")

    whole = request("a")
    with pytest.raises(StoreError, match="the disk is gone"):
        store.write(add_trace, dataclasses.replace(whole, slices=torn))
    assert (count(store, "traces"), count(store, "trace_jobs")) == (0, 0)
    assert store.write(add_trace, whole)["jobs"] == 3  # the store goes on


def test_a_dropped_trace_takes_its_jobs_along(store: Store) -> None:
    store.write(add_trace, request("a"))
    store.write(add_trace, request("b"))
    with pytest.raises(NotFound, match=r"there is no trace 'aa' \(did you mean 'a'\?\); 'stoker trace list' shows them"):
        store.write(drop_trace, ("aa", "me", None))
    assert store.write(drop_trace, ("a", "me", None)) == {"id": 1, "name": "a", "jobs": 3}
    assert (count(store, "traces"), count(store, "trace_jobs")) == (1, 3)
    with pytest.raises(NotFound):
        store.write(drop_trace, ("a", "me", None))
    assert store.write(add_trace, request("a"))["existing"] is False


# -- uploads --------------------------------------------------------------------------------------------------------------


def test_slices_come_in_order_and_may_come_twice() -> None:
    trace = make_trace("a", 5)
    waiting = Uploads()
    upload = begin(msgspec.structs.replace(trace, jobs=[]), "me")
    upload.total = 5
    token = waiting.keep(upload)
    for _ in range(2):
        waiting.add(token, "me", 0, trace.jobs[:2])
        assert upload.jobs == 2
    with pytest.raises(Conflict, match="job 2 is next, not 3"):
        waiting.add(token, "me", 3, trace.jobs[3:])
    with pytest.raises(NotFound, match="there is no upload"):
        waiting.add(token, "you", 2, trace.jobs[2:])
    with pytest.raises(UsageError, match="is before the job ahead of it"):
        waiting.add(token, "me", 2, trace.jobs[:1])
    with pytest.raises(UsageError, match="6 were sent of 5 that were announced"):
        waiting.add(token, "me", 2, [*trace.jobs[2:], trace.jobs[4]])
    waiting.add(token, "me", 2, trace.jobs[2:])
    rows = [row for rows in upload.request().slices() for row in rows]
    assert [row["key"] for row in rows] == [job.key for job in trace.jobs]
    waiting.end(token)
    with pytest.raises(NotFound):
        waiting.add(token, "me", 5, [])


def test_uploads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Uploads()
    tokens = [waiting.keep(begin(make_trace("a"), "me")) for _ in range(uploads.MAX_UPLOADS)]
    with pytest.raises(LimitExceeded, match="8 traces are being imported already"):
        waiting.keep(begin(make_trace("a"), "me"))
    monkeypatch.setattr(uploads, "MAX_BYTES", 100)
    with pytest.raises(LimitExceeded, match="larger than"):
        waiting.add(tokens[0], "me", 0, make_trace("a").jobs)
    monkeypatch.setattr(uploads, "MOST_JOBS", 2)
    with pytest.raises(LimitExceeded, match="a trace may have 2"):
        begin(make_trace("a"), "me")
    monkeypatch.setattr(uploads, "FORGET_AFTER", -1.0)
    with pytest.raises(NotFound):
        waiting.add(tokens[1], "me", 0, [])
    waiting.keep(begin(make_trace("a", 1), "me"))  # those that were forgotten make room


# -- a daemon -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    home = Home(Path(tempfile.mkdtemp(prefix="stoker-")))
    process = DaemonProcess(home, "--tcp", f"127.0.0.1:{free_port()}")
    process.start()
    yield process
    process.end()
    shutil.rmtree(home.path, ignore_errors=True)


@pytest.fixture
def client(daemon: DaemonProcess) -> Client:
    return daemon.client()


@pytest.fixture
def stoker(
    daemon: DaemonProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Run a command line on the daemon; exit code, output, remarks."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([*arguments, "--home", str(daemon.home.path)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def names(client: Client) -> list[str]:
    return [row["name"] for row in client.get("/v1/traces")["traces"]]


def test_a_trace_comes_back_as_it_was(client: Client) -> None:
    trace = make_trace("exact", 7)
    assert send_trace(client, trace)["existing"] is False
    found = load_trace("exact", lambda: client)
    assert found == trace
    assert load_trace("exact", lambda: client) == trace
    about = client.get("/v1/traces/exact")
    assert about["trace"]["recipe"] == {"seed": 1, "mix": ["a"]}
    assert about["summary"]["gpus_most"] == 4
    assert about["summary"]["gpu_hours"] == pytest.approx(sum(job.duration * job.gpus_min for job in trace.jobs) / 3600)
    assert (about["summary"]["users"], about["summary"]["soft"], about["summary"]["strict"]) == (2, 7, 0)
    assert [job["key"] for job in client.get("/v1/traces/exact/jobs", offset=2, limit=2)["jobs"]] == ["exact-2", "exact-3"]
    assert client.get("/v1/traces/exact/jobs", id=999_999)["jobs"] == []


def test_a_large_trace_is_seen_only_when_it_is_whole(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_send, "SLICE", 4)
    trace = make_trace("large", 10)
    seen: list[tuple[int, int]] = []
    visible: list[bool] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        visible.append("large" in names(client))

    send_trace(client, trace, progress)
    assert seen == [(4, 10), (8, 10), (10, 10)]
    assert visible == [False, False, True]
    assert load_trace("large", lambda: client) == trace
    assert send_trace(client, trace)["existing"] is True
    with pytest.raises(Conflict, match="is there already with other content"):
        send_trace(client, make_trace("large", 10, "other"))


def beginning(trace: Trace) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(trace, jobs=[]))


def test_an_upload_that_is_given_up_leaves_nothing(client: Client) -> None:
    trace = make_trace("half", 4)
    begun = json.loads(client.post_raw("/v1/traces?total=4", beginning(trace)))
    path = f"/v1/traces/uploads/{begun['upload']}"
    assert json.loads(client.post_raw(f"{path}?offset=0", msgspec.json.encode(trace.jobs[:3])))["jobs"] == 3
    assert "half" not in names(client)
    assert client.post("/v1/sql", {"query": "SELECT count(*) FROM trace_jobs WHERE key LIKE 'half%'"})["rows"] == [[0]]
    with pytest.raises(NotFound):
        load_trace("half", lambda: client)


def test_requests_may_be_packed_and_are_bounded(client: Client) -> None:
    body = msgspec.json.encode(make_trace("packed"))
    assert json.loads(client.post_raw("/v1/traces", gzip.compress(body, mtime=0)))["jobs"] == 3
    for bad, message in [
        (gzip.compress(body, mtime=0)[:-9], "cut off"),
        (b"\x1f\x8bnot gzip", "is not gzip data"),
        (gzip.compress(b" " * (65 << 20), mtime=0), "larger than 64 MiB unpacked"),
        (b"{", "is not JSON"),
        (b"[]", "is not as it should be"),
        (body.replace(b'"soft"', b'"hard"'), "demand: 'hard' is not one of"),
        (body.replace(b'"packed"', b'"a/b"'), "name: "),
        (msgspec.json.encode(make_trace("none", 0)), "jobs: there is none"),
        (b'{"name":"x","format":"f","source":"s","sha256":"0","starts_at":1e300,"jobs":[]}', "starts_at: is out of range"),
    ]:
        with pytest.raises(StokerError, match=message):
            client.post_raw("/v1/traces", bad)
    with pytest.raises(NotFound, match="there is no upload"):
        client.post_raw("/v1/traces/uploads/nothing?offset=0", b"[]")
    with pytest.raises(UsageError, match="total: 2 jobs are fewer than came"):
        client.post_raw("/v1/traces?total=2", body)


JOB = {"key": "a", "submitted": 0, "duration": 1, "gpus_min": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"gpus_min": 10**30}, {"gpus_min": 1.5}, {"submitted": -1}, {"submitted": "now"}, {"duration": 10**400}, {"duration": None},
        {"priority": -(10**12)}, {"batch_size": 10**20}, {"raw": {"a": 1}}, {"raw": [1]}, {"key": 7}, {"deadlines": [1]},
        {"demand": "strict", "deadlines": [-1], "rewards": [1]}, {"demand": "strict", "deadlines": [1], "rewards": [1e9]},
        {"stop": "x"}, {"scale": ""},
    ],
    ids=str,
)  # fmt: skip
def test_hostile_jobs_are_refused(client: Client, change: dict[str, Any]) -> None:
    message = {"name": "hostile", "format": "x", "source": "x", "sha256": "x", "jobs": [{**JOB, **change}]}
    with pytest.raises(UsageError) as error:
        client.post("/v1/traces", message)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
    assert "hostile" not in names(client)


def test_hostile_texts_and_places(client: Client) -> None:
    with pytest.raises(UsageError):
        client.post_raw("/v1/traces", b'{"name": "s", "format": "x", "source": "\\ud800", "sha256": "x", "jobs": []}')
    with pytest.raises(UsageError):
        client.post_raw("/v1/traces", b"[" * 100_000)
    for name in ("%00", "%ff", "..%2f..", "a'b", "x" * 3000):
        with pytest.raises(NotFound) as error:
            client.get(f"/v1/traces/{name}")
        assert len(str(error.value)) < 400
    send_trace(client, make_trace("places"))
    for query in ("offset=nan", "offset=-1", "limit=x", "id=1e30"):
        with pytest.raises(UsageError):
            client.get(f"/v1/traces/places/jobs?{query}")
    assert client.get("/v1/traces/places/jobs?offset=1e15&limit=1e15")["jobs"] == []


def test_roles(daemon: DaemonProcess, client: Client) -> None:
    url = f"http://{daemon.command[-1]}"
    tokens = {role: client.post("/v1/tokens", {"name": role, "role": role})["token"] for role in ("read", "submit", "runner")}
    writer = daemon.client(url, tokens["submit"])
    send_trace(writer, make_trace("roles"))
    reader = daemon.client(url, tokens["read"])
    assert len(load_trace("roles", lambda: reader).jobs) == 3
    with pytest.raises(Unauthorized):
        send_trace(reader, make_trace("mine"))
    with pytest.raises(Unauthorized):
        reader.request("DELETE", "/v1/traces/roles")
    assert json.loads(writer.request("DELETE", "/v1/traces/roles").read())["name"] == "roles"


# -- the command line -----------------------------------------------------------------------------------------------------


def test_import_list_show_drop(stoker: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "side.csv").write_text(CSV)
    code, out, err = stoker("trace", "import", "side.csv")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "side: 2 jobs imported (format side-by-side)",
        "  dropped 1: zero duration; first: line 4: job 'k3': duration is 0s",
    ]
    code, out, _ = stoker("trace", "import", "side.csv", "--json")
    answer = json.loads(out)
    assert (code, answer["existing"], answer["jobs"], answer["dropped"]) == (0, True, 2, {"zero duration": 1})
    assert answer["first"] == {"zero duration": "line 4: job 'k3': duration is 0s"}
    (tmp_path / "side.csv").write_text(CSV.replace("79", "80"))
    code, _, err = stoker("trace", "import", "side.csv")
    assert code == 4 and "give another name with --name, or 'stoker trace drop side' first" in err
    code, out, _ = stoker("trace", "list")
    (line,) = [line for line in out.splitlines() if line.startswith("side ")]
    assert line.split()[1:3] == ["2", "side-by-side"] and line.endswith("side.csv")
    assert any(row["name"] == "side" for row in json.loads(stoker("trace", "list", "--json")[1]))
    code, out, _ = stoker("trace", "show", "side")
    assert code == 0 and "largest job  4 GPUs" in out and "1  zero duration" in out
    assert json.loads(stoker("trace", "show", "side", "--json")[1])["trace"]["jobs"] == 2
    code, _, err = stoker("trace", "show", "sied")
    assert (code, err) == (3, "stoker: error: there is no trace 'sied' (did you mean 'side'?); 'stoker trace list' shows them\n")
    code, out, err = stoker("trace", "drop", "side", "sied")
    assert (code, out) == (3, "side is dropped with 2 jobs\n") and "there is no trace 'sied'" in err


def test_a_dry_run_and_strict_store_nothing(stoker: Callable[..., Any], client: Client, tmp_path: Path) -> None:
    (tmp_path / "dry.csv").write_text(CSV)
    code, out, _ = stoker("trace", "import", "dry.csv", "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "dry: 2 jobs would be imported (format side-by-side)")
    code, out, err = stoker("trace", "import", "dry.csv", "--strict")
    assert (code, out, err) == (2, "", "stoker: error: dry.csv:4: job 'k3': duration is 0s\n")
    assert "dry" not in names(client)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["import", "missing.csv"], 3, "missing.csv: there is no such file"),
        (["import", "."], 2, ".: is not a file"),
        (["import", "ok.cvs"], 3, "ok.cvs: there is no such file (did you mean 'ok.csv'?)"),
        (["import", "ok.csv", "--name", "a b"], 2, "name: 'a b' is not made of"),
        (["import", "ok.csv", "--format", "sidebyside"], 2, "--format: there is no format 'sidebyside' (did you mean 'side-by-side'?)"),
        (["import", "bad.csv"], 2, "bad.csv: unknown format, its first line is a, b; formats: philly, "),
        (["export", "nothing"], 3, "there is neither a file nor a trace 'nothing'; 'stoker trace list' shows the traces"),
        (["export", "ok.csv", "--to", "bad.csv"], 2, "--to: bad.csv exists: name another file, or give --force"),
        (["export", "ok.csv", "--to", "no/dir.csv"], 2, "--to: no/dir.csv: cannot be written: No such file or directory"),
        (["export", "ok.csv", "--to", ".", "--force"], 2, "--to: . is a folder: name a file in it"),
        (["show", "./ok.csv"], 3, "'./ok.csv' names a file and no imported trace: 'stoker trace describe' takes files, too"),
        (["show", ""], 3, "no trace can be called ''; 'stoker trace list' shows the traces"),
        (["drop", "a b"], 3, "no trace can be called 'a b'; 'stoker trace list' shows the traces"),
        (["improt", "ok.csv"], 2, "no such command 'improt' (did you mean 'import'?)"),
    ],
)
def test_mistakes_get_one_line(stoker: Callable[..., Any], tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    (tmp_path / "ok.csv").write_text(CSV)
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    found, out, err = stoker("trace", *arguments)
    assert (found, out) == (code, "")
    assert err.startswith(f"stoker: error: {message}") and err.count("\n") == 1


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_what_is_exported_is_imported_again(stoker: Callable[..., Any], client: Client, tmp_path: Path, ending: str) -> None:
    trace = make_trace(f"round-{ending.replace('.', '-')}")
    send_trace(client, trace)
    to = tmp_path / f"out.{ending}"
    code, _, err = stoker("trace", "export", trace.name, "--to", str(to))
    assert (code, err) == (0, f"stoker: 3 jobs written to {to}\n")
    assert [path.name for path in tmp_path.iterdir()] == [to.name]  # no temporary file is left
    assert (to.read_bytes()[:2] == b"\x1f\x8b") == (ending == "csv.gz")
    again = read(to)
    assert (again.jobs, again.starts_at, again.recipe, again.name) == (trace.jobs, trace.starts_at, trace.recipe, trace.name)
    assert (again.dropped, again.repaired) == (trace.dropped, trace.repaired)
    code, out, _ = stoker("trace", "import", str(to), "--name", f"{trace.name}-2")
    assert code == 0 and "3 jobs imported (format stoker)" in out
    assert load_trace(f"{trace.name}-2", lambda: client).jobs == trace.jobs


def test_export_writes_to_a_pipe(stoker: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "side.csv").write_text(CSV)
    code, out, _ = stoker("trace", "export", "side.csv")
    (tmp_path / "again.csv").write_text(out, newline="")
    assert code == 0 and [job.key for job in read(tmp_path / "again.csv").jobs] == ["k1", "k2"]


def test_export_tells_programs_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, to = tmp_path / "side.csv", tmp_path / "own.csv"
    file.write_text(CSV)
    assert run(["trace", "export", str(file), "--to", str(to), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "side", "file": str(to), "jobs": 2}
    assert run(["trace", "export", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], [job["key"] for job in found["jobs"]]) == ("side", ["k1", "k2"])


def test_export_follows_links_and_writes_into_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands at --to stays what it is, but for a file."""
    monkeypatch.chdir(tmp_path)
    Path("side.csv").write_text(CSV)
    Path("kept").mkdir()
    Path("link.csv").symlink_to("kept/own.csv")
    os.mkfifo("pipe")
    assert run(["trace", "export", "side.csv", "--to", "link.csv"]) == 0  # to nothing as yet
    assert run(["trace", "export", "side.csv", "--to", "link.csv"]) == 2
    assert run(["trace", "export", "side.csv", "--to", "link.csv", "--force"]) == 0
    assert Path("link.csv").is_symlink() and [path.name for path in Path("kept").iterdir()] == ["own.csv"]
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE) as reader:
        assert run(["trace", "export", "side.csv", "--to", "pipe"]) == 0
        assert reader.communicate()[0] == Path("kept/own.csv").read_bytes()
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")])
def test_an_export_that_is_ended_leaves_nothing_and_says_so(tmp_path: Path, number: int, code: int, word: str) -> None:
    (tmp_path / "side.csv").write_text(CSV)
    program = (
        "import os, sys; from stoker.engine.cli.main import main; from stoker.engine.traces.formats import from_stoker as stoker\n"
        f"def write(trace, file): file.write('half'), file.flush(), os.kill(os.getpid(), {int(number)})\n"
        "stoker.write = write; sys.argv[1:] = ['trace', 'export', 'side.csv', '--to', 'own.csv']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (code, f"stoker: error: {word}: the trace was not written")
    assert [path.name for path in tmp_path.iterdir()] == ["side.csv"]


def test_a_folder_shadows_no_trace(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`describe philly --out philly/` makes a folder of the trace's name."""
    monkeypatch.chdir(tmp_path)
    trace = make_trace("shadowed")
    send_trace(client, trace)
    (tmp_path / "shadowed").mkdir()
    assert load_trace("shadowed", lambda: client) == trace
    (tmp_path / "a-folder").mkdir()
    with pytest.raises(NotFound, match="neither a file nor a trace 'a-folder'; 'stoker trace list'"):
        load_trace("a-folder", lambda: client)


@pytest.mark.parametrize(
    "arguments", [["import", "{}"], ["import", "--dry-run", "{}"], ["export", "{}.csv"], ["export", "side.csv", "--to", "{}"]]
)
def test_a_name_that_no_file_can_have_gets_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "side.csv").write_text(CSV)
    assert run(["trace", *(word.format("a" * 300) for word in arguments)]) == 2
    said = capsys.readouterr().err
    assert "File name too long" in said and said.count("\n") == 1 and "unexpected" not in said


def test_an_import_says_where_years_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    file.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + "".join(f"{year}-10-09 07:00:00,5,1,5,a\n" for year in (2007, 2017)))
    assert run(["trace", "import", str(file), "--dry-run"]) == 0
    assert "no job was submitted for 3653d after 2007-10-09 07:00:00 UTC: is a moment of submission wrong?" in capsys.readouterr().err


def test_a_file_needs_no_daemon(tmp_path: Path) -> None:
    (tmp_path / "side.csv").write_text(CSV)

    def nobody() -> Client:
        raise AssertionError("the daemon was asked")

    assert len(load_trace(str(tmp_path / "side.csv"), nobody).jobs) == 2
    with pytest.raises(NotFound, match=r"sied\.csv: there is no such file \(did you mean 'side\.csv'\?\)"):
        load_trace(str(tmp_path / "sied.csv"), nobody)
    with pytest.raises(UsageError, match="is not a file"):
        load_trace(str(tmp_path), nobody)


def test_an_import_without_a_daemon_says_so_before_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    file.write_text("this is no trace\n")
    assert run(["--home", str(tmp_path), "trace", "import", str(file)]) == 6
    assert "no daemon answers" in capsys.readouterr().err


def test_a_trace_that_is_not_there_names_the_nearest(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    send_trace(client, make_trace("nearest-one"))
    with pytest.raises(NotFound, match=r"neither a file nor a trace 'nearest-on' \(did you mean 'nearest-one'\?\)"):
        load_trace("nearest-on", lambda: client)


def test_a_bar_is_drawn_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with trace_send.progress_bar("reading") as progress:
        assert progress is None
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, open(ours, "rb", buffering=0) as seen:
        monkeypatch.setattr(sys, "stderr", terminal)
        with trace_send.progress_bar("reading x") as progress:
            assert progress is not None
            progress(50, 100)
        shown = b""
        while b"reading x" not in shown:  # a read of a terminal gives what is there, which may be the first character alone
            shown += seen.read(10_000)


def test_the_whole_survives_a_kill(daemon: DaemonProcess, client: Client) -> None:
    send_trace(client, make_trace("kept", 50))
    lost = make_trace("lost", 4)
    begun = json.loads(client.post_raw("/v1/traces?total=4", beginning(lost)))
    client.post_raw(f"/v1/traces/uploads/{begun['upload']}?offset=0", msgspec.json.encode(lost.jobs[:3]))
    daemon.kill()
    client.close()
    fresh = daemon.start()
    assert load_trace("kept", lambda: fresh) == make_trace("kept", 50)
    assert "lost" not in names(fresh)
    with pytest.raises(NotFound, match="send all again"):
        fresh.post_raw(f"/v1/traces/uploads/{begun['upload']}?offset=3", msgspec.json.encode(lost.jobs[3:]))
    assert send_trace(fresh, lost)["existing"] is False
