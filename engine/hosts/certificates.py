"""Certificates of the daemon's TCP port: given files, or one signed by its own authority, in HOME/tls.

`openssl` makes the latter. Clients trust the authority (its ca.pem), or know the certificate by its fingerprint: see `engine.client`.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..client import AUTHORITY, PIN
from ..errors import Conflict, UsageError

#: in HOME/tls, beside the authority's certificate. Certificate and key are in one file, as they are replaced together
OWN, AUTHORITY_KEY = "server.pem", "ca.key"
LASTS = timedelta(days=3652)
EARLIER = timedelta(days=2)  #: by which it begins before now, as clocks of hosts differ
OPENSSL_WITHIN = 60.0  #: seconds
_NAME = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}")
_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_MAKES = """\
[ca]
default_ca = own
[own]
database = index
new_certs_dir = .
default_md = sha256
policy = any
unique_subject = no
rand_serial = yes
[any]
commonName = supplied
[req]
distinguished_name = nobody
[nobody]
[authority]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Properties of a certificate."""

    names: tuple[str, ...]  #: of the hosts for which it is valid
    until: float  #: s since the epoch
    fingerprint: str  #: in the form of STOKER_CA


def serving(cert: Path, key: Path) -> ssl.SSLContext:
    """The context of a listener. UsageError, in one line, for files with which no client could be served, or that are not safe."""
    text = _text("--tls-cert", cert)
    if not _BLOCK.search(text):
        raise UsageError(f"--tls-cert: {cert} has no certificate; it must be a PEM file that begins with that of this host")
    _text("--tls-key", key)
    if (mode := key.stat().st_mode & 0o777) & 0o007:
        raise UsageError(f"--tls-key: {key} is open to everybody on this host (mode {mode:04o}): chmod 600 {key}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: _encrypted(key))
    except ssl.SSLError as error:
        why = "is not that of the certificate" if error.reason == "KEY_VALUES_MISMATCH" else f"is no key that can be used ({_words(error)})"
        raise UsageError(f"--tls-key: {key} {why} {cert}") from None
    looked_at(cert, context)
    return context


def _encrypted(key: Path) -> str:
    raise UsageError(f"--tls-key: {key} has a password, which the daemon cannot enter: openssl pkey -in {key} -out NEW")


def _text(option: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{option}: {path} cannot be read ({why})") from None


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def looked_at(cert: Path, context: ssl.SSLContext) -> Certificate:
    """The certificate as clients see it. UsageError if all of them would refuse it, for example because it has expired."""
    block = _BLOCK.search(cert.read_text())
    assert block is not None
    der = ssl.PEM_cert_to_DER_cert(block[0])
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # itself is trusted here, not its signer
    client.load_verify_locations(cadata=der)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    near, far = client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(3):
            for side in (near, far):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise UsageError(f"--tls-cert: {cert} would be refused by every client: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise UsageError(f"--tls-cert: {cert} cannot be used: {_words(error)}") from None
    told: dict[str, Any] = dict(near.getpeercert() or {})
    names = tuple(str(name) for _, name in told.get("subjectAltName", ()))
    return Certificate(names, float(ssl.cert_time_to_seconds(str(told["notAfter"]))), PIN + hashlib.sha256(der).hexdigest())


def own(folder: Path) -> tuple[Path, Path]:
    """The files of certificate and key in HOME/tls."""
    return folder / OWN, folder / OWN


def make_own(folder: Path, names: Iterable[str]) -> None:
    """A certificate for hosts of these names and addresses. Clients that trust the authority, which is made once, trust it too.

    Files are replaced only when the new ones are whole. Conflict if it cannot be made.
    """
    alternatives = ",".join(_alternative(name) for name in dict.fromkeys(names))
    if shutil.which("openssl") is None:
        raise Conflict("there is no program openssl on this host: install it, or give files with --tls-cert and --tls-key")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as made:
            _make(Path(made), folder, alternatives)
    except OSError as error:
        raise Conflict(f"{folder}: cannot be written ({error.strerror}): free some space, or give --tls-cert and --tls-key") from None


def _make(work: Path, folder: Path, alternatives: str) -> None:
    (work / "index").touch()
    (work / "made.cnf").write_text(_MAKES.format(names=alternatives))
    authority = [AUTHORITY_KEY, AUTHORITY]
    if all((folder / name).exists() for name in authority):
        for name in authority:
            shutil.copy(folder / name, work / name)
    else:
        _sign(work, AUTHORITY_KEY, AUTHORITY, "authority", "-selfsign", "-keyfile", AUTHORITY_KEY)
    _sign(work, OWN, "signed", "server", "-keyfile", AUTHORITY_KEY, "-cert", AUTHORITY)
    with (work / OWN).open("a") as file:
        file.write((work / "signed").read_text())
    serving(*own(work))
    for name in (*authority, OWN):
        (work / name).replace(folder / name)


def _sign(work: Path, key: str, cert: str, kind: str, *by: str) -> None:
    now = datetime.now(UTC)
    begins, ends = (f"{moment:%Y%m%d%H%M%SZ}" for moment in (now - EARLIER, now + LASTS))
    _openssl(work, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
    (work / key).chmod(0o600)
    _openssl(work, "req", "-new", "-config", "made.cnf", "-key", key, "-subj", f"/CN=Stoker {kind} {time.time_ns():x}", "-out", "wanted")
    _openssl(
        work, "ca", "-batch", "-notext", "-config", "made.cnf", "-in", "wanted", "-out", cert, "-extensions", kind,
        "-startdate", begins, "-enddate", ends, *by,
    )  # fmt: skip


def _openssl(work: Path, *words: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *words], cwd=work, capture_output=True, text=True, check=False, timeout=OPENSSL_WITHIN,
            env={**os.environ, "OPENSSL_CONF": "/dev/null"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Conflict(f"openssl {words[0]} has not answered within {OPENSSL_WITHIN:.0f} s") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-300:]
        raise Conflict(f"openssl {words[0]} failed ({said}): give files with --tls-cert and --tls-key")


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name.strip('[]'))}"
    except ValueError:
        pass
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name: {name[:100]!a} is neither an address nor the name of a host")
    return f"DNS:{name}"
