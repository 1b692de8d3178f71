"""What a function's signature and docstring say: its options, and what it wants from the runner."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runner.errors import UserError

Kind = Literal["map", "reduce", "job"]
# What the runner passes to a function of each kind that names it.
OFFERS: dict[Kind, frozenset[str]] = {
    "map": frozenset({"out", "xp", "here"}),
    "reduce": frozenset({"xp"}),
    "job": frozenset({"world", "input", "output", "xp"}),
}
SERVICES = frozenset().union(*OFFERS.values())
FORM = ("shape", "dtype", "order")  # --input-shape, ..., and these names where a job has none of its own
RESERVED = (
    "device",
    "json",
    "verify",
    "grid",
    "boundary",
    "cval",
    "oversubscribe",
    "input_shape",
    "input_dtype",
    "input_order",
    "chunk_bytes",
    "host_memory",
    "device_memory",
    "depth",
    "resume",
    "static",
    "timeline",
    "overlap",
    "help",
    "debug",
)


@dataclass(frozen=True)
class Parameter:
    """One option of a job: what the command line shows and checks."""

    name: str
    type: Any  # int, float, str, bool, Path or a tuple of allowed words
    default: Any
    required: bool
    help: str


def read_signature(function: Callable[..., Any], kind: Kind) -> tuple[tuple[Parameter, ...], frozenset[str]]:
    """The options among a function's parameters, and the services it names; the block comes before both.

    An option's help is its line `name: text` in the docstring.
    """
    # The text goes on in lines that are indented more than the name.
    found = re.findall(r"^( *)(\w+): +(.+(?:\n\1 +.+)*)", inspect.getdoc(function) or "", re.MULTILINE)
    helps = {name: text for _, name, text in found}
    parameters = list(inspect.signature(function).parameters.values())
    first = 0 if kind == "job" else 1  # a job gets no block
    if len(parameters) < first:
        raise UserError(f"job {function.__name__} has no parameter for the block")
    declared = parameters[first:]
    hints = _hints(function, [p for p in declared if p.name not in SERVICES])
    options = []
    for parameter in declared:
        if parameter.name in OFFERS[kind]:
            continue
        if parameter.name in SERVICES:
            raise UserError(
                f"{function.__name__}: the runner has no {parameter.name!r} for a function of this kind",
                expected=", ".join(sorted(OFFERS[kind])),
                hint="another name, if it is an option",
            )
        if parameter.name in RESERVED:
            raise UserError(
                f"job {function.__name__}: a parameter has the name of one of the command's own options",
                got=parameter.name,
                hint="another name",
            )
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise UserError(
                f"job {function.__name__}: the command line needs every option's name", got=parameter
            )
        required = parameter.default is inspect.Parameter.empty
        default = None if required else parameter.default
        accepted = _option_type(function.__name__, parameter.name, hints.get(parameter.name), default)
        text = " ".join(helps.get(parameter.name, "").split())
        options.append(Parameter(parameter.name, accepted, default, required, text))
    return tuple(options), frozenset(p.name for p in declared if p.name in SERVICES)


def _hints(function: Callable[..., Any], declared: Sequence[inspect.Parameter]) -> dict[str, Any]:
    # Of the options only: the other annotations may be names that only a type checker has imported.
    def options() -> None: ...

    options.__annotations__ = {p.name: p.annotation for p in declared if p.annotation is not p.empty}
    try:
        return typing.get_type_hints(options, inspect.unwrap(function).__globals__)
    except NameError as reason:
        raise UserError(
            f"job {function.__name__}: the type of an option is not known", got=reason
        ) from reason


def _option_type(job_name: str, name: str, hint: Any, default: Any) -> Any:
    if hint is None:
        return type(default) if isinstance(default, (bool, int, float, str)) else str
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        remaining = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        hint = remaining[0] if len(remaining) == 1 else hint
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    if hint in (int, float, str, bool, Path):
        return hint
    raise UserError(
        f"job {job_name}: parameter {name} has a type that no option can have",
        got=hint,
        expected="int, float, str, bool, Path or a Literal of words",
    )
