"""Options shared by several commands, their types, and the launch specification built from them."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from meshrun.launch.cli.plugins import check_words
from meshrun.launch.host_list import HostSlots, parse_hosts, read_hostfile
from meshrun.launch.spec import (
    HOST_TIMEOUT,
    START_TIMEOUT,
    LaunchSpec,
    Watching,
    make_spec,
    parse_endpoint,
    parse_shape,
)

Value = TypeVar("Value")
Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")


class ParsedText(click.ParamType[Value]):
    """A text parsed by `function`, whose ValueError or UserError becomes a usage error."""

    def __init__(self, name: str, function: Callable[[str], Value]) -> None:
        self.name, self._function = name, function

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        from meshrun.runner.errors import UserError

        if not isinstance(value, str):  # a default
            default: Value = value
            return default
        try:
            return self._function(value)
        except ValueError as reason:
            self.fail(str(reason), param, ctx)
        except UserError as reason:
            expected = f"; expected {reason.expected}" if reason.expected else ""
            self.fail(f"{reason.what}{expected}", param, ctx)


class Number(click.FloatRange):
    """A number in a range; rejects "nan", which passes any range check. name: as in the error."""

    def __init__(self, name: str, least: float, most: float | None = None) -> None:
        super().__init__(min=least, max=most)
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return number


class Seconds(Number):
    """Seconds, from `least` to a day."""

    def __init__(self, least: float) -> None:
        super().__init__("number of seconds", least, 86400.0)


DEVICES = ("auto", "cpu", "cuda")
TRACEBACK = click.option("--debug", is_flag=True, help="Show the traceback of an error.")

SHAPE = click.option(
    "-j",
    "wanted",
    type=ParsedText("HOSTSxGPUS", parse_shape),
    metavar="HOSTSxGPUS",
    help="Number of hosts, and of ranks on each host: 2x8.",
)
PRINT = click.option("--print", "show", is_flag=True, help="Print what would be started, and exit.")
SETTING = click.option(
    "-x",
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Environment variable for every rank.",
)
NETWORK = click.option(
    "--network", metavar="IFACE", help="Interface for NCCL, MPI and UCX.  [default: the choice of each]"
)
TIMEOUT = click.option(
    "--host-timeout", type=Seconds(3.0), default=HOST_TIMEOUT, show_default=True,
    metavar="SECONDS", help="Time for which a host may not respond.",
)  # fmt: skip
START = click.option(
    "--start-timeout", type=Seconds(0.0), default=START_TIMEOUT, show_default=True,
    metavar="SECONDS", help="Time for all ranks to start; 0: any.",
)  # fmt: skip
STALL = click.option(
    "--stall-timeout", type=Seconds(0.0), metavar="SECONDS",
    help="End a run of several ranks after SECONDS without progress, and say why; 0: never.  "
    "[default: 300, but a rank that computes is only reported]",
)  # fmt: skip
METRICS = click.option(
    "--metrics", type=ParsedText("[ADDRESS:]PORT", parse_endpoint), metavar="PORT",
    help="Serve metrics for Prometheus while it runs, on every host, at PORT or ADDRESS:PORT; 0: any port.",
)  # fmt: skip
OPERATIONS = click.option(
    "--record-operations", "operations", metavar="FILE",
    help="Write what the ranks send, and when, to FILE; `meshrun bench replay FILE` repeats it.",
)  # fmt: skip
WATCH = click.option(
    "--watch", is_flag=True,
    help="Name the rank, GPU or host that makes a run of several ranks slower, while it runs.",
)  # fmt: skip
ON_FAILURE = click.option(
    "--on-failure", type=click.Choice(["stop", "resume"]), default="stop", metavar="stop|resume",
    help="End a run that loses a rank or a host, or continue with the others.  [default: stop]",
)  # fmt: skip
MAX_RESTARTS = click.option(
    "--max-restarts", type=click.IntRange(min=1), default=3, metavar="N",
    help="With --on-failure resume: end the run after N losses.  [default: 3]",
)  # fmt: skip
DEBUG = click.option("--debug", is_flag=True, help="Also show the launcher's own messages.")
WORDS = click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND ...")


@dataclass(frozen=True)
class TargetOptions:
    """What is typed for every target: the options above of the same names, and the command to start."""

    words: tuple[str, ...]
    wanted: tuple[int | None, int] | None
    settings: Sequence[str]
    show: bool
    debug: bool
    network: str | None = None
    host_timeout: float = HOST_TIMEOUT


def gathered(kind: type) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Pass those options of a command that are fields of the dataclass `kind` as one, before the others."""
    names = {field.name for field in fields(kind)}

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(command)
        def call(*context: click.Context, **options: Any) -> Result:
            values = kind(**{name: value for name, value in options.items() if name in names})
            others = {name: value for name, value in options.items() if name not in names}
            return command(*context, values, **others)

        return call

    return decorate


def cluster_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a target that knows its hosts: the last ones before the command to start."""
    command = gathered(TargetOptions)(command)
    for option in (WORDS, DEBUG, PRINT, TIMEOUT, SETTING, NETWORK):
        command = option(command)
    return command


def parsed_option(
    flag: str, form: str, function: Callable[[str], object], **details: Any
) -> Callable[[Command], Command]:
    """An option whose text `function` parses. form: what to type, such as K=V."""
    return click.option(flag, type=ParsedText(form, function), **{"metavar": form, **details})


def per_host(text: str) -> int | tuple[int, ...]:
    """The ranks of every host, from "8", or of each host in turn, from "8,8,4"."""
    counts = tuple(map(int, text.split(",")))
    return counts if len(counts) > 1 else counts[0]


def restarts(on_failure: str, most: int, words: Sequence[str]) -> int:
    """Return how often to start again after a loss. Raises UsageError for a command that cannot continue."""
    if on_failure == "stop":
        return 0
    if words[0] != "run":
        raise click.UsageError(f"--on-failure resume continues a `run`; `{words[0]}` has nothing to continue")
    return most


def known_hosts(hosts: str | None, hostfile: Path | None) -> list[HostSlots]:
    if hosts and hostfile:
        raise click.UsageError("--hosts and --hostfile exclude each other")
    try:
        return parse_hosts(hosts) if hosts else read_hostfile(hostfile) if hostfile else []
    except OSError as reason:
        raise click.UsageError(f"{hostfile}: {reason.strerror}") from reason
    except ValueError as reason:
        raise click.UsageError(str(reason)) from reason


def build_spec(
    target: TargetOptions, known: Sequence[HostSlots] = (), *, files_here: bool = True
) -> LaunchSpec:
    """The launch specification. Raises UsageError if the words are not a command that ranks run.

    known: hosts that the user named. files_here: a job's file is on this machine; otherwise it may exist only
    in the image.
    """
    words = target.words
    if files_here or words[0] != "run":
        check_words(click.get_current_context().find_root().command, words)
    try:
        spec = make_spec(
            words,
            target.wanted,
            known,
            settings=dict(map(parse_setting, target.settings)),
            network=target.network,
            host_timeout=target.host_timeout,
        )
    except ValueError as reason:
        raise click.UsageError(str(reason)) from reason
    context = click.get_current_context().obj
    if context is None:
        return spec
    watched: Watching = context.started
    return replace(spec, **{each.name: getattr(watched, each.name) for each in fields(Watching)})


def parse_setting(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE, or NAME with its value in this environment."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and name.isascii()):
        raise ValueError(f"-x {text}: expected NAME=VALUE")
    if not equals and name not in os.environ:
        raise ValueError(f"-x {name}: no value given, and not set in this environment")
    return name, value if equals else os.environ[name]
