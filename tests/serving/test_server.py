"""The server of a model in its process: batches, a bounded queue, errors that are one request's, clients that leave, pauses, weights."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch
from stoker.engine.errors import LimitExceeded, StokerError, Unreachable, UsageError
from stoker.engine.spec.model import Serve
from stoker.runners.lease.rundir import ENV_LEASE, ENV_RUN_DIR
from stoker.runners.share.inference import ModelServer, _Minute
from stoker.runners.share.inference_client import InferenceClient
from stoker.runners.share.turn import Turn
from stoker.runners.share.yielding import Yielding
from stoker.runners.train.task import Task
from stoker.runners.worker import script
from stoker.runners.worker.ranks import Ranks
from torch import nn
from waiting import patient, until

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("warm_server")]

#: Another job that has the turn of a GPU until it is told to leave.
HOLDS = """
import sys
from pathlib import Path
from stoker.runners.share.turn import Turn
from stoker.runners.share.yielding import Yielding
turn = Turn(Path(sys.argv[1]), 99, 10)
turn.take()
print("has it", flush=True)
sys.stdin.read()
"""
ALONE = Ranks(0, 1, torch.device("cpu"))


class Doubles:
    """A task that doubles numbers, and remembers the batches that it was asked for."""

    def __init__(self, pause=0.0, **fields):
        self.batches, self.pause = [], pause
        self.task = Task(model=nn.Linear(1, 1), answer=self.answer, **fields)

    def answer(self, model, requests):
        self.batches.append(list(requests))
        time.sleep(self.pause)
        return [2 * request if request != "none" else None for request in requests]


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """A server on a thread, in a run directory that is deeper than the address of a socket may be long."""
    running = []

    def start(task, weights=None, **fields):
        run_dir = tmp_path / "/".join(["a-long-name-of-a-directory"] * 5)
        run_dir.mkdir(parents=True, mode=0o700)
        assert len(str(run_dir)) > 107
        monkeypatch.setenv(ENV_RUN_DIR, str(run_dir))
        monkeypatch.setenv(ENV_LEASE, "1")
        script.begin()
        server = ModelServer(task.task if isinstance(task, Doubles) else task, Serve(**fields), weights, ALONE, run_dir)
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((run_dir, thread))
        return run_dir

    yield start
    for run_dir, thread in running:
        (run_dir / "stop.json").write_text("{}")
        thread.join(20)
        assert not thread.is_alive()
    monkeypatch.undo()
    script.begin()


def ask(run_dir, *requests, timeout=20.0):
    with closing(InferenceClient(run_dir, "doubles", timeout)) as client:
        return client.ask(requests)


def told(run_dir):
    """What it has reported, summed over minutes."""
    until((run_dir / "reports-0.jsonl").exists)
    records = [json.loads(line).get("values", {}) for line in (run_dir / "reports-0.jsonl").read_text().splitlines()]
    newest = {record["minute"]: record for record in records if record}
    return {name: sum(record.get(name, 0) for record in newest.values()) for name in ("requests", "errors", "refused")}, records


def raw(run_dir):
    there = os.open(run_dir, os.O_DIRECTORY)
    plain = socket.socket(socket.AF_UNIX)
    plain.settimeout(20)
    plain.connect(f"/proc/self/fd/{there}/infer.sock")
    os.close(there)
    return plain


def test_it_answers_in_order_and_tells_of_latencies(serve):
    run_dir = serve(Doubles())
    with closing(InferenceClient(run_dir, "doubles")) as client:
        assert client.ask([3]) == [{"answer": 6}]
        assert client.ask(["a", [1], 2.5]) == [{"answer": "aa"}, {"answer": [1, 1]}, {"answer": 5.0}]
    assert stat.S_IMODE((run_dir / "infer.sock").stat().st_mode) == 0o600
    until(lambda: told(run_dir)[0]["requests"] >= 1)
    values = told(run_dir)[1][-1]
    assert 0 < values["p50"] <= values["p95"] <= values["p99"] < 5 and values["queue"] in (1, 3)


def test_waiting_requests_are_computed_together_up_to_a_batch(serve):
    doubles = Doubles(pause=patient(0.2))  # all others have asked meanwhile
    run_dir = serve(doubles, batch=4)
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda number: ask(run_dir, number), range(8)))
    assert answers == [[{"answer": 2 * number}] for number in range(8)]
    assert max(map(len, doubles.batches)) == 4 and len(doubles.batches) <= 4


def test_a_message_of_more_than_a_batch_is_answered_whole(serve):
    doubles = Doubles()
    assert ask(serve(doubles, batch=4), *range(10)) == [{"answer": 2 * number} for number in range(10)]
    assert [len(batch) for batch in doubles.batches] == [4, 4, 2]


def test_the_first_request_waits_for_others_as_long_as_it_may(serve):
    doubles = Doubles()
    run_dir = serve(doubles, batch=2, delay=20.0)
    with ThreadPoolExecutor(2) as clients:
        began = time.monotonic()
        assert list(clients.map(lambda number: ask(run_dir, number), range(2))) == [[{"answer": 0}], [{"answer": 2}]]
    assert time.monotonic() - began < 15 and [len(batch) for batch in doubles.batches] == [2]


def test_a_request_on_which_the_model_raises_gets_the_error_and_the_others_their_answers(serve):
    doubles = Doubles()
    run_dir = serve(doubles)
    answers = ask(run_dir, 1, {"no": "number"}, 3)
    assert [answers[0], answers[2]] == [{"answer": 2}, {"answer": 6}]
    assert answers[1]["error"].startswith("TypeError: unsupported operand")
    assert ask(run_dir, 5) == [{"answer": 10}]


def test_a_model_that_takes_its_requests_apart_loses_none(serve):
    def answer(model, requests):
        taken = [requests.pop(0) for _ in list(requests)]
        return [1 / number for number in taken]

    answers = ask(serve(Task(model=nn.Linear(1, 1), answer=answer)), 2, 0, 4)
    assert answers == [{"answer": 0.5}, {"error": "ZeroDivisionError: division by zero"}, {"answer": 0.25}]


def test_percentiles_are_of_the_nearest_rank():
    minute = _Minute()
    minute.latencies = [number / 100 for number in range(1, 101)]
    values = minute.values()
    assert (values["p50"], values["p95"], values["p99"]) == (0.5, 0.95, 0.99)
    minute.latencies = [3.0]
    assert minute.values()["p50"] == minute.values()["p99"] == 3.0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda model, requests: [], "the task's answer() must return a list of 1 answers, not 0"),
        (lambda model, requests: "text", "the task's answer() must return a list of 1 answers, not str"),
        (lambda model, requests: [torch.ones(1)], "the task's answer() returned a value that JSON cannot hold: Object of type Tensor"),
        (lambda model, requests: [float("nan")], "the task's answer() returned a value that JSON cannot hold: Out of range float"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_told(serve, answer, error):
    ((found),) = ask(serve(Task(model=nn.Linear(1, 1), answer=answer)), 1)
    assert found["error"].startswith(error)


def test_requests_are_prepared_while_the_turn_is_anothers_and_survive_the_pause(serve, tmp_path):
    prepared = []

    def prepare(request):
        if request == "exit":
            raise SystemExit(3)
        prepared.append(request)
        return request + 1

    doubles = Doubles(prepare=prepare)
    run_dir = serve(doubles)
    assert ask(run_dir, 1) == [{"answer": 4}]
    path = tmp_path / "turns" / "gpu"
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None and holder.stdout is not None and holder.stdout.readline()
        (run_dir / "turn.json").write_text(json.dumps({"path": str(path), "priority": 0}))
        with ThreadPoolExecutor(1) as clients:
            answers = clients.submit(ask, run_dir, 2, "exit", 3)
            until(lambda: prepared == [1, 2, 3])
            time.sleep(0.1)
            assert len(doubles.batches) == 1 and not answers.done()
            holder.stdin.close()
            assert answers.result() == [{"answer": 6}, {"error": "SystemExit: 3"}, {"answer": 8}]


def test_it_keeps_no_turn_beyond_what_its_agent_says(tmp_path, monkeypatch):
    """However many requests wait: a training may have come to its GPU."""
    monkeypatch.setenv("STOKER_RUN_DIR", str(tmp_path))
    sharing = Yielding((), torch.device("cpu"))

    def says(path, priority):
        (tmp_path / "new").write_text(json.dumps({"path": path and str(path), "priority": priority}))
        (tmp_path / "new").replace(tmp_path / "turn.json")

    says(None, 0)
    for path, priority in ((tmp_path / "turn", 0), (tmp_path / "turn", 5), (tmp_path / "other", 5), (None, 0)):
        with sharing:
            assert sharing.may_go_on
            says(path, priority)
            assert not sharing.may_go_on
    with sharing:
        assert sharing.may_go_on
    sharing.close()


@pytest.mark.parametrize(("waits", "turns"), [("nobody as urgent", 1), ("an equal", 4)])
def test_it_keeps_the_turn_for_requests_that_wait_as_long_as_nobody_as_urgent_does(serve, tmp_path, monkeypatch, waits, turns):
    given, give = [], Turn.give
    monkeypatch.setattr(Turn, "wanted", lambda turn, *, by_equals=False: by_equals and waits == "an equal")
    monkeypatch.setattr(Turn, "give", lambda turn: given.append(turn.held) or give(turn))
    doubles = Doubles()
    run_dir = serve(doubles, batch=1)
    (run_dir / "turn.json").write_text(json.dumps({"path": str(tmp_path / "turn"), "priority": 0}))
    assert ask(run_dir, 1, 2, 3, 4) == [{"answer": number} for number in (2, 4, 6, 8)]
    until(lambda: len(given) == turns)
    assert doubles.batches == [[1], [2], [3], [4]] and all(given)


def test_beyond_the_queue_requests_are_refused_and_counted(serve, monkeypatch):
    monkeypatch.setattr("stoker.runners.share.inference.NEXT", 0.1)
    doubles = Doubles(pause=0.4)
    run_dir = serve(doubles, batch=1, queue=2)
    with pytest.raises(StokerError, match="doubles: 3 requests at once are more than may wait here, 2; send fewer at once"):
        ask(run_dir, 1, 2, 3)
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(ask, run_dir, 1, 2)
        until(lambda: doubles.batches)
        with pytest.raises(LimitExceeded, match="2 requests may wait here, and with these there would be more; ask again later"):
            ask(run_dir, 3)
        assert first.result() == [{"answer": 2}, {"answer": 4}]
    assert ask(run_dir, 4) == [{"answer": 8}]
    until(lambda: told(run_dir)[0] == {"requests": 3, "errors": 0, "refused": 1})


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"hello", "but it is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 100_000, "but it is no object with a list 'requests'"),
        (b"{}", "but it is no object with a list 'requests'"),
        (b'{"requests": []}', "but requests is no list with one or more of them"),
        (b'{"requests": "a text"}', "but requests is no list with one or more of them"),
        (b"\xff\xfe", "but it is no JSON: "),
        (b'{"requests": ["' + b"a" * (1 << 20) + b'"]}', "a request is larger than 1 MiB; send less at once"),
    ],
)
def test_what_is_no_request_is_told_in_one_line_and_the_next_one_is_served(serve, line, error):
    run_dir = serve(Doubles())
    with closing(raw(run_dir)) as plain, closing(plain.makefile("rb")) as answers:
        plain.sendall(line + b"\n")
        assert error in json.loads(answers.readline())["error"]
        plain.sendall(b'{"requests": [4]}\n')
        assert json.loads(answers.readline()) == {"answers": [{"answer": 8}]}


def test_who_says_nothing_more_is_answered_and_who_has_left_costs_nothing(serve):
    doubles = Doubles(pause=0.3)
    run_dir = serve(doubles, batch=1)
    leaves, listens = raw(run_dir), raw(run_dir)
    leaves.sendall(b'{"requests": [1, 2, 3, 4, 5, 6]}\n')
    until(lambda: doubles.batches)
    listens.sendall(b'{"requests": [7]}\n')
    listens.shutdown(socket.SHUT_WR)
    leaves.close()
    with closing(listens), closing(listens.makefile("rb")) as answers:
        assert json.loads(answers.readline()) == {"answers": [{"answer": 14}]}
    assert doubles.batches[-1] == [7] and len(doubles.batches) < 5
    assert ask(run_dir, 8) == [{"answer": 16}]


def test_a_client_that_does_not_read_keeps_nobody_else_waiting(serve):
    run_dir = serve(Task(model=nn.Linear(1, 1), answer=lambda model, requests: ["x" * 500_000 for _ in requests]))
    with closing(raw(run_dir)) as deaf:
        deaf.sendall(b'{"requests": [1]}\n' * 50)
        for _ in range(3):
            assert len(ask(run_dir, 1)[0]["answer"]) == 500_000


def test_more_clients_than_it_takes_are_told(serve, monkeypatch):
    monkeypatch.setattr("stoker.runners.share.request_socket.MOST_CLIENTS", 2)
    run_dir = serve(Doubles())
    first, second = raw(run_dir), raw(run_dir)
    with closing(first), closing(second), pytest.raises(LimitExceeded, match="clients are connected already; ask again later"):
        ask(run_dir, 1)
    until(lambda: ask(run_dir, 1) == [{"answer": 2}])


def test_when_it_stops_whoever_waits_is_told(serve):
    doubles = Doubles(pause=0.4)
    run_dir = serve(doubles, batch=1)
    with ThreadPoolExecutor(1) as clients:
        answers = clients.submit(ask, run_dir, 1, 2, 3)
        until(lambda: doubles.batches)
        (run_dir / "stop.json").write_text("{}")
        stops = {"error": "this server is being stopped; ask again when it serves again"}
        assert answers.result() == [{"answer": 2}, stops, stops]
    with pytest.raises(
        Unreachable, match=r"doubles (does not serve yet, or no more|ended before it answered): 'stoker explain doubles' says why"
    ):
        while True:
            ask(run_dir, 1)


def test_whoever_is_not_answered_in_time_is_told(serve):
    run_dir = serve(Doubles(pause=0.5))
    with pytest.raises(LimitExceeded, match=r"doubles has not answered within 0\.1 s"):
        ask(run_dir, 1, timeout=0.1)


def test_idle_it_gives_signs_of_life_without_a_row_of_metrics(serve, monkeypatch):
    monkeypatch.setattr("stoker.runners.share.inference.SIGN_OF_LIFE_INTERVAL", 0.05)
    run_dir = serve(Doubles())
    until(lambda: len(told(run_dir)[1]) > 3)
    assert not any(told(run_dir)[1])


# ---- weights ----


class Net(nn.Module):
    def __init__(self, classes=2):
        super().__init__()
        self.body, self.head = nn.Linear(2, 3), nn.Linear(3, classes)
        self.body.requires_grad_(False)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def net(save_frozen=False, **fields):
    torch.manual_seed(len(fields))
    answer = lambda model, requests: model(torch.tensor(requests)).tolist()  # noqa: E731
    return Task(model=Net(**fields), answer=answer, save_frozen=save_frozen)


def test_it_serves_all_of_the_weights_the_head_too(serve, tmp_path):
    torch.manual_seed(77)
    trained = Net()
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    assert ask(serve(net(), tmp_path / "weights.pt"), [1.0, 2.0])[0]["answer"] == pytest.approx(trained(torch.tensor([1.0, 2.0])).tolist())


def test_frozen_parameters_that_the_checkpoint_leaves_out_are_as_built(serve, tmp_path):
    task = net()
    head = {name: value + 1 for name, value in task.model.state_dict().items() if name.startswith("head")}
    torch.save(head, tmp_path / "head.pt")
    server = ModelServer(task, Serve(), tmp_path / "head.pt", ALONE, tmp_path)
    assert torch.equal(server.model.head.weight, head["head.weight"])


@pytest.mark.parametrize(
    ("weights", "save_frozen", "problem"),
    [
        (
            {"body.weight": (3, 2), "body.bias": (3,)},
            False,
            "is of another model: it lacks head.weight, it lacks head.bias; give the params",
        ),
        (
            {"head.weight": (2, 3), "head.bias": (2,)},
            True,
            "is of another model: it lacks body.weight, it lacks body.bias; give the params",
        ),
        ({"head.weight": (5, 3), "head.bias": (5,)}, False, "head.weight is 5 x 3, here 2 x 3, head.bias is 5, here 2"),
        ({"head.weight": (2, 3), "head.bias": (2,), "tail": (1,)}, False, "this one has no tail"),
    ],
)
def test_weights_that_do_not_fit_are_told_in_one_line(tmp_path, weights, save_frozen, problem):
    torch.save({name: torch.zeros(shape) for name, shape in weights.items()}, tmp_path / "weights.pt")
    with pytest.raises(UsageError, match=r"weights: .*weights\.pt") as error:
        ModelServer(net(save_frozen), Serve(), tmp_path / "weights.pt", ALONE, tmp_path)
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_a_task_that_answers_nothing_cannot_serve(tmp_path):
    with pytest.raises(UsageError, match=r"kind: infer: the task has no answer\(model, requests\), so it cannot serve"):
        ModelServer(Task(model=nn.Linear(1, 1)), Serve(), None, ALONE, tmp_path)
