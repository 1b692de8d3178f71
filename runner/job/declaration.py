"""Declaration of a job, independent of how it is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from meshrun.runner.errors import UserError
from meshrun.runner.job.series import Parameters, Series, read_series
from meshrun.runner.job.signature import Kind, Parameter

if TYPE_CHECKING:
    from meshrun.runner.region import Shape, Sizes

Halo = int | Sequence[int | tuple[int, int]] | Callable[..., Any]
Trials = Sequence[tuple[tuple[int, ...], str, dict[str, Any]]]  # (shape, dtype, parameters)


@dataclass(frozen=True)
class Job:
    """A declared job. `function` takes blocks (kind "map"), a block ("reduce") or the World ("job").

    arrays: names of the inputs. output_names: names of the results of a "map" job. feeds: for each result,
    the input that it becomes in the next step; None: no input. strided_out: the function can fill an `out`
    whose rows are not contiguous with each other. whole_rows: the tiles of a "reduce" job hold whole rows.
    fuse: whether the function of a "map" job becomes one kernel, one of FUSE. split_dependent: the result of
    a "map" job may depend on how its array is cut into blocks. whole: the function of a "map" job takes whole
    arrays. program: what it computes, a `compiler.whole.program.WholeProgram`, if that takes several stages;
    then the function takes whole arrays, too, when it is run. memory: that it needs for arrays between
    stages, a `programs.memory.StageMemory`. sizes: of these, if they differ along the axes
    that are split. series: names of its results that are no fields. series_pass: computes these,
    `runner.compiler.whole.point_pass.SeriesPass`; None: there are none. tape: what is computed for each step
    (`compiler.trace.timed.StepTape`). constants: the last of the inputs, arrays that the function uses and
    does not take (`compiler.whole.functions.outside.Constant`). verify: checks the output of a "job", and
    forecast is for its plan, see `runner.run.declare.job`.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    services: frozenset[str]
    arrays: tuple[str, ...] = ("input",)
    output_names: tuple[str, ...] = ("output",)
    feeds: tuple[str | None, ...] = ()
    halo: Halo | None = None
    boundary: str = "reflect"
    cval: float = 0.0
    out: Callable[..., Any] | None = None
    combine: Callable[[Any, Any], Any] | None = None
    finish: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None
    ulps: float = 16.0
    check: Callable[..., None] | None = None
    verify: Callable[..., Any] | None = None
    forecast: Callable[..., Any] | None = None
    trials: Trials = ()
    strided_out: bool = False
    whole_rows: bool = False
    fuse: str = "auto"
    split_dependent: bool = False
    whole: bool = False
    program: Any = None
    memory: Any = None
    sizes: Sizes | None = None
    series: tuple[str, ...] = ()
    series_pass: Any = None
    tape: Any = None
    constants: tuple[Any, ...] = ()

    @property
    def result_names(self) -> tuple[str, ...]:
        """The names of all results, each of which is written to a file."""
        return (*self.output_names, *self.series)

    @property
    def takes_steps(self) -> bool:
        """Return whether the options of time steps apply."""
        return self.kind == "map" or "simulate" in self.services

    @property
    def opens_input(self) -> bool:
        """Return whether INPUT is the path of an array, which the runner opens."""
        return "argument" not in self.services

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def halo_for(self, parameters: dict[str, Any]) -> Any:
        """Return the declared halo, 0 if none is; a job may compute it from its parameters."""
        if self.halo is None:
            return 0
        return self.halo(**parameters) if callable(self.halo) else self.halo

    def arguments(self, parameters: Parameters) -> Parameters:
        """Return the parameters as functions get them: tables in time as arrays."""
        return {name: one.values if isinstance(one, Series) else one for name, one in parameters.items()}

    def described(self, parameters: Parameters) -> Parameters:
        """Return the parameters for a record: tables in time as their path, or as what they are."""
        tables = [one.name for one in self.parameters if one.type is Series and one.name in parameters]
        if not tables:
            return dict(parameters)
        found = dict(parameters)
        for name in tables:
            found[name] = None if found[name] is None else str(read_series(found[name]))
        return found

    def with_constants(self, types: Sequence[tuple[Shape, Any]]) -> list[tuple[Shape, Any]]:
        """Return the shapes and dtypes of all inputs. types: of those that are given."""
        given = len(self.arrays) - len(self.constants)
        return [*types[:given], *((one.values.shape, one.values.dtype) for one in self.constants)]

    def option_hint(self, array: str) -> str | None:
        """Return how an input becomes an option, for a number that is meant; None for the first input."""
        if array not in self.arrays[1:]:
            return None
        before = ", ".join(self.arrays[: self.arrays.index(array)])
        return (
            f"`def {self.function.__name__}({before}, *, {array})`, if {array} is a number: "
            "parameters before `*` are inputs, a file or an array each"
        )

    def complete(self, parameters: dict[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
        """Return `parameters` as their types with defaults added; UserError for unknown or missing ones, and
        for values of another type.

        others: further names to suggest for an unknown one.
        """
        known = {parameter.name: parameter.default for parameter in self.parameters}
        unknown = [name for name in parameters if name not in known]
        if unknown:
            close = get_close_matches(unknown[0], [*known, *others], 1)
            raise UserError(
                f"job {self.name} has no such parameter",
                got=", ".join(unknown),
                expected=", ".join(known) or "none",
                hint=self.option_hint(unknown[0]) or (close[0] if close else None),
            )
        missing = [p.name for p in self.parameters if p.required and p.name not in parameters]
        if missing:
            raise UserError(f"job {self.name} needs a value for {', '.join(missing)}")
        types = {parameter.name: parameter for parameter in self.parameters}
        found = {**known, **{name: types[name].convert(value) for name, value in parameters.items()}}
        for name, parameter in types.items():  # of a table in time, the default may be a file or an array
            if parameter.type is Series:
                found[name] = parameter.convert(found[name])
        return found
