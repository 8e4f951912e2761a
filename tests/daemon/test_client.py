"""The client of the daemon's API, beside answers that no live daemon gives."""

import socket
import threading
import time

import pytest
from stoker.engine import client as module
from stoker.engine.client import Client
from stoker.engine.errors import Unreachable

ANSWERS = {
    "nothing": b"",
    "half of the head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "no body": b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n",
    "nonsense": b"nonsense\r\n\r\n",
}


@pytest.mark.parametrize("said", ANSWERS)
def test_a_daemon_that_dies_while_it_answers_has_not_answered(home, said: str) -> None:
    """Found by the crash test: a runner must try again, and not end by it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home.socket))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(ANSWERS[said])

        thread = threading.Thread(target=serve)
        thread.start()
        client = Client(home, url="", token="")
        with pytest.raises(Unreachable):
            client.post_raw("/v1/runner/report", b"{}")
        client.close()
        thread.join()


def test_a_connection_that_the_daemon_may_be_closing_is_not_used_again(start_daemon, monkeypatch) -> None:
    """A POST that meets its end would fail, and nobody could tell whether it was acted on."""
    client = start_daemon().client()
    first = client.request("GET", "/v1/status")
    first.read()
    used = client._connection
    assert client.get("/v1/status") and client._connection is used
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + module.KEEP_ALIVE / 2 + 1)
    assert client.get("/v1/status") and client._connection is not used
