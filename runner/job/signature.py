"""Read a function's options and services from its signature and docstring."""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshrun.runner.errors import UserError
from meshrun.runner.job.series import Series, read_series
from meshrun.runner.options.run_options import RANKS, run_rows
from meshrun.runner.spelling import command_option

if typing.TYPE_CHECKING:
    from meshrun.runner.options.table import OptionRow

Kind = Literal["map", "reduce", "job"]
# Services: parameters that the runner passes to functions that have them, by kind of job.
OFFERS: dict[Kind, frozenset[str]] = {
    "map": frozenset({"out", "xp", "here"}),
    "reduce": frozenset({"xp", "here"}),
    "job": frozenset(
        {"world", "input", "inputs", "output", "create", "memory", "xp", "argument", "simulate"}
    ),
}
STEP = "step"  # the number of the step, from 0 on; a parameter of another type is an option
HELP = ("help", "help_all")  # names of options that a job's parameter cannot have
SERVICES = frozenset().union(*OFFERS.values())


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    return float(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _flag(value: Any) -> bool:
    import numpy as np  # not for the help

    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, (str, Path)):
        raise TypeError
    return str(value)


# For each type, what reads a value of it, and what another value is.
_READERS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (_integer, "not a valid integer"),
    float: (_number, "not a valid float"),
    bool: (_flag, "neither True nor False"),
    str: (_text, "not a text"),
    Path: (Path, "not a path"),
    Series: (read_series, "neither a file nor an array"),
}


@dataclass(frozen=True)
class Parameter:
    """One option of a job, as the command line shows and checks it."""

    name: str
    type: Any  # int, float, str, bool, Path, Series, a tuple of allowed words, or object: not declared
    default: Any
    required: bool
    help: str

    def convert(self, value: Any) -> Any:
        """Return a value from a program as this option's type; UserError where the command would refuse it.

        None is the value of an option that is not given. NumPy's numbers become Python's.
        """
        if self.type is object or (value is None and self.default is None and not self.required):
            return value
        if value is None and self.type is Series and not self.required:
            value = self.default  # an array, which is no option's text
        if isinstance(self.type, tuple):
            if isinstance(value, str) and value in self.type:
                return value
            what = f"not one of {', '.join(map(repr, self.type))}"
        else:
            reader, what = _READERS[self.type]
            try:
                return reader(value)
            except (TypeError, ValueError, OverflowError):
                pass
        raise UserError(f"Invalid value for {self.name!r}: {value!r} is {what}")


@dataclass(frozen=True)
class Signature:
    """Parameters of a job's function by their role.

    arrays: names of its leading parameters, which receive blocks. options: its parameters on the command
    line. services: its parameters among `OFFERS`.
    """

    arrays: tuple[str, ...]
    options: tuple[Parameter, ...]
    services: frozenset[str]


def run_name(name: str, own: Collection[str]) -> str:
    """Return the name of an option of the run for a job with the parameters `own`: `run_depth` instead of
    `depth` if one of them is called depth."""
    return run_name(f"run_{name}", own) if name in own else name


def option_names(
    parameters: Sequence[Parameter], table: Iterable[OptionRow], *, in_command: bool
) -> dict[str, str]:
    """Return the options that are called otherwise for a job with these parameters: usual name, other name.

    A parameter keeps its name. in_command: a parameter that is True or False has no_NAME there, too, and so
    have options.
    """
    taken = {parameter.name for parameter in parameters}
    if in_command:
        taken |= {f"no_{parameter.name}" for parameter in parameters if parameter.type is bool}
    names = {}
    for row in table:
        clash = in_command and row.is_two_sided and f"no_{row.name}" in taken
        names[row.name] = run_name(f"run_{row.name}" if clash else row.name, taken)
        if row.short in taken:
            names[row.short] = names[row.name]
    return {name: new for name, new in names.items() if new != name}


def renamed_options(parameters: Sequence[Parameter]) -> dict[str, str]:
    """Return the options of a run that are called otherwise in Python for a job, by their usual names."""
    return option_names(parameters, [*run_rows(), RANKS], in_command=False)


def read_signature(function: Callable[..., Any], kind: Kind) -> Signature:
    """Sort a function's parameters by role; raises UserError for parameters that cannot have any.

    Raises UserError also for what is not written as a function, such as an object that can be called.

    Arrays come first: the first parameter and, for kind "map", those after it without a default, an option's
    annotation or a service's name. An option's help is its line `name: text` in the docstring.
    """
    if not hasattr(inspect.unwrap(function), "__globals__"):
        raise UserError(
            "a job is a function that is written in Python",
            got=f"{function!r:.60} of type {type(function).__name__}",
            hint="`def my_job(block): return f(block)` below the decorator, which calls it as f",
        )
    # Continuation lines are indented more than the name.
    found = re.findall(r"^( *)(\w+): +(.+(?:\n\1 +.+)*)", inspect.getdoc(function) or "", re.MULTILINE)
    helps = {name: text for _, name, text in found}
    parameters = list(inspect.signature(function).parameters.values())
    first = 0 if kind == "job" else 1  # a function of kind "job" takes no block
    if len(parameters) < first:
        raise UserError(f"job {function.__name__} has no parameter for an array")
    while kind == "map" and first < len(parameters) and _is_array(function, parameters[first]):
        first += 1
    declared = parameters[first:]
    hints = _hints(function, [p for p in declared if p.name not in SERVICES])
    options = []
    services = {parameter.name for parameter in declared if parameter.name in SERVICES}
    if kind == "map" and any(map(_is_step, declared)):
        services.add(STEP)
    for parameter in declared:
        if parameter.name in OFFERS[kind] or parameter.name == STEP in services:
            continue
        if parameter.name in SERVICES:
            raise UserError(
                f"{function.__name__}: {parameter.name!r} is not available to a function of this kind",
                expected=", ".join(sorted(OFFERS[kind])),
                hint="another name, if it is an option",
            )
        if parameter.name in HELP:
            raise UserError(
                f"job {function.__name__}: a parameter cannot be called {parameter.name}, because "
                f"{command_option(parameter.name)} shows the job's options",
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
    names = {one.name for one in options}
    if twice := [one.name for one in options if one.type is bool and f"no_{one.name}" in names]:
        raise UserError(
            f"job {function.__name__}: parameters {twice[0]} and no_{twice[0]} would both be the option "
            f"{command_option(twice[0], False)}",
            hint="another name for one of them",
        )
    arrays = tuple(p.name for p in parameters[:first])
    return Signature(arrays, tuple(options), frozenset(services))


def _is_step(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is the number of the step: called `step`, and an integer or of no type."""
    if parameter.name != STEP:
        return False
    if parameter.annotation is not parameter.empty:
        return parameter.annotation in (int, "int")
    return parameter.default is parameter.empty or type(parameter.default) is int


def _is_array(function: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    """Return whether a parameter after the first one receives a block: see `read_signature`."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if parameter.kind not in positional or parameter.default is not parameter.empty:
        return False
    if parameter.name in SERVICES or _is_step(parameter):
        return False
    if parameter.annotation is parameter.empty:
        return True
    try:
        hint = _hints(function, [parameter])[parameter.name]
    except UserError:  # a type that is imported for type checkers only
        return True
    arms = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return not any(arm in _READERS or typing.get_origin(arm) is Literal for arm in arms)


def _hints(function: Callable[..., Any], declared: Sequence[inspect.Parameter]) -> dict[str, Any]:
    # Only of the options: other annotations may name types imported only for type checkers.
    def options() -> None: ...

    options.__annotations__ = {p.name: p.annotation for p in declared if p.annotation is not p.empty}
    try:
        return typing.get_type_hints(options, inspect.unwrap(function).__globals__)
    except NameError as reason:
        raise UserError(
            f"job {function.__name__}: the type of an option is not known", why=reason
        ) from reason


def _option_type(job_name: str, name: str, hint: Any, default: Any) -> Any:
    if hint is None:
        return type(default) if isinstance(default, (bool, int, float, str)) else object
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        remaining = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        hint = remaining[0] if len(remaining) == 1 else hint
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    if hint in _READERS:
        return hint
    raise UserError(
        f"job {job_name}: parameter {name} has an unsupported type",
        got=hint,
        expected="int, float, str, bool, Path, meshrun.Series or a Literal of words",
    )


# Positional arguments of a job's auxiliary functions, in addition to the job's parameters.
GIVEN = {
    "halo": (),
    "out": ("the shape", "the dtype"),
    "check": ("the shape", "the dtype"),
    "reference": ("the blocks",),
    "finish": ("the partial result",),
    "verify": ("the world", "the inputs", "the output", "the mode"),
    "forecast": ("the place", "the inputs"),
    "combine": ("two partial results", ""),
}


INPUT_DTYPE = "input_dtype"  # parameter of a reference: the first input's dtype, unless it is the job's


def fitted(
    job: str, role: str, function: Callable[..., Any], options: Sequence[str], arrays: int = 1
) -> Callable[..., Any]:
    """Wrap `function` so that it can be called with its role's arguments and all of the job's parameters.

    The wrapper passes on the parameters that the function has; all, if it has `**`; none, if it is a built-in
    without a signature. arrays: number of the job's inputs; the reference takes an argument for each.

    Raises UserError if such a call would fail.
    """
    if not callable(function):
        raise UserError(f"job {job}: {role} is not a function", got=repr(function))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return lambda *given, **parameters: function(*given)
    values = [*GIVEN[role]] * (arrays if role == "reference" else 1)
    try:
        taken = signature.bind_partial(*values).arguments
    except TypeError:
        given = " and ".join(filter(None, GIVEN[role]))
        if role == "reference":
            given = "the block" if arrays == 1 else f"the blocks of {arrays} inputs"
        raise UserError(
            f"job {job}: {role} cannot be called with {given}", got=f"{role}{signature}"
        ) from None
    free = [p for p in signature.parameters.values() if p.name not in taken]
    unasked = {INPUT_DTYPE} - {*options}  # passed on only to a reference that names it
    if role == "reference":
        options = [*options, *unasked]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in free:
        known = parameter.name in options and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        if not known and parameter.default is parameter.empty and parameter.kind not in variable:
            which = "which it is not given" if role == "combine" else "which is not a parameter of the job"
            raise UserError(
                f"job {job}: {role} names {parameter.name}, {which}",
                got=f"{role}{signature}",
                expected=", ".join(options) or "none",
            )
    everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in free)
    named = {p.name for p in free}

    @functools.wraps(function)
    def call(*given: Any, **parameters: Any) -> Any:
        rest = {n for n in parameters if n not in taken and n not in unasked} if everything else set()
        wanted = {n: v for n, v in parameters.items() if n in named or n in rest}
        return function(*given, **wanted)

    return call
