"""What every target of `meshrun launch` is told alike, and the spec that it makes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from launch.cli.command_line import check_words
from launch.spec import HOST_TIMEOUT, Host, LaunchSpec, make_spec, parse_hosts, parse_shape, read_hostfile

Value = TypeVar("Value")


class Form(click.ParamType[Value]):
    """What a function makes of a text, or refuses by ValueError."""

    def __init__(self, name: str, function: Callable[[str], Value]) -> None:
        self.name, self._function = name, function

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        if not isinstance(value, str):  # a default
            default: Value = value
            return default
        try:
            return self._function(value)
        except ValueError as reason:
            self.fail(str(reason), param, ctx)


class Seconds(click.FloatRange):
    """From `least` to a day; not "nan", which is in every range."""

    name = "number of seconds"

    def __init__(self, least: float) -> None:
        super().__init__(min=least, max=86400.0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a valid number of seconds.", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """A number of bytes: 64M, 1.5G; K, M, G and T are powers of 1024."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from runner.errors import UserError
        from runner.stream.options import parse_size

        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except UserError as reason:
            self.fail(f"{reason.what}; expected {reason.expected}", param, ctx)


SIZE = Size()

DEVICES = ("auto", "cpu", "cuda")

SHAPE = click.option(
    "-j",
    "wanted",
    type=Form("HOSTSxGPUS", parse_shape),
    metavar="HOSTSxGPUS",
    help="Hosts, and ranks on each: 2x8.",
)
PRINT = click.option("--print", "show", is_flag=True, help="Show what would be started, and stop.")
SETTING = click.option(
    "-x", "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A variable for every rank."
)
NETWORK = click.option(
    "--network", metavar="IFACE", help="Interface for NCCL, MPI and UCX.  [default: each one's own choice]"
)
TIMEOUT = click.option(
    "--host-timeout", type=Seconds(3.0), default=HOST_TIMEOUT, show_default=True,
    metavar="SECONDS", help="How long a host may be silent.",
)  # fmt: skip
DEBUG = click.option("--debug", is_flag=True, help="Show the launcher's own words too.")
WORDS = click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND ...")


def device_option() -> click.Option:
    return click.Option(
        ["--device"],
        type=click.Choice(DEVICES),
        default="auto",
        show_default=True,
        help="Where blocks are computed.",
    )


def debug_option() -> click.Option:
    return click.Option(["--debug"], is_flag=True, help="Show the traceback of an error.")


def known_hosts(hosts: str | None, hostfile: Path | None) -> list[Host]:
    if hosts and hostfile:
        raise click.UsageError("--hosts or --hostfile, not both")
    try:
        return parse_hosts(hosts) if hosts else read_hostfile(hostfile) if hostfile else []
    except OSError as reason:
        raise click.UsageError(f"{hostfile}: {reason.strerror}") from reason
    except ValueError as reason:
        raise click.UsageError(str(reason)) from reason


def made(
    words: tuple[str, ...],
    wanted: tuple[int | None, int] | None,
    known: Sequence[Host],
    *,
    settings: Sequence[str],
    files_here: bool = True,
    **more: Any,
) -> LaunchSpec:
    """The spec, once its words are known to be a command that ranks run.

    files_here: a job's file is on this machine; else only an image may have it.
    """
    if files_here or words[0] != "run":
        check_words(click.get_current_context().find_root().command, words)
    try:
        return make_spec(words, wanted, known, settings=dict(map(setting, settings)), **more)
    except ValueError as reason:
        raise click.UsageError(str(reason)) from reason


def setting(text: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME for the value that it has here."""
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        raise ValueError(f"-x {text}: expected NAME=VALUE")
    if not equals and name not in os.environ:
        raise ValueError(f"-x {name}: it is not set here, and no value is given")
    return name, value if equals else os.environ[name]
