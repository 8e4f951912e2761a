"""What SQL says that there is, on a real daemon: exactly what one may read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e import DaemonProcess, Jobs
from stoker.engine.errors import UsageError


@pytest.mark.slow
def test_show_tables_lists_what_may_be_read(start_daemon: Callable[..., DaemonProcess]) -> None:
    jobs = Jobs(start_daemon().client())
    listed = [name for (name,) in jobs.sql("SHOW TABLES")]
    assert {"jobs", "events", "jobs_now", "policy_history"} <= set(listed)
    refused = []
    for name in listed:
        try:
            jobs.sql(f"FROM {name} LIMIT 1")
        except UsageError:
            refused.append(name)
    assert refused == []
    assert [row[0] for row in jobs.sql("DESCRIBE jobs_now")][:2] == ["id", "name"]
    assert sorted(listed) == sorted(table["name"] for table in jobs.client.get("/v1/schema")["tables"])
