"""The words for how a job failed."""

from __future__ import annotations

import pytest
from stoker.runners.lease.endings import judge, last_line

RULE = "=" * 60

SUMMARY = f"""RuntimeError: connection closed by peer
{RULE}
train.py FAILED
{"-" * 60}
Failures:
[1]:
  time      : 2026-01-31_18:00:00
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 20)  (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 20
{"-" * 60}
Root Cause (first observed failure):
[0]:
  time      : 2026-01-31_18:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : CODE (pid: 21)
  error_file: <N/A>
{RULE}
"""  # as torch 2.13 prints it


def failed(log: str) -> str | None:
    ending = judge(
        exit_code=1, stop_reason=None, stop_seen=False, caught=False, done=False, grace=0.0, killed_after_grace=False, kernel_oom=False,
        log=log.encode(),
    )  # fmt: skip
    assert ending.outcome == "failed"
    return ending.message


@pytest.mark.parametrize(("code", "how"), [("9", "exit code 9"), ("-11", "killed by SIGSEGV")])
def test_of_a_gang_the_rank_that_failed_first_is_named_and_not_the_rule_below_the_summary(code: str, how: str) -> None:
    message = f"exit code 1: rank 1 failed first ({how}); its own words are further up in the log"
    assert failed(SUMMARY.replace("CODE", code)) == message


def test_rules_are_no_last_words() -> None:
    assert failed(f"ValueError: no such column\n{RULE}\n  ---\n") == "exit code 1: ValueError: no such column"
    assert failed(f"{RULE}\n") == "exit code 1, without a word; see 'stoker logs'"


def test_colour_codes_do_not_come_into_reasons() -> None:
    assert (
        last_line(b"\x1b[1;31mValueError\x1b[0m: \x1b]8;;file:///x\x07no such column\x1b]8;;\x07\x1b[K\n\x1b[0m\n")
        == "ValueError: no such column"
    )
