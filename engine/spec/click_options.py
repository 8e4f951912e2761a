"""A job by command-line options: one table makes the options, their help and the tree that `build` validates.

Values become nodes whose mark is the option, so an error reads ``--gpus: must be at least 1, not 0``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import UsageError
from .build import Context, build
from .model import JobSpec
from .reading import tree
from .reading.blocks import BLOCKS
from .reading.tree import Mark, Node

F = TypeVar("F", bound=Callable[..., Any])
Read = Callable[[str, str], Node]  #: of a value and its option

_NOWHERE = Mark("")


def _text(value: str, option: str) -> Node:
    return Node(value, Mark(option), value)


def _scalar(value: str, option: str) -> Node:
    return tree.scalar(value, Mark(option))


def _value(value: str, option: str) -> Node:
    """A scalar, or YAML when it begins like a list, a mapping or a quoted text."""
    return _yaml(value, option) if value[:1] in tuple("[{\"'") else _scalar(value, option)


def _values(value: str, option: str) -> Node:
    """``0.1,0.01`` as a list."""
    return _yaml(f"[{value}]", option)


def _yaml(value: str, option: str) -> Node:
    try:
        documents = tree.parse(value, "")
    except UsageError:
        documents = []
    if len(documents) != 1:
        raise Mark(option).error("", f"{tree.shown(value)} is not a value; put a text with commas or brackets in quotes")
    return _marked(documents[0], Mark(option))


def _marked(node: Node, mark: Mark) -> Node:
    value = node.value
    if isinstance(value, list):
        value = [_marked(item, mark) for item in value]
    elif isinstance(value, dict):
        value = {key: _marked(item, Mark(f"{mark.source} {key}")) for key, item in value.items()}
    return dataclasses.replace(node, value=value, mark=mark)


def _gpus(value: str, option: str) -> Node:
    low, dash, high = value.partition("-")
    if not (low and dash):
        return _scalar(value, option)
    return Node({"min": _scalar(low, option), "max": _scalar(high, option)}, Mark(option))


def _step(value: str, option: str) -> Node:
    deadline, equals, reward = value.rpartition("=")
    if not equals:
        raise Mark(option).error("", f"must be DEADLINE=REWARD, such as 2h=80, not {tree.shown(value)}")
    return Node({"deadline": _scalar(deadline, option), "reward": _scalar(reward, option)}, Mark(option))


def _after(value: str, option: str) -> Node:
    job, colon, mode = value.rpartition(":")
    if not colon:
        return _text(value, option)
    return Node({"job": _text(job, option), "mode": _text(mode, option)}, Mark(option))


def _best_effort(_: str, option: str) -> Node:
    return _text("best-effort", option)


def _true(_: str, option: str) -> Node:
    return Node(True, Mark(option), "true")


@dataclass(frozen=True, slots=True)
class Option:
    """``many``: may be repeated; ``keyed``: each value is ``NAME=VALUE``; ``flag``: takes no value."""

    flags: str
    field: str
    help: str
    metavar: str = "TEXT"
    read: Read = _text
    many: bool = False
    keyed: bool = False
    flag: bool = False

    @property
    def name(self) -> str:
        """``--gpu-memory`` for ``--gpu-memory``, the long name for ``-g/--gpus``."""
        return self.flags.rpartition("/")[2]

    @property
    def parameter(self) -> str:
        """Its name in click."""
        return self.name.removeprefix("--").replace("-", "_")

    def node(self, value: Any) -> Node:
        """Raises UsageError with the option's name when the value is malformed."""
        if self.keyed:
            entries = [self._entry(item) for item in value]
            names = Counter(name for name, _ in entries)
            if twice := [name for name, count in names.items() if count > 1]:
                raise Mark(self.name).error("", f"{tree.shown(twice[0])} is given {names[twice[0]]} times; give it once")
            return Node(dict(entries), Mark(self.name))
        if self.many:
            return Node([self.read(item, self.name) for item in value], Mark(self.name))
        return self.read(str(value), self.name)

    def _entry(self, item: str) -> tuple[str, Node]:
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise Mark(self.name).error("", f"must be {self.metavar}, not {tree.shown(item)}")
        return key, self.read(value, f"{self.name} {key}")


OPTIONS: tuple[Option, ...] = (
    Option("-n/--name", "name", "Name of the job."),
    Option("--recipe", "recipe", "Recipe to run, in place of a command."),
    Option("--entrypoint", "entrypoint", "Function to run, in place of a command.", "MODULE:FUNCTION"),
    Option("-p/--param", "params", "Parameter of the recipe or command.", "NAME=VALUE", _value, keyed=True),
    Option("--kind", "kind", "train, finetune, prompt or infer."),
    Option("--backbone", "backbone", "Pre-trained model that it starts from, by name or directory."),
    Option("--weights", "weights", "Initial weights: the newest checkpoint of a job, or a file.", "job:JOB|FILE"),
    Option("--begin", "begin", "Initial adapter of a fine-tuning: that of an ended job of its backbone.", "auto|job:JOB|never"),
    Option("--merge", "merge", "Train the first steps of a fine-tuning together with another job.", "job:JOB|transfer|never"),
    Option("--pool", "pool", "Pool of GPUs."),
    Option("--user", "user", "Owner, when not yourself."),
    Option("--priority", "priority", "Larger is more urgent.", "N", _scalar),
    Option("-g/--gpus", "gpus", "GPUs wanted: a number, or MIN-MAX.", "N", _gpus),
    Option("--gpu-memory", "gpu_memory", "GPU memory needed on each GPU.", "SIZE", _scalar),
    Option(
        "--share",
        "share.gpu",
        "packed: other jobs may share its GPUs; switched: they take turns; exclusive: none.",
        "packed|switched|exclusive",
    ),
    Option("--share-input", "share.input", "Share loaded batches with your other jobs that give this name.", "NAME"),
    Option("--best-effort", "demand", "No deadline, also when the file has one.", read=_best_effort, flag=True),
    Option("--deadline", "deadline", "Strict deadline: a duration, or a time; 18:30 is the next one, in local time.", "WHEN", _scalar),
    Option("--soft", "soft", "Step of a soft deadline, such as 2h=80 or 18:30=80; at most 100.", "WHEN=REWARD", _step, many=True),
    Option("--iterations", "stop.iterations", "Stop after so many iterations.", "N", _scalar),
    Option("--metric", "stop.metric", "Stop when this reported value meets --target."),
    Option("--target", "stop.target", "Value of --metric to be met.", "X", _scalar),
    Option("--mode", "stop.mode", "max: the metric must rise to the target; min: fall to it.", "max|min"),
    Option("--max-iterations", "stop.max_iterations", "Stop after so many iterations even if the target is not met.", "N", _scalar),
    Option("-e/--env", "env", "Environment variable; secrets belong in --env-file.", "NAME=VALUE", keyed=True),
    Option("--env-file", "env_file", "File of NAME=VALUE lines, read by the runner; its values are never stored.", "FILE"),
    Option("--workdir", "workdir", "Directory in which the job runs; by default this one.", "DIR"),
    Option("--reuse", "reuse", "Uses of each decoded sample, or a block such as {repeat: 3, switch: plateau}.", "N", _value),
    Option("--pipeline/--tune", "pipeline.tune", "Decode beside the training, sized by this tuner, such as rate.", "TUNER"),
    Option("--set", "", "Field of a block that has no option of its own.", "BLOCK.FIELD=VALUE", _value, keyed=True),
    Option("--retries", "retries.limit", "Attempts after failures.", "N", _scalar),
    Option("--backoff", "retries.backoff", "Pause before the first retry, doubled for each further one.", "DURATION", _scalar),
    Option("--timeout", "timeout", "Longest time of one attempt.", "DURATION", _scalar),
    Option("--grace", "grace", "Time between the request to stop and the kill.", "DURATION", _scalar),
    Option("--warm", "warm", "off: always start in a fresh process.", "auto|off"),
    Option("--hang-after", "hang_after", "Time without a report, while the GPU idles, until it counts as hanging.", "DURATION", _scalar),
    Option("--estimate", "estimate", "Duration that you expect.", "DURATION", _scalar),
    Option("--idempotency-key", "idempotency_key", "A second submission with the same key is not run again.", "KEY"),
    Option("-l/--label", "labels", "Label for your own queries.", "NAME=VALUE", keyed=True),
    Option("--after", "after", "Wait for this job to succeed, or with :any to end.", "JOB[:any]", _after, many=True),
    Option("--hold", "hold", "Do not start before 'stoker release'.", read=_true, flag=True),
    Option("-a/--array", "array.params", "One task for each value; repeated: for each combination.", "NAME=V1,V2", _values, keyed=True),
    Option("--max-running", "array.max_running", "Tasks of the array that may run at once.", "N", _scalar),
    Option("--cron", "cron", "Submit again at these times (UTC): minute hour day month weekday.", "EXPRESSION"),
)


def spec_options(command: F) -> F:
    """Decorator: every option of a job, for a click command."""
    import click

    for option in reversed(OPTIONS):
        settings: dict[str, Any] = (
            {"is_flag": True} if option.flag else {"metavar": option.metavar, "multiple": option.many or option.keyed}
        )
        command = click.option(*option.flags.split("/"), option.parameter, help=option.help, **settings)(command)
    return command


def overrides(values: Mapping[str, Any], command: Sequence[str] = ()) -> Node:
    """The tree of the options given (click's values by parameter name), to be laid over a file's jobs."""
    entries: dict[str, Node] = {}
    for option in OPTIONS:
        value = values.get(option.parameter)
        if value is not None and value is not False and value != ():
            if option.field:
                _put(entries, option.field, option.node(value), option.name)
            else:
                _set(entries, option, value)
    if command:
        entries["command"] = _command(command)
    return Node(entries, _NOWHERE)


def from_options(values: Mapping[str, Any], command: Sequence[str], context: Context) -> list[JobSpec]:
    """The jobs that options and a command describe, without a file."""
    return build([overrides(values, command)], context, fallback_name="job")


def _put(entries: dict[str, Node], path: str, node: Node, option: str) -> None:
    """``node`` at ``a.b``, in mappings that are made where there are none."""
    field, dot, rest = path.partition(".")
    if not dot:
        entries[field] = node
        return
    parent = entries.setdefault(field, Node({}, Mark(option)))
    if not isinstance(parent.value, dict):
        raise node.mark.error("", f"{field} is given as a value already; give its fields alone")
    _put(parent.value, rest, node, option)


def _set(entries: dict[str, Node], option: Option, values: Sequence[str]) -> None:
    """``block.field=value``: errors name the field, as the option is the same for all."""
    for item in values:
        given = option.node([item]).value
        assert isinstance(given, dict)
        ((path, node),) = given.items()
        block, dot, field = path.partition(".")
        if block not in BLOCKS or not (dot and all(field.split("."))):
            like = f"{next(iter(BLOCKS))}.FIELD=VALUE"
            raise node.mark.error("", f"must be {like}; the blocks are {', '.join(BLOCKS)}, all other fields have options of their own")
        _put(entries, path, node, node.mark.source)


def _command(words: Sequence[str]) -> Node:
    """Arguments as they are; one argument with blanks in it is a line for the shell."""
    mark = Mark("command")
    if len(words) == 1 and any(char.isspace() for char in words[0]):
        return Node(words[0], mark, words[0])
    return Node([Node(word, mark, word) for word in words], mark)
