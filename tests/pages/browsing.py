"""A daemon with a plausible history, markup in all that people write, and somebody who looks at its page without a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
from e2e import DaemonProcess, daemon_apart

MARKUP = "<script>alert(1)</script><b onclick='x'>&amp;\"'"
POPULATE = (Path(__file__).parents[1] / "populate.sql").read_text()


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', self.text)
        assert found, self.text[:500]
        return found[1]


@dataclass
class Looker:
    """A browser of one person, as far as HTTP goes."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)
    host: str = ""

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            sent = {"Host": self.host or f"127.0.0.1:{self.port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
            if self.cookies:
                sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            if body is not None:
                sent["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            text = answer.read().decode()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                cookie, _, flags = value.partition(";")
                key, _, given = cookie.partition("=")
                assert "HttpOnly" in flags and "SameSite=strict" in flags
                self.cookies[key] = given.strip('"')
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        return self.ask(path, "POST", urllib.parse.urlencode(form), **headers)

    def act(self, path: str, **fields: str) -> Answer:
        """Press the button of the page that asks once more."""
        return self.post(path, {"csrf": self.ask(path).csrf, **fields}, Origin=f"http://127.0.0.1:{self.port}")


def link(daemon: DaemonProcess, token: str = "", tcp: str = "") -> str:
    return str(daemon.client(tcp, token).post("/v1/ui", {})["url"])


def looker(url: str) -> Looker:
    """Somebody who has used the link."""
    where = urllib.parse.urlsplit(url)
    assert where.port is not None
    one = Looker(where.port)
    assert one.ask(f"/?{where.query}").status == 200
    return one


def populated(path: Path, template: Path, jobs: int = 120) -> None:
    """A database of a busy host, in which markup stands wherever it can."""
    shutil.copyfile(template, path)
    with contextlib.closing(duckdb.connect(str(path))) as con:
        con.execute("SET TimeZone = 'UTC'")
        con.execute(f"SET VARIABLE jobs = {jobs}")
        con.execute(POPULATE)
        con.execute("DELETE FROM iteration_estimates")  # no job of this history stops at a metric
        con.execute("UPDATE jobs SET name = ?, owner = ?, state_reason = ? WHERE id IN (3, 112, 119)", [MARKUP, MARKUP, MARKUP])
        con.execute("UPDATE jobs SET spec = json_object('name', name, 'recipe', 'text', 'labels', json_object('team', ?))", [MARKUP])
        con.execute("UPDATE leases SET message = ? WHERE id % 2 = 0", [MARKUP])
        con.execute("UPDATE metrics SET name = ? WHERE name = 'loss' AND job_id % 2 = 0", [f"loss {MARKUP}"])
        con.execute("UPDATE sim_runs SET error = ?, trace = ?", [MARKUP, MARKUP])


@contextlib.contextmanager
def busy_daemon(template: Path, folder: Path, config: str = "") -> Iterator[DaemonProcess]:
    database = folder / "busy.duckdb"
    populated(database, template)
    with daemon_apart(database, config) as daemon:
        yield daemon
        assert "Traceback" not in daemon.said(), daemon.said()[-3000:]


@dataclass
class Stream:
    """An open stream: what it tells, event by event."""

    connection: http.client.HTTPConnection
    answer: http.client.HTTPResponse

    def __iter__(self) -> Iterator[dict[str, str]]:
        return self

    def __next__(self) -> dict[str, str]:
        while line := self.answer.readline():
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        raise StopIteration


@contextlib.contextmanager
def listening(one: Looker, query: str = "", streams: int = 1) -> Iterator[list[Stream]]:
    """Streams of somebody's pages."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(streams):
            connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=30)
            stack.enter_context(contextlib.closing(connection))
            cookie = "; ".join(f"{name}={value}" for name, value in one.cookies.items())
            connection.request("GET", f"/stream?{query}", headers={"Cookie": cookie})
            opened.append(Stream(connection, connection.getresponse()))
        yield opened


def ended(stream: Stream, seconds: float) -> bool:
    """Whether a stream ends within that time."""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError, http.client.HTTPException):
        for _ in stream:
            if time.monotonic() > end:
                return False
    return time.monotonic() < end
