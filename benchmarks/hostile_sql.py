"""Statements that mean ill or only take too much, for `hostile.py`: what ad-hoc SQL must refuse, and what it must end.

All are asked with a short time limit. Let through are those that were answered though they must be refused, and
those, of all kinds, whose answer came later than a second after their limit.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from common import Daemon, milliseconds, progress, submission
from stoker.engine.errors import StokerError
from stoker.engine.spec.model import JobSpec

LIMIT = 1.0  #: seconds of a statement
LATE = 1.0  #: seconds after its limit by which it must have been answered

FORBIDDEN = [
    "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM '/etc/passwd'", "FROM read_csv('/proc/self/environ')", "SELECT getenv('HOME')",
    "SELECT * FROM glob('/*')", "ATTACH '/tmp/x.duckdb'", "COPY jobs TO '/tmp/x.csv'", "INSTALL httpfs", "LOAD httpfs", "CHECKPOINT",
    "SET memory_limit = '100GB'", "PRAGMA database_list", "DROP TABLE jobs", "DELETE FROM jobs", "UPDATE jobs SET priority = 1",
    "INSERT INTO jobs SELECT * FROM jobs", "CREATE VIEW v AS SELECT 1", "SELECT digest FROM tokens", "FROM duckdb_settings()",
    "FROM duckdb_secrets()", "FROM query('SELECT 1')", "FROM query_table('tokens')", "SELECT current_setting('temp_directory')",
    "SELECT getvariable('x')", "SELECT sleep_ms(100000)", "SELECT 1; DROP TABLE jobs", "EXPLAIN ANALYZE DELETE FROM jobs",
    "EXPORT DATABASE '/tmp/x'", "SELECT write_log('x')", "CALL pragma_version()", "SELECT * FROM information_schema.tables",
    "FROM json_execute_serialized_sql('{}')", "SELECT list_filter([1], lambda x: getenv('HOME') = 'x')",
    "PIVOT tokens ON role USING count(*)",
    "WITH tokens AS (SELECT * FROM tokens) FROM tokens", "SELECT (SELECT content FROM read_text('/etc/passwd'))", "VACUUM", "\0",
    "SELECT '",
    "PIVOT (FROM read_csv('/etc/passwd')) ON column0 USING count(*)",
]  # fmt: skip
AROUND = ["{}", "SELECT count(*) FROM ({})", "WITH w AS ({}) FROM w", "SELECT * FROM ({}) LIMIT 1", "EXPLAIN {}", "({})"]
ENDLESS = [
    "SELECT count(*) AS n FROM range(10000000) a, range(10000000) b",
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT max(n) AS n FROM t",
    "SELECT i FROM range(100000000000) t(i) WHERE i < 0",
    "SELECT regexp_matches(string_agg('a', ''), '(((a{0,10}){0,10}){0,10})b') AS n FROM range(10000000)",
    "SELECT hash(i) % 1000 AS k, count(*) AS n FROM range(100000000000) t(i) GROUP BY ALL",
    "SELECT a.i FROM range(1000000) a(i) JOIN range(1000000) b(j) ON a.i % 7 = b.j % 7 ORDER BY 1",
    "SELECT levenshtein(repeat('ab', 1000000), repeat('ba', 1000000)) AS n",
    "SELECT list_sum(list_transform(range(100000000), lambda x: x * x)) AS n",
    "SELECT split(repeat('a,', 40000000), ',') AS a, split(repeat('b,', 40000000), ',') AS b",
]
FILLING = [
    "SELECT list(i) AS l FROM range(30000000) t(i)",
    "SELECT list_distinct(list(i)) AS l FROM range(30000000) t(i)",
    "SELECT length(string_agg(i::VARCHAR, ',')) AS n FROM range(1000000000) t(i)",
    "SELECT median(i) AS m FROM range(1000000000) t(i)",
    "WITH RECURSIVE t AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM t) SELECT max(length(s)) AS n FROM t",
    "SELECT length(repeat('x', 2000000000) || repeat('y', 2000000000)) AS n",
    "SELECT json_group_array(i) AS j FROM range(1000000000) t(i)",
    "SELECT list(i) OVER () AS l FROM range(100000) t(i)",
    "SELECT lpad('x', 2000000000, 'y') AS s",
    "SELECT 1 AS a0, " + ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(27)),
    "SELECT " + "||".join(["name"] * 200) + " AS s FROM jobs",
    "SELECT id FROM jobs GROUP BY CUBE (id, name, owner, pool, kind, model, state, demand, priority, held, gpus_min, gpus_max)",
]


def nested(depth: int) -> str:
    text = "SELECT 1 AS a"
    for _ in range(depth):
        text = f"SELECT *, * FROM ({text})"
    return text


STRANGE = [
    "SELECT json_contains(string_agg('[', '') || string_agg(']', ''), '1') AS b FROM range(300000)",
    *(nested(depth) for depth in (8, 14, 18)),
    *("FROM " + ", ".join(f"jobs j{n}" for n in range(count)) for count in (24, 34)),
    *("SELECT " + ", ".join(f"t AS {name}" for name in (f"c{n}" for n in range(count))) + " FROM jobs t" for count in (24, 34, 500)),
    "SELECT " + "NOT " * 3000 + "true", "SELECT " + "(" * 39 + "1" + ")" * 39, "SELECT 1" + " + 1" * 3000,
    "SELECT '" + "x" * 19_000 + "'",
    "SELECT " + ", ".join(f"{n} AS c{n}" for n in range(1500)), "SELECT CASE " + "WHEN 1 = 2 THEN 3 " * 800 + "END",
    "SELECT 1 " + "UNION ALL SELECT 1 " * 900, "SELECT " + "[" * 39 + "1" + "]" * 39,
    "SELECT id FROM jobs WHERE id IN (" + "1, " * 6000 + "1)",
]  # fmt: skip


def statements() -> Iterator[tuple[str, bool]]:
    """Each with whether it must be refused."""
    for text, around in itertools.product(FORBIDDEN, AROUND):
        yield around.format(text), True
    for text, around in itertools.product(ENDLESS + FILLING, AROUND[:4]):
        yield around.format(text), False
    for text in STRANGE:
        yield text, False


def ask(daemon: Daemon, text: str) -> tuple[str, float]:
    """How it went, and how long that took."""
    began = time.perf_counter()
    try:
        daemon.client().post("/v1/sql", {"query": text, "timeout": LIMIT, "limit": 100})
        said = "answered"
    except StokerError as error:
        said = {"bad-request": "refused", "limit": "ended"}.get(error.code, error.code)
    return said, time.perf_counter() - began


def measure(daemon: Daemon, askers: int) -> dict[str, Any]:
    """All statements by some who ask at once, beside one who submits ten jobs a second."""
    asked = list(statements())
    progress(f"{len(asked)} statements, {askers} at once, beside submissions")
    pid, over, submitted = daemon.client().get("/v1/status")["pid"], threading.Event(), []

    def submit() -> None:
        client = daemon.client()
        while not over.wait(0.1):
            began = time.perf_counter()
            job = JobSpec(name=f"beside-{secrets.randbits(40)}", recipe="digits-cnn", estimate=600.0)
            client.post_raw("/v1/jobs", msgspec.json.encode(submission(job)))
            submitted.append(time.perf_counter() - began)

    submitter = threading.Thread(target=submit)
    began_at = time.time()
    submitter.start()
    with ThreadPoolExecutor(askers) as pool:
        answers = list(pool.map(lambda one: ask(daemon, one[0]), asked))
    over.set()
    submitter.join()
    outcomes = Counter(said for said, _ in answers)
    through = [text for (text, forbidden), (said, _) in zip(asked, answers, strict=True) if forbidden and said == "answered"]
    late = [text for (text, _), (_, taken) in zip(asked, answers, strict=True) if taken > LIMIT + LATE]
    for text in (through + late)[:10]:
        progress(f"let through: {text[:120]!r}")
    ((restarts,),) = daemon.query("SELECT count(*) FROM events WHERE kind = 'sql.restart'")
    took = "1e3 * quantile_cont(view_seconds + plan_seconds + apply_seconds, 0.99)"
    ((tick,),) = daemon.query(f"SELECT coalesce({took}, 0) FROM decisions WHERE epoch(last_ts) > {began_at}")
    return {
        "statements": len(asked),
        **{word: outcomes.pop(word, 0) for word in ("refused", "ended", "answered")},
        "otherwise": sum(outcomes.values()),
        "forbidden and answered": len(through),
        "late": len(late),
        "longest s": max(taken for _, taken in answers),
        "submissions": len(submitted),
        **{f"submit {name}": value for name, value in milliseconds(submitted).items()},
        "tick p99 ms": tick,
        "restarts of the daemon": int(daemon.client().get("/v1/status")["pid"] != pid),
        "of the SQL process": restarts,
    }
