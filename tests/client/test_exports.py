"""What jobs have reported, for TensorBoard and MLflow: whole, as it comes, and not twice."""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import DaemonProcess, Jobs
from stoker.client.export_tensorboard import NAME, check_sum

pytestmark = pytest.mark.xdist_group("client-commands")

Stoker = Callable[..., tuple[int, str, str]]
REPORTS = (
    "import stoker, time\nfor s in range(4):\n    stoker.report(step=s, total=4, loss=1 / (s + 1), accuracy=s / 4)\n    time.sleep({pause})"
)


def measured(live: DaemonProcess, name: str, pause: float = 0.0) -> int:
    return Jobs(live.client()).python(name, REPORTS.replace("{pause}", str(pause)), params={"lr": 0.5})


def records(file: Path) -> list[bytes]:
    """The events of a file, each with its check sums right."""
    data, found = file.read_bytes(), []
    while data:
        (length,), (head,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        event, (tail,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
        assert (head, tail) == (check_sum(data[:8]), check_sum(event))
        found.append(event)
        data = data[16 + length :]
    return found


def unmasked(masked: int) -> int:
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def test_an_event_file_is_what_tensorboard_reads(live: DaemonProcess, stoker: Stoker, tmp_path: Path) -> None:
    assert unmasked(check_sum(b"123456789")) == 0xE3069283  # the check value of CRC-32C
    job = measured(live, "seen", 0.3)
    code, out, _ = stoker("export", "tensorboard", "seen", "--follow")  # before it has ended
    assert (code, out) == (0, f"job {job} seen: 8 values\n")
    first, *values = records(tmp_path / "tensorboard" / f"{job}-seen" / NAME)
    assert first.endswith(b"brain.Event:2")
    steps = [(event[10], event[event.index(b"\x0a", 12) + 2 :].partition(b"\x15")) for event in values]
    losses = [(step, struct.unpack("<f", value)[0]) for step, (name, _, value) in steps if b"loss" in name]
    assert losses == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3)), (3, 0.25)]
    assert stoker("export", "tensorboard", "seen")[1] == out and len(records(tmp_path / "tensorboard" / f"{job}-seen" / NAME)) == 9
    if importlib.util.find_spec("tensorboard") is not None:
        reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
        events = reader.EventAccumulator(str(tmp_path / "tensorboard" / f"{job}-seen")).Reload()
        assert [one.value for one in events.Scalars("loss")][:2] == [1.0, 0.5]


def test_an_export_that_cannot_be_is_one_line(stoker: Stoker, live: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stoker("export", "tensorboard", "nonesuch")[0] == 3
    measured(live, "spoilt")
    (tmp_path / "file").write_text("")
    code, out, err = stoker("export", "tensorboard", "spoilt", "--out", "file/inside")
    assert (code, out) == (2, "") and err.startswith("stoker: error: --out: cannot write file/inside: ")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    code, _, err = stoker("export", "mlflow", "spoilt")
    assert code == 2 and "pip install '.[mlflow]' in Stoker's source tree" in err


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_run_of_mlflow_has_what_was_reported_once(
    live: DaemonProcess, stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    job = measured(live, "logged")
    Jobs(live.client()).ended(job)
    uri = (tmp_path / "runs").as_uri()
    said = [stoker("export", "mlflow", "logged", "--uri", uri) for _ in range(2)]
    assert [(code, out) for code, out, _ in said] == [(0, f"job {job} logged: 8 values\n"), (0, f"job {job} logged: 0 values\n")], said
    library = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = library.search_runs([library.get_experiment_by_name("stoker").experiment_id])
    assert (run.info.status, run.info.run_name, run.data.params) == ("FINISHED", "logged", {"lr": "0.5"})
    assert [(one.step, one.value) for one in library.get_metric_history(run.info.run_id, "loss")][:2] == [(0, 1.0), (1, 0.5)]
