"""Values that look like secrets: refused at submission, masked where specs are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..model import JobSpec

MASK = "********"
ADVICE = "looks like a secret, and specs are stored: put it into a file and name that in env_file"

_SECRET = re.compile(r"KEY|APIKEY|PASSWD|PASSPHRASE|CREDENTIALS?|.*TOKEN|.*(SECRET|PASSWORD).*")
_PATH = re.compile(r"_(FILE|PATH|DIR|ID|NAME)$")  #: names a place or a thing, not the secret itself
_URL = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_OPTION = re.compile(r"-+[A-Za-z_][\w-]*")
# In commands --image-key and --eos-token are ordinary: for names without more, the value has to look random.
_SURELY = re.compile(r"API_?KEY|(ACCESS|PRIVATE|SECRET)_KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL")
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.+=:-]{16,}")
_ASSIGNMENT = re.compile(r"(?P<name>-*[A-Za-z_][\w-]*)=(?P<value>.+)", re.DOTALL)


def looks_secret(name: str) -> bool:
    """By whole words, so that ``TOKENIZERS_PARALLELISM`` and ``MAX_TOKENS`` are not taken for tokens."""
    words = _words(name)
    if _PATH.search(words):
        return False
    return any(_SECRET.fullmatch(part) for part in words.split("_"))


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper().replace("-", "_")


def looks_secret_parameter(name: str) -> bool:
    """Like `looks_secret`, but ``key`` or ``token`` alone is an ordinary parameter (the key of a column, a mask token)."""
    return looks_secret(name) and name.lower() not in ("key", "token")


def has_credentials(text: str) -> bool:
    """Whether it holds a URL with a password, as in ``https://user:password@host``."""
    return _URL.search(text) is not None


def masked(text: str) -> str:
    return _URL.sub(MASK, text)


def mask_argv(argv: Sequence[str]) -> list[str]:
    """Arguments with the values of ``NAME=value``, ``--name value`` and ``--env=NAME=value`` masked where the name looks secret."""
    return [MASK if looks_secret(option.lstrip("-")) else _masked_argument(argument) for option, argument in _with_options(argv)]


def secret_argument(command: Sequence[str]) -> str | None:
    """Name of the first argument of a command whose value surely is a secret; a variable (``$NAME``) is none."""
    for option, argument in _with_options(command):
        pairs = [(option, argument)]
        if (assignment := _ASSIGNMENT.fullmatch(argument)) is not None:
            pairs.append((assignment["name"], assignment["value"]))
        for name, value in pairs:
            if _is_secret(name.lstrip("-"), value):
                return name
    return None


def _with_options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument, after the option of which it may be the value, or ''."""
    option = ""
    for argument in argv:
        yield "" if argument.startswith("-") else option, argument
        option = argument if _OPTION.fullmatch(argument) else ""


def _is_secret(name: str, value: str) -> bool:
    if not value or value.startswith("$") or not looks_secret_parameter(name):
        return False
    return _SURELY.search(_words(name)) is not None or _RANDOM.fullmatch(value) is not None


def _masked_argument(argument: str) -> str:
    match = _ASSIGNMENT.fullmatch(argument)
    if match is None:
        return masked(argument)
    name, value = match["name"], match["value"]
    return f"{name}={MASK if looks_secret(name.lstrip('-')) else _masked_argument(value)}"


def redact(spec: JobSpec) -> JobSpec:
    """The spec for display: secret-looking values masked. ``env_file`` stays, as it is only a path."""
    return msgspec.structs.replace(
        spec,
        env={name: MASK if value and looks_secret(name) else masked(value) for name, value in spec.env.items()},
        params={name: MASK if looks_secret_parameter(name) else _masked_value(value) for name, value in spec.params.items()},
        command=None if spec.command is None else tuple(mask_argv(spec.command)),
    )


def _masked_value(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list):
        return [_masked_value(item) for item in value]
    if isinstance(value, dict):
        return {name: MASK if looks_secret_parameter(name) else _masked_value(item) for name, item in value.items()}
    return value
