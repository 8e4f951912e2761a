"""How values and tables look: units, narrow terminals, pipes, colours."""

from __future__ import annotations

import io
import math
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from stoker.engine import format as fmt
from stoker.engine.cli.looking.sql import value_text
from stoker.engine.cli.output import Column, fit, plain_table, print_table, table, write_json


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "<1ms"),
        (0.25, "250ms"),
        (59.6, "1m"),
        (185, "3m 05s"),
        (7800, "2h 10m"),
        (357_000, "4d 03h"),
        (None, "–"),
        (-5, "-5s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert fmt.duration(seconds) == text


@pytest.mark.parametrize(
    ("away", "text"), [(180, "in 3m"), (-300, "5m ago"), (0.4, "now"), (7140, "in 1h 59m"), (90_000, "in 1d 01h"), (-3599, "59m ago")]
)
def test_relative_times(away: float, text: str) -> None:
    assert fmt.relative(1e9 + away, 1e9) == text


def test_an_estimate_that_has_passed_is_soon() -> None:
    assert fmt.expected(1e9 - 60, 1e9) == "soon"
    assert fmt.expected(1e9 + 60, 1e9) == "in 1m"
    assert fmt.expected(None, 1e9) == "–"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (85 * 1024**3, "85.0 GiB"), (3 * 1024**5, "3072 TiB"), (None, "–")]
)
def test_sizes(count: float | None, text: str) -> None:
    assert fmt.size(count) == text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_is_refused(number: float, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"a": [number]})
    assert capsys.readouterr().out == ""


@given(st.floats(-1, 2), st.integers(1, 40))
def test_bars_have_their_width_and_grow(share: float, width: int) -> None:
    drawn = fmt.bar(share, width)
    assert len(drawn) == width
    assert drawn.count("█") == math.floor(round(min(max(share, 0), 1) * width * 8) / 8)


@given(st.text())
def test_cells_cannot_steer_the_terminal(text: str) -> None:
    assert fmt.clean(text).isprintable() or not text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (3, "3"),
        (30.24832, "30.248"),
        (2.0, "2"),
        (0.000123456, "0.0001235"),
        ([1, "a"], '[1, "a"]'),
        ("x", "x"),
    ],
)
def test_values_of_a_query(value: Any, text: str) -> None:
    assert value_text(value) == text


ROWS = [
    {
        "id": 7,
        "name": "fine-tune-a-large-model-with-a-long-name",
        "state": "running",
        "reason": "needs 4 GPUs on one node; too few are free",
    },
    {"id": 12, "name": "名前", "state": "pending", "reason": ""},
]
COLUMNS = [
    Column("ID", "id", right=True),
    Column("NAME", "name", flexible=True),
    Column("STATE", "state", rank=2),
    Column("SHARE", lambda _: "50%", share=lambda _: 0.5, rank=1),
    Column("REASON", "reason", flexible=True, rank=3),
]


@pytest.mark.parametrize("width", range(20, 140, 7))
def test_a_table_fits_its_terminal(width: int) -> None:
    lines = table(ROWS, COLUMNS, width)
    assert len(lines) == 1 + len(ROWS)
    assert all(cell_len(line.plain) <= width for line in lines)


def test_narrow_tables_lose_the_least_important_columns_first() -> None:
    def shown(width: int) -> list[str]:
        cells = [[column.drawn(row) for row in ROWS] for column in COLUMNS]
        return [COLUMNS[i].header for i, _ in fit(COLUMNS, cells, width)]

    assert shown(200) == ["ID", "NAME", "STATE", "SHARE", "REASON"]
    assert shown(45) == ["ID", "NAME", "STATE", "SHARE"]
    assert shown(35) == ["ID", "NAME", "SHARE"]
    assert shown(20) == ["ID", "NAME"]


def test_what_is_cut_says_so() -> None:
    assert "…" in table(ROWS, COLUMNS, 60)[1].plain


def test_a_pipe_gets_everything_plain() -> None:
    text = plain_table(["ID", "NAME"], [["7", ROWS[0]["name"]], ["12", "x"]])
    assert text.splitlines() == ["ID  NAME", f"7   {ROWS[0]['name']}", "12  x"]


def test_print_table_in_a_pipe_has_no_bars_and_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS, [Column("STATE", "state", style="red"), COLUMNS[3]], "none")
    print_table([], COLUMNS, "nothing there")
    assert capsys.readouterr().out == "STATE    SHARE\nrunning  50%\npending  50%\nnothing there\n"


PROGRAM = """
from stoker.engine.cli.output import Column, print_table, section
section("Title")
print_table([{"state": "running"}], [Column("STATE", "state", style="green"), Column("S", lambda r: "50%", share=lambda r: .5)], "none")
"""


def on_terminal(**environment: str) -> str:
    """What the program prints on a terminal of 80 columns."""
    master, slave = pty.openpty()
    base = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    done = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=slave, stdin=slave, env={**base, "TERM": "xterm", "COLUMNS": "80", **environment}
    )
    os.close(slave)
    out = io.BytesIO()
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:  # EIO: the other side is closed
            break
        if not chunk:
            break
        out.write(chunk)
    os.close(master)
    assert done.wait() == 0
    return out.getvalue().decode()


def test_colours_and_bars_on_a_terminal() -> None:
    text = on_terminal()
    assert "\x1b[32m" in text and "████" in text and "\x1b[1mTitle" in text


def test_no_color_is_honoured() -> None:
    text = on_terminal(NO_COLOR="1")
    assert "\x1b[3" not in text and "running" in text and "████" in text
