"""The page as HTTP: who gets in, what each may do, what it shows of hostile texts, and what a stream tells."""

from __future__ import annotations

import hashlib
import html
import html.parser
import itertools
import json
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from browsing import MARKUP, Looker, busy_daemon, ended, link, listening, looker
from e2e import DaemonProcess, Jobs, RunnerProcess, free_port, until
from stoker.engine.api.auth import Identity
from stoker.engine.errors import Conflict
from stoker.engine.home import Home
from stoker.engine.pages import sessions
from stoker.engine.pages.components import ASSETS
from stoker.engine.pages.markup import Safe, h
from stoker.engine.store.store import Store
from waiting import patient

pytestmark = pytest.mark.xdist_group("page")

PAGES = (
    "/",
    "/jobs/1",
    "/jobs/119",
    "/gpus",
    "/gpus?span=1d",
    "/policies",
    "/simulations",
    "/sql",
    "/jobs/119/cancel",
    "/jobs/119/priority",
)

ROOT = Path(__file__).parents[2]
QUERY_SECONDS = 5.0  #: that a statement may take


@pytest.fixture(scope="module")
def daemon(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with busy_daemon(template, tmp_path_factory.mktemp("page"), f"[limits]\nquery_seconds = {QUERY_SECONDS}\n") as started:
        yield started


@pytest.fixture(scope="module")
def admin(daemon: DaemonProcess) -> Looker:
    return looker(link(daemon))


class Seen(html.parser.HTMLParser):
    """Elements and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.handlers.append(name)
            if name in ("src", "href", "action") and value:
                self.fetched.append(value)


def test_whatever_is_not_safe_is_escaped() -> None:
    made = h("a", "<b>", Safe("<i>x</i>"), None, [1, "&"], href='"><script>', class_="c", data_at=1, hidden=True, title=None)
    assert made == '<a href="&quot;&gt;&lt;script&gt;" class="c" data-at="1" hidden>&lt;b&gt;<i>x</i>1&amp;</a>'
    assert isinstance(made, Safe) and h("br") == "<br>"
    assert h("p", "a\x1b[31m\u202eb") == "<p>a�[31m�b</p>"  # nothing that turns the direction of writing


def test_a_link_is_used_once(daemon: DaemonProcess, admin: Looker) -> None:
    url = link(daemon)
    query = "/?" + urllib.parse.urlsplit(url).query
    first = Looker(admin.port)
    answer = first.ask(query)
    assert answer.status == 200 and list(first.cookies) == [f"stoker-{admin.port}"] and 'http-equiv="refresh"' in answer.text
    assert first.ask("/").status == 200
    second = Looker(admin.port)
    assert second.ask(query).status == 403 and not second.cookies
    for token in ("", "x", "stk_" + "a" * 43):
        answer = second.ask(f"/?token={token}")
        assert answer.status == 403 and "stoker ui" in answer.text and not second.cookies
    for path in (*PAGES, "/stream", "/jobs/1/log", "/jobs/1/curves", "/sql/export?q=SELECT+1", "/nowhere"):
        assert second.ask(path).status == 401, path


def test_an_old_link_is_none(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(database)
    known, now = sessions.PageSessions(store), 1000.0
    monkeypatch.setattr(sessions.time, "monotonic", lambda: now)
    secret, other = known.link(Identity("ann", "read")), known.link(Identity("ann", "read"))
    now += sessions.LINK_SECONDS - 1
    assert known.use(secret) == Identity("ann", "read") and known.use(secret) is None
    now += 2
    assert known.use(other) is None
    store.close()


def test_what_every_answer_carries_and_where_it_is_answered(admin: Looker) -> None:
    for path in ("/", "/assets/live.js", "/nowhere", "/jobs/1/curves"):
        headers = admin.ask(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'"), path
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "same-origin"
    for host in ("evil.example", f"evil.example:{admin.port}", "127.0.0.1.evil.example", "", "localhost:99999x", "10.0.0.1"):
        stranger = Looker(admin.port, admin.cookies, host or " ")
        assert stranger.ask("/").status == 421, host
    assert Looker(admin.port, {"stoker-9000": next(iter(admin.cookies.values()))}, "localhost:9000").ask("/").status == 200  # ssh -L 9000
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{admin.port}", "http://127.0.0.1:1"):
        assert admin.ask("/", Origin=origin).status == 403, origin
    assert admin.ask("/assets/../site.py").status in (401, 404) and admin.ask("/assets/uPlot.LICENSE").status == 404


def test_no_page_asks_another_host_or_has_scripts_within_it(admin: Looker) -> None:
    for path in PAGES:
        answer = admin.ask(path)
        assert answer.status == 200, (path, answer.text[:2000])
        seen = Seen(answer.text)
        assert seen.handlers == [], path
        assert [where for where in seen.fetched if where.startswith(("/", "http:", "https:", "//"))] == [], path


def test_markup_in_names_reasons_metrics_and_answers_is_text(daemon: DaemonProcess, admin: Looker) -> None:
    job = 112  #: it runs, and so is its name
    query = quote(f"SELECT 1 AS a, '{MARKUP.replace(chr(39), chr(39) * 2)}' AS \"{MARKUP.replace(chr(34), chr(34) * 2)}\"")
    study = daemon.client().get("/v1/simulations")["runs"][0]["study"]
    for path in (
        "/", f"/?text={quote(MARKUP)}&user={quote(MARKUP)}", f"/jobs/{job}",
        "/jobs/3", "/jobs/119", "/jobs/119/cancel", f"/jobs/{quote(MARKUP, safe='')}",
        f"/jobs/{job}?find={quote(MARKUP)}", f"/sql?q={query}", f"/sql?q={quote(MARKUP)}", "/policies?pool=%3Cscript%3E",
        f"/simulations?study={quote(study)}", "/simulations?study=%3Cscript%3E", "/gpus?span=%3Cscript%3E",
        "/%3Cscript%3Ealert(1)%3C/script%3E", f"/jobs/{job}/%3Cscript%3E",
    ):  # fmt: skip
        text = admin.ask(path).text
        assert "<script>" not in text and "<b on" not in text, path
        assert Seen(text).tags <= KNOWN, path
    assert "&lt;script&gt;alert(1)" in admin.ask("/").text and "&lt;script&gt;alert(1)" in admin.ask(f"/sql?q={query}").text
    assert MARKUP in admin.ask(f"/jobs/{job}/curves").text.encode().decode("unicode_escape")
    with listening(admin) as (stream,):
        first = next(stream)
    assert "<script>" not in "".join(first.values()) and "&lt;script&gt;" in first["queue"]


def test_markup_in_a_log_is_text(start_daemon: type[DaemonProcess], start_runner: Callable[[], RunnerProcess]) -> None:
    daemon = start_daemon()
    start_runner()
    jobs = Jobs(daemon.client())
    job = jobs.python("talks", f"print({MARKUP!r})")
    jobs.ended(job)
    visitor = looker(link(daemon))
    whole, found = (visitor.ask(f"/jobs/{job}{query}").text for query in ("", "?find=ALERT"))
    for text in (whole, found):
        assert "<script>" not in text and "<b on" not in text and Seen(text).tags <= KNOWN
    escaped = html.escape(MARKUP)
    assert re.findall(r'<pre class="log" id="log-text"[^>]*>([^<]*)</pre>', whole) == [f"{escaped}\n"]
    assert escaped.replace("alert", "<mark>alert</mark>") in found
    piece = visitor.ask(f"/jobs/{job}/log")  # the script makes it the data of a text
    assert piece.headers["content-type"] == "application/json" and json.loads(piece.text)["text"] == f"{MARKUP}\n"


def test_uplot_is_what_the_documentation_says() -> None:
    said = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", (ROOT / "docs/page.md").read_text(), re.MULTILINE))
    assert said == {hashlib.sha256(file.read_bytes()).hexdigest(): file.name for file in ASSETS.glob("uPlot*") if file.suffix != ".LICENSE"}
    assert (
        f"(v{re.findall(r'uPlot.* ([0-9.]+) .MIT', (ROOT / 'docs/page.md').read_text())[0]})"
        in (ASSETS / "uPlot.iife.min.js").read_text()[:200]
    )


WORDS = """
html head meta title link script body a header nav div form input button main h1 h2 h3 p dl dt dd small span label select option datalist ul
li b
progress time table thead tbody tr th td section pre figure svg line g rect text details summary textarea aside code mark
"""
KNOWN = set(WORDS.split())  #: elements that pages are made of


def test_filters_take_the_whole_queue(admin: Looker) -> None:
    def shown(query: str) -> set[int]:
        return {int(number) for number in re.findall(r'href="jobs/(\d+)"', admin.ask(f"/?{query}").text.partition('id="running"')[2])}

    everything = shown("")
    assert len(everything) > 5
    users = [shown(f"user={quote(name)}") for name in [*(f"user{number}" for number in range(5)), MARKUP]]
    assert set.union(*users) == everything and all(users)
    assert shown("state=pending") | shown("state=running") | shown("state=starting") == everything and not shown("state=pending") & shown(
        "state=running"
    )
    assert shown("text=job-120") == {120} and shown("label=team") == everything and shown("label=team=nlp") == set() == shown("pool=none")


def test_actions_ask_once_more_and_need_the_form_of_the_session(daemon: DaemonProcess, admin: Looker) -> None:
    client, here = daemon.client(), {"Origin": f"http://127.0.0.1:{admin.port}"}

    def state(job: int) -> tuple[str, bool, int]:
        row = client.get(f"/v1/jobs/{job}")["job"]
        return row["state"], row["held"], row["priority"]

    before = state(120)
    for form in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": looker(link(daemon)).ask("/").csrf}):
        assert admin.post("/jobs/120/hold", form, **here).status == 403
    assert admin.post("/jobs/120/hold", {"csrf": admin.ask("/").csrf}, Origin="http://evil.example").status == 403
    assert "Hold job 120" in admin.ask("/jobs/120/hold").text and state(120) == before
    held = admin.act("/jobs/120/hold")
    assert held.status == 303 and held.headers["location"] == "../../jobs/120" and state(120)[:2] == ("submitted", True)
    assert "Release…" in admin.ask("/jobs/120").text
    admin.act("/jobs/120/release")
    assert state(120)[:2] == ("pending", False)
    admin.act("/jobs/120/priority", priority="7")
    assert state(120)[2] == 7
    for wrong in ("", "x", "1e3", "99999999999999999999"):
        answer = admin.act("/jobs/120/priority", priority=wrong)
        assert answer.status == 400 and "priority: must be a whole number" in answer.text
    admin.act("/jobs/120/cancel")
    asked = {"csrf": admin.ask("/jobs/120/retry").csrf, "key": "once"}
    twice = [admin.post("/jobs/120/retry", asked, **here) for _ in range(2)]  # pressed twice, it is submitted once
    assert [answer.status for answer in twice] == [303, 303] and len({answer.headers["location"] for answer in twice}) == 1
    assert client.get(f"/v1/jobs/{twice[0].headers['location'].rpartition('/')[2]}")["job"]["name"] == "job-120"
    assert state(120)[0] == "cancelled" and "Cancel…" not in admin.ask("/jobs/120").text
    assert admin.act("/runners/node0/drain").status == 303 and "Resume…" in admin.ask("/gpus").text
    assert admin.act("/runners/node0/resume").status == 303
    for path in ("/jobs/9999", "/jobs/nobody", "/jobs/9999/cancel", "/runners/none/drain", "/jobs/120/explode", "/runners/node0/explode"):
        assert admin.ask(path).status == 404, path


def test_the_page_goes_on_after_a_kill_with_the_rights_it_had(home: Home, start_daemon: type[DaemonProcess]) -> None:
    tcp = f"127.0.0.1:{free_port()}"
    daemon = start_daemon("--tcp", tcp)
    client = daemon.client()
    made = {role: client.post("/v1/tokens", {"name": f"a-{role}", "role": role}) for role in ("read", "submit")}
    with pytest.raises(Conflict, match="stoker up --ui"):  # whoever has a token opens no port
        link(daemon, made["read"]["token"], f"http://{tcp}")
    with socket.create_server(("127.0.0.1", 0)) as held, pytest.raises(Conflict, match="choose another port"):
        client.post("/v1/ui", {"port": held.getsockname()[1]})
    port = free_port()
    assert client.post("/v1/ui", {"port": port})["port"] == port
    with pytest.raises(Conflict, match=f"on port {port} already"):
        client.post("/v1/ui", {"port": free_port()})
    mine = client.post("/v1/jobs", {"jobs": [{"name": "theirs", "recipe": "toy", "hold": True}], "provenance": PROVENANCE})["jobs"][0]["id"]
    reader = looker(link(daemon, made["read"]["token"], f"http://{tcp}"))
    submitter = looker(link(daemon, made["submit"]["token"], f"http://{tcp}"))
    own = daemon.client(f"http://{tcp}", made["submit"]["token"]).post(
        "/v1/jobs", {"jobs": [{"name": "own", "recipe": "toy", "hold": True}], "provenance": PROVENANCE}
    )["jobs"]

    def rights() -> None:
        assert "Cancel…" not in reader.ask(f"/jobs/{mine}").text and reader.ask(f"/jobs/{mine}/cancel").status == 403
        assert reader.post(f"/jobs/{mine}/cancel", {"csrf": reader.ask("/").csrf}).status == 403
        assert "Cancel…" not in submitter.ask(f"/jobs/{mine}").text and submitter.act(f"/jobs/{mine}/hold").status == 403
        assert "Release…" in submitter.ask(f"/jobs/{own[0]['id']}").text
        assert submitter.ask("/runners/x/drain").status == 403

    rights()
    with listening(reader) as (stream,):
        assert set(next(stream)) == {"summary", "gpus", "running", "queue"}
        daemon.kill()
        assert ended(stream, 5)
    daemon.start()
    until(lambda: reader.ask("/").status == 200)
    rights()
    with listening(reader) as (stream,), listening(submitter, "job=1") as (other,):  # who may look no longer is told nothing more
        assert next(stream) and next(other)
        daemon.client().post(f"/v1/tokens/{made['read']['id']}/revoke", {})
        assert reader.ask("/").status == 401 and submitter.ask("/").status == 200 and ended(stream, patient(5))
        assert submitter.post("/leave", {"csrf": submitter.ask("/").csrf}).status == 303 and ended(other, patient(5))
    kept = Looker(port, {f"stoker-{port}": "x"})
    assert submitter.ask("/").status == 401 == kept.ask("/").status
    with listening(looker(link(daemon))) as (stream,):  # and none keeps the daemon from ending
        next(stream)
        begun = time.monotonic()
        assert daemon.stop() == 0 and ended(stream, 1) and time.monotonic() - begun < patient(4)


PROVENANCE = {"argv": ["x"], "cwd": "/", "git_commit": None, "git_diff": None, "snapshot": None, "client": "t"}


def test_a_stream_tells_what_changed_and_there_is_a_limit(daemon: DaemonProcess, admin: Looker) -> None:
    job = 119
    with listening(admin) as (of_now,), listening(admin, f"job={job}") as (of_job,):
        assert set(next(of_now)) == {"summary", "gpus", "running", "queue"} and set(next(of_job)) == {"standing", "version"}
        daemon.client().post(f"/v1/jobs/{job}/priority", {"priority": 3})
        assert any("queue" in changed for changed in itertools.islice(of_now, 10))
        assert any("version" in changed for changed in itertools.islice(of_job, 10))
        with listening(admin, streams=100) as more:
            refused = [one.answer for one in more if one.answer.status != 200]
            assert [answer.status for answer in refused] == [422, 422]  # with the two above
            assert b"100 pages are open already" in refused[0].read()
    until(lambda: _status(admin) == 200)  # who has gone leaves room
    for wrong in ("9" * 5000, "-1", "x"):
        assert admin.ask(f"/stream?job={wrong}").status == 400


def _status(one: Looker) -> int:
    with listening(one) as (stream,):
        return stream.answer.status


def test_sql_is_shared_by_its_address_and_bounded(daemon: DaemonProcess, admin: Looker) -> None:
    answer = admin.ask("/sql?q=" + quote("SELECT id, priority FROM jobs WHERE id <= 120 ORDER BY id"))
    assert "120 rows in" in answer.text and "data-plot" in answer.text and "by id" in answer.text
    exported = admin.ask("/sql/export?format=csv&q=SELECT+1+AS+a")
    assert exported.text == "a\n1\n" and "attachment" in exported.headers["content-disposition"]
    for wrong in (
        "DROP TABLE jobs",
        "SELECT * FROM page_sessions",
        "SELECT * FROM tokens",
        "SELEC 1",
        "SELECT * FROM read_text('/etc/passwd')",
    ):
        text = admin.ask(f"/sql?q={quote(wrong)}").text
        assert 'role="alert"' in text and "Traceback" not in text, wrong
    assert admin.ask("/sql/export?format=exe&q=SELECT+1").status == 400
    tables = {table["name"] for table in daemon.client().get("/v1/schema")["tables"]}
    assert "jobs" in tables and "page_sessions" not in tables


def test_sql_that_runs_for_ever_is_ended(admin: Looker) -> None:
    endless = quote("SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b")
    text = admin.ask(f"/sql?q={endless}").text
    assert 'role="alert"' in text and f"{QUERY_SECONDS:g} s" in text
