"""TLS on the daemon's TCP port: who is trusted, and what is said where somebody is not, or speaks otherwise."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, end_workers, free_port, until
from stoker.engine.client import ENV_CA, Client
from stoker.engine.errors import StokerError, Unreachable, Untrusted, UsageError
from stoker.engine.home import Home
from stoker.engine.hosts import certificates, lent_nodes, slurm_runners
from stoker.engine.hosts.certificates import looked_at, make_own, own, serving

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl, which makes the certificates")
HOURS = timedelta(hours=1)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of this host, with its authority."""
    made = tmp_path_factory.mktemp("tls")
    make_own(made, ["localhost", "127.0.0.1"])
    return made


def fingerprint(folder: Path) -> str:
    return looked_at(own(folder)[0], serving(*own(folder))).fingerprint


def test_runners_and_clients_reach_a_daemon_that_they_trust(
    tls: Path, start_daemon: Callable[..., DaemonProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, (cert, key) = free_port(), own(tls)
    daemon = start_daemon("--tcp", f"127.0.0.1:{port}", "--tls-cert", str(cert), "--tls-key", str(key))
    client = daemon.client()
    (far := Home(tmp_path / "far")).create()
    url, token = f"https://localhost:{port}", client.post("/v1/tokens", {"name": "far", "role": "runner"})["token"]

    def answers(trusted: str, home: Home = far, url: str = url) -> str:
        monkeypatch.setenv(ENV_CA, trusted)
        with contextlib.closing(Client(home, url, token)) as away:
            return str(away.get("/v1/status")["role"])

    known = fingerprint(tls)
    assert answers(str(tls / "ca.pem")) == answers(known) == answers(known.upper().replace("SHA256", "sha256")) == "runner"
    assert answers(str(cert)) == "runner"  # trusted itself, without its authority
    for trusted, words in (
        ("", "unable to get local issuer certificate; STOKER_CA names the file"),
        (f"sha256:{'0' * 64}", f"shows another certificate ({known}) than STOKER_CA names"),
    ):
        with pytest.raises(Untrusted) as refused:
            answers(trusted)
        assert words in str(refused.value) and "\n" not in str(refused.value) and refused.value.exit_code == 4
    with pytest.raises(Untrusted, match=f"speaks TLS: say https://127.0.0.1:{port}"):
        answers("", url=f"http://127.0.0.1:{port}")
    for trusted, words in (
        (f"sha256:{'0' * 63}", "is no fingerprint"),
        (str(tls / "ca.key"), "has no certificate"),
        ("/none", "No such file"),
    ):
        with pytest.raises(UsageError, match=words):
            answers(trusted)

    # Runners that an engine starts trust whom the command trusts that handed them in.
    monkeypatch.setenv(ENV_CA, str(tls / "ca.pem"))
    with contextlib.closing(Client(far, url, token)) as away:
        assert lent_nodes.trust(far, lent_nodes.trusted_by(away)) == {}
    monkeypatch.delenv(ENV_CA)
    assert answers("") == "runner"  # by its home
    runner = RunnerProcess(far, "far", 1, env={"STOKER_URL": url, "STOKER_TOKEN": token})
    try:
        runner.start(client)
        jobs = Jobs(client)
        assert jobs.ended(jobs.shell("hello", "echo hello over TLS"))["state"] == "completed"
    finally:
        runner.end()
        end_workers(far)
    wrong = RunnerProcess(far, "wrong", 1, env={"STOKER_URL": url, "STOKER_TOKEN": token, ENV_CA: f"sha256:{'0' * 64}"})
    try:
        wrong.launch()
        assert wrong.process is not None and wrong.process.wait(60) == 4
        assert "shows another certificate" in wrong.said().splitlines()[-1] and "Traceback" not in wrong.said()
    finally:
        wrong.end()


def test_who_shows_no_token_is_closed_over_tls_too(tls: Path, start_daemon: Callable[..., DaemonProcess]) -> None:
    """Before its handshake, during it, after it: whatever it says, and nobody else is kept waiting."""
    port, (cert, key) = free_port(), own(tls)
    soon = "from stoker.engine.api import connections\nconnections.TOKEN_WITHIN = 1.5\nconnections.LOOK_SECONDS = 0.1"
    daemon = start_daemon("--tcp", f"127.0.0.1:{port}", "--tls-cert", str(cert), "--tls-key", str(key), changes=soon)
    anybody = ssl.create_default_context(cafile=tls / "ca.pem")
    with contextlib.ExitStack() as at_end:
        silent, part = (at_end.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2))
        part.sendall(b"\x16\x03\x01\x02\x00\x01")
        plain = at_end.enter_context(socket.create_connection(("127.0.0.1", port)))
        sealed = at_end.enter_context(anybody.wrap_socket(plain, server_hostname="localhost"))
        sealed.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b'{"ok":true}'):
            answer += sealed.recv(4096)
        for peer in (silent, part, sealed):
            peer.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(4096) == b""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as rude:
        rude.sendall(b"\x00" * 2000)
        rude.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            rude.recv(4096)
    assert daemon.client().get("/v1/status") and "Traceback" not in daemon.said()


@contextlib.contextmanager
def shown(folder: Path) -> Iterator[int]:
    """A listener with the certificate of a folder, whatever clients think of it; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*own(folder))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("host", "begins", "lasts", "words"),
    [
        ("127.0.0.1", 48 * HOURS, -HOURS, "certificate has expired"),
        ("127.0.0.1", -HOURS, 48 * HOURS, "certificate is not yet valid"),
        ("10.0.0.9", HOURS, HOURS, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ("elsewhere", HOURS, HOURS, "IP address mismatch"),
    ],
)
def test_a_certificate_of_another_time_or_name_is_not_trusted(
    host: str, begins: timedelta, lasts: timedelta, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as otherwise:
        otherwise.setattr(certificates, "EARLIER", begins)
        otherwise.setattr(certificates, "LASTS", lasts)
        otherwise.setattr(certificates, "serving", lambda *_: None)  # which would refuse it
        make_own(tmp_path / "tls", [host])
    monkeypatch.setenv(ENV_CA, str(own(tmp_path / "tls")[0]))
    with (
        shown(tmp_path / "tls") as port,
        contextlib.closing(Client(Home(tmp_path), f"https://127.0.0.1:{port}")) as client,
        pytest.raises(Untrusted) as refused,
    ):
        client.get("/healthz")
    assert words in str(refused.value) and "is not trusted" in str(refused.value)
    if "mismatch" not in words:  # a daemon would not start with it
        with pytest.raises(UsageError, match=f"would be refused by every client: {words}"):
            serving(*own(tmp_path / "tls"))


def test_a_listener_that_speaks_no_tls_is_named(start_daemon: Callable[..., DaemonProcess], home: Home) -> None:
    port = free_port()
    start_daemon("--tcp", f"127.0.0.1:{port}")
    words = f"speaks no TLS: say http://127.0.0.1:{port}, or start it with"
    with contextlib.closing(Client(home, f"https://127.0.0.1:{port}")) as client, pytest.raises(Untrusted, match=words):
        client.get("/healthz")
    with contextlib.closing(Client(home, f"https://127.0.0.1:{free_port()}")) as nobody, pytest.raises(Unreachable) as away:
        nobody.get("/healthz")
    assert not isinstance(away.value, Untrusted) and "no daemon answers" in str(away.value)


def test_files_that_are_wrong_or_not_safe_are_refused(tls: Path, tmp_path: Path) -> None:
    cert, key = own(tls)
    make_own(tmp_path / "other", ["localhost"])
    (open_key := tmp_path / "open.pem").write_bytes(key.read_bytes())
    open_key.chmod(0o644)
    (rubbish := tmp_path / "rubbish.pem").write_text("no PEM")
    rubbish.chmod(0o600)
    (binary := tmp_path / "binary.pem").write_bytes(b"\xff\xfe")
    (locked := tmp_path / "locked.pem").touch()
    certificates._openssl(tmp_path, "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", "locked.pem")
    locked.chmod(0o600)
    for given, words in (
        ((tmp_path / "none", key), "--tls-cert: .*none cannot be read .No such file"),
        ((cert, tmp_path / "none"), "--tls-key: .*none cannot be read"),
        ((tmp_path, key), "--tls-cert: .* cannot be read .Is a directory"),
        ((binary, key), "it is no text"),
        ((rubbish, key), "--tls-cert: .*rubbish.pem has no certificate"),
        ((cert, rubbish), "--tls-key: .*rubbish.pem is no key that can be used"),
        ((cert, open_key), "open to everybody on this host .mode 0644.: chmod 600 "),
        ((cert, own(tmp_path / "other")[1]), "server.pem is not that of the certificate"),
        ((cert, locked), "locked.pem has a password"),
    ):
        with pytest.raises(UsageError, match=words) as refused:
            serving(*given)
        assert "\n" not in str(refused.value)


def test_one_authority_signs_all_certificates_of_a_home(home: Home) -> None:
    made = command(home, "tls", "--name", "gpu1.example", "--name", "fd00::7")
    assert made.code == 0 and "gpu1.example" in made.out and "FD00:0:0:0:0:0:0:7" in made.out
    authority, (_, key) = (home.tls / "ca.pem").read_bytes(), own(home.tls)
    assert (home.tls / "ca.key").stat().st_mode & 0o777 == key.stat().st_mode & 0o777 == 0o600
    first = fingerprint(home.tls)
    assert first in made.out and command(home, "tls").out == made.out  # shown, not made
    assert "gpu1.example" not in command(home, "tls", "--name", "gpu2.example").out
    assert (home.tls / "ca.pem").read_bytes() == authority and fingerprint(home.tls) != first
    certificates._openssl(home.tls, "verify", "-x509_strict", "-CAfile", "ca.pem", "server.pem")
    assert sorted(path.name for path in home.tls.iterdir()) == ["ca.key", "ca.pem", "server.pem"]


def test_who_is_killed_while_it_makes_a_certificate_leaves_what_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, left = Path.replace, 0

    def killed(path: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise InterruptedError
        left -= 1
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    known = None
    for before in ("nothing", "a whole one"):
        for count in range(3):
            left = count
            with contextlib.suppress(StokerError):
                make_own(tmp_path / "tls", ["localhost"])
            assert not own(tmp_path / "tls")[0].exists() if before == "nothing" else fingerprint(tmp_path / "tls") == known
        left = 3
        make_own(tmp_path / "tls", ["localhost"])
        known = fingerprint(tmp_path / "tls")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tls"], "--tls: is for --tcp HOST:PORT"),
        (["--tcp", "127.0.0.1:1", "--tls-cert", "x"], "--tls-cert, --tls-key: both go together"),
        (["--tcp", "127.0.0.1:1", "--tls", "--tls-key", "x"], "--tls: has a certificate of its own"),
        (["--tcp", "127.0.0.1:1", "--tls-cert", "/none", "--tls-key", "/none"], "--tls-cert: /none cannot be read"),
    ],
)
def test_up_refuses_what_cannot_be_served(home: Home, options: list[str], words: str) -> None:
    said = command(home, "up", "--no-runner", *options)
    assert said.code == 2 and words in said.line and not home.socket.exists()


def test_up_makes_the_certificate_and_engines_are_told_whom_to_trust(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    assert command(home, "up", "--detach", "--no-runner", "--tcp", f"127.0.0.1:{port}", "--tls").code == 0
    try:
        with contextlib.closing(Client(home, f"https://127.0.0.1:{port}")) as client:
            assert until(lambda: client.get("/healthz")) == {"ok": True}
            assert lent_nodes.trusted_by(client) == (home.tls / "ca.pem").read_text()
            monkeypatch.setenv(ENV_CA, pin := fingerprint(home.tls))
            assert lent_nodes.trusted_by(client) == lent_nodes.pinned() == pin
            assert lent_nodes.trust(home, pin) == {ENV_CA: pin}
    finally:
        command(home, "down")
    wanted = slurm_runners.WantedPilots("gpu", 3600.0, home.path, f"https://127.0.0.1:{port}", pin=pin)
    assert f"  STOKER_CA={pin} STOKER_TOKEN=$(cat " in wanted.batch_file()


def test_without_openssl_files_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StokerError, match="there is no program openssl on this host: install it, or give files"):
        make_own(tmp_path / "tls", ["localhost"])
    assert not (tmp_path / "tls").exists()
