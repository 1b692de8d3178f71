"""Decorators that declare jobs. Independent of MPI and GPUs.

A job is a plain function over a plain array. The decorators add what the runner needs to
partition the array, and keep the function itself callable: `edges.function(block)` in a unit test,
`edges(array)` for the whole array, `edges.run("in.npy", "out.npy")` from a file to a file.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, overload

from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Halo, Job, Trials
from meshrun.runner.job.signature import Kind, fitted, option_names, read_signature, renamed_options, run_name
from meshrun.runner.options.boundary import spelled
from meshrun.runner.options.choices import FUSE, BoundaryRules, Fuse
from meshrun.runner.options.plan_options import plan_keywords, plan_options
from meshrun.runner.options.run_options import RANKS, run_options, run_rows
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.table import OptionRow, described, read_keywords, rows
from meshrun.runner.plan.beyond import check_boundary
from meshrun.runner.run.signatures import (
    Function_contra,
    IterateCall,
    IterateMethod,
    PlanCall,
    PlanMethod,
    RunCall,
    RunMethod,
    TypedJob,
    as_method,
)
from meshrun.runner.spelling import python_caller

if TYPE_CHECKING:
    from meshrun.runner.run.record.printed import PlanRecord, RunRecord

RUN_TEXT = """Run on files or arrays over every rank of this program; collective. Returns the run's record.

input, output: a path or an array, or a sequence with one for each of the job's inputs and outputs. An
output's array is filled; an existing output file is replaced. If an MPI launcher has started this program,
each rank passes the same arrays, and the output is filled on each.

The keywords are the options of `meshrun run` and the job's own parameters. A name of both is the job's
parameter; the option is then called run_NAME, such as run_depth. A run is streamed if one of chunk_bytes,
host_memory, device_memory, depth, resume, static and timeline is given. Raises UserError for values that the
command rejects, and RunError if the run fails.

"""
PLAN_TEXT = """Forecast the time and memory of a run, without ranks or a GPU, as `meshrun plan` does.

inputs: files; or none, and input_shape and input_dtype instead. Returns the record of the plan, a dict that
prints as the command's table. Raises UserError where the job cannot be planned or a value is wrong.

"""
ITERATE_TEXT = """Take steps on whole arrays in this process. Returns the results of the last step.

Raises UserError for a job whose results cannot become its inputs.

Parameters
----------
steps: how many; each result becomes an input of the next step, according to the job's `feeds`.
every: return an iterator instead, which yields the results after every so many steps and after the last.
"""


def _run(job: Job, /, input: Any, output: Any = None, **keywords: Any) -> RunRecord:
    from meshrun.runner.forecast.machine import rates_file
    from meshrun.runner.run.execute import run
    from meshrun.runner.run.python_call import call_on_ranks, calling_ranks, check_ranks, files_of
    from meshrun.runner.run.record.printed import RunRecord

    table = run_rows()
    with python_caller(renamed_options(job.parameters)):
        parameters, given = sorted_keywords(job, keywords, [*table, RANKS])
        job.complete(parameters, others=[row.name for row in table])
        options = run_options(read_keywords(table, given), rates_file())
        started = check_ranks(given.get("ranks"))
        with (
            calling_ranks(options) as world,
            files_of(job, _each(input), _each(output), options, world) as (inputs, outputs),
        ):
            if started is None:
                opened = world if world.size > 1 else None
                return RunRecord(run(job, inputs, outputs, parameters, options, world=opened))
            return RunRecord(call_on_ranks(job, inputs, outputs, parameters, options, started))


def _plan(job: Job, /, *inputs: str | Path, **keywords: Any) -> PlanRecord:
    from meshrun.runner.forecast.plan import plan_record
    from meshrun.runner.run.record.printed import PlanRecord

    table = plan_keywords()
    with python_caller(option_names(job.parameters, table, in_command=False)):
        parameters, given = sorted_keywords(job, keywords, table)
        job.complete(parameters)
        if others := [type(path).__name__ for path in inputs if not isinstance(path, str | os.PathLike)]:
            hint = "input_shape=array.shape, input_dtype=array.dtype"
            raise UserError("a plan is of files", got=", ".join(others), expected="paths", hint=hint)
        options = plan_options(read_keywords(table, given))
        return PlanRecord(plan_record(job, [str(path) for path in inputs], parameters, options))


def _iterate(job: Job, /, *arrays: Any, **keywords: Any) -> Any:
    from meshrun.runner.run.array_call import iterate

    of_steps = rows(StepOptions)
    table = [replace(of_steps["steps"], required=True), of_steps["every"]]
    with python_caller(renamed_options(job.parameters)):
        parameters, given = sorted_keywords(job, keywords, table)
        return iterate(job, arrays, parameters, given["steps"], given.get("every"))


def sorted_keywords(
    job: Job, keywords: Mapping[str, Any], table: Sequence[OptionRow]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a call's keywords as the job's parameters and the options of `table`, by their usual names.

    A keyword is the job's parameter if it has one of that name; the option is `run_NAME` then, a name that
    other jobs accept, too. A keyword that is neither counts as a parameter.
    """
    own = {parameter.name for parameter in job.parameters}
    parameters, options = dict(keywords), {}
    for row in table:
        for name in row.names:
            called = run_name(name, own)
            aliases = dict.fromkeys((called, run_name(f"run_{name}", own)))
            given = [alias for alias in aliases if alias in parameters]
            if len(given) > 1:
                raise UserError(f"{given[0]} and {given[1]} are the same option of job {job.name}")
            if given and (name == row.name or name not in own):
                options[name] = parameters.pop(given[0])
        if row.required and row.name not in options:
            called = run_name(row.name, own)
            why = f": {row.name} is a parameter of its own" if called != row.name else ""
            raise UserError(f"job {job.name} needs {called}{why}", hint=f"{called}=...")
    return parameters, options


P = ParamSpec("P")


class DeclaredJob(TypedJob[Function_contra]):
    """A declared job that can run itself: `help(job)` shows its function's docstring and its options."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        object.__setattr__(self, "__doc__", _describe(self))
        object.__setattr__(self, "__signature__", _call_signature(self))

    def __reduce__(self) -> tuple[Any, ...]:
        from meshrun.runner.job.pickling import reduced_job  # help needs none of it

        return reduced_job(self)

    def __repr__(self) -> str:
        return f"<meshrun job {self.name} ({', '.join(self.arrays)} -> {', '.join(self.result_names)})>"

    def __call__(self, *arrays: Any, **parameters: Any) -> Any:
        """Apply the job to whole arrays in this process. Returns the result; a tuple if there are several."""
        from meshrun.runner.run.array_call import apply

        with python_caller(self._renamed):
            return apply(self, arrays, parameters)

    @cached_property
    def _renamed(self) -> Mapping[str, str]:
        """The options of a run with other names for this job."""
        return renamed_options(self.parameters)

    run: RunMethod = as_method(_run, "run", RunCall, RUN_TEXT + described([*run_rows(), RANKS]))
    plan: PlanMethod = as_method(_plan, "plan", PlanCall, PLAN_TEXT + described(plan_keywords()))
    iterate: IterateMethod = as_method(_iterate, "iterate", IterateCall, ITERATE_TEXT)


def _call_signature(job: Job) -> inspect.Signature:
    """Return how a job is called on arrays: with its inputs, and its parameters as keywords."""
    arrays = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in job.arrays]
    keywords = [
        inspect.Parameter(
            parameter.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if parameter.required else parameter.default,
            annotation=Literal[parameter.type] if isinstance(parameter.type, tuple) else parameter.type,
        )
        for parameter in job.parameters
    ]
    return inspect.Signature([*arrays, *keywords])


def _describe(job: Job) -> str:
    """Return the docstring of a job: that of its function, how to call the job, and its options."""
    options = ", ".join(
        f"{one.name}" if one.required else f"{one.name}={one.default!r}" for one in job.parameters
    )
    arguments = ", ".join(filter(None, [*job.arrays, options]))
    files = "INPUT, OUTPUT" if job.kind == "map" else "INPUT"
    lines = [inspect.getdoc(job.function) or f"Job {job.name}.", ""]
    if job.kind != "job":
        lines.append(f"{job.name}({arguments})  on whole arrays, in this process")
    lines.append(f"{job.name}.run({files}, ranks=4, ...)  on files or arrays, on several ranks")
    if job.kind == "map" and any(job.feeds):
        lines.append(f"{job.name}.iterate({', '.join(job.arrays)}, steps=100)  time steps on whole arrays")
    if job.parameters:
        lines += ["", "Options"]
        lines += [f"  {one.name}: {one.help or 'no description'}" for one in job.parameters]
    if names := renamed_options(job.parameters):
        called = ", ".join(dict.fromkeys(names.values()))
        lines += ["", f"Options of a run with another name for this job: {called}"]
    return "\n".join(lines)


def _each(value: Any) -> list[Any]:
    """Return one path or array, several or None as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Decorator(Protocol):
    """What a decorator with arguments returns."""

    def __call__(
        self, function: Callable[Concatenate[Any, P], object], /
    ) -> DeclaredJob[Callable[P, object]]: ...


@overload
def distribute(function: Callable[Concatenate[Any, P], object], /) -> DeclaredJob[Callable[P, object]]: ...
@overload
def distribute(
    *,
    outputs: int | Sequence[str] = 1,
    feeds: Sequence[str | None] | None = None,
    series: Sequence[str] = (),
    name: str | None = None,
) -> Decorator: ...
def distribute(
    function: Callable[..., Any] | None = None,
    *,
    outputs: int | Sequence[str] = 1,
    feeds: Sequence[str | None] | None = None,
    series: Sequence[str] = (),
    name: str | None = None,
) -> Any:
    """Declare a function of whole arrays, which any number of ranks compute as NumPy does.

    The function means what it means when NumPy calls it with the whole arrays: it writes edges by index,
    shifts with `np.roll`, updates the interior through slices. On any number of ranks the bits are those that
    NumPy computes with the whole arrays; on GPUs, except for the last bits of functions such as `np.exp`.
    meshrun rejects what it cannot compute in this way, and names the line.

    Parameters
    ----------
    function : callable
        Its leading positional parameters without default are the arrays; the others become options.
    outputs : int or sequence of str
        Names of the results, or their number. A function that returns nothing returns what it changed.
    feeds : sequence of str or None, optional
        For each result, the input that it becomes in the next step, or None. Default: the input of its name,
        else the input at its position.
    series : sequence of str
        Names of further results, after the others, that are not arrays of cells: numbers, reductions, or
        values at points. With steps, the file of a series has a row for each step, or for every `every` steps
        and the last.
    name : str, optional
        Name of the job. Default: the function's.

    Returns
    -------
    DeclaredJob
        The job: call it with arrays, or call `run`, `iterate` or `plan` of it.

    Raises
    ------
    UserError
        For a function that could not be called like this.

    Examples
    --------
    >>> @distribute
    ... def cool(u, *, rate: float = 0.1):
    ...     u[1:-1] += rate * (u[2:] - 2 * u[1:-1] + u[:-2])
    ...     u[0] = u[-1] = 0
    >>> cool.run("u.npy", "after.npy", steps=100, ranks=4)  # doctest: +SKIP
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob[Any]:
        declared = _declare(function, "map", name)
        if "out" in declared.services:
            raise UserError(
                f"job {declared.name}: a function of whole arrays has no parameter `out`",
                hint="return the result, or change an input",
            )
        names = _output_names(declared.name, outputs)
        fed = feeds
        if fed is None and set(names) & set(declared.arrays):
            fed = [one if one in declared.arrays else None for one in names]
        further = _series_names(declared.name, names, series)
        feeds_of = _fed_arrays(declared, names, fed)
        return replace(declared, whole=True, output_names=names, feeds=feeds_of, series=further)

    return declare if function is None else declare(function)


@overload
def map_blocks(function: Callable[Concatenate[Any, P], object], /) -> DeclaredJob[Callable[P, object]]: ...
@overload
def map_blocks(
    *,
    halo: Halo | None = None,
    boundary: BoundaryRules = "reflect",
    cval: float = 0.0,
    out: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    ulps: float = 16.0,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    outputs: int | Sequence[str] = 1,
    feeds: Sequence[str | None] | None = None,
    strided_out: bool = False,
    fuse: Fuse = "auto",
    split_dependent: bool = False,
    name: str | None = None,
) -> Decorator: ...
def map_blocks(
    function: Callable[..., Any] | None = None,
    *,
    halo: Halo | None = None,
    boundary: BoundaryRules = "reflect",
    cval: float = 0.0,
    out: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    ulps: float = 16.0,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    outputs: int | Sequence[str] = 1,
    feeds: Sequence[str | None] | None = None,
    strided_out: bool = False,
    fuse: Fuse = "auto",
    split_dependent: bool = False,
    name: str | None = None,
) -> Any:
    """Declare a function that computes the results for blocks, which it gets with their halo.

    The function's leading positional parameters without default are its inputs. It gets a block of each, a
    C-contiguous NumPy or CuPy array. Three further parameters have a meaning: `out` (the result's array, to
    fill; with several outputs a tuple of them), `xp` (numpy or cupy) and `here` (a `BlockContext`). The
    others become options. The function is called for any cut of the arrays, also several times on a rank, so
    a result cell may depend only on its neighbourhood. It may change a block in place, unless time steps
    leave this input as it is.

    Inputs must have the same lengths along the axes that are cut: the first, those with a halo and those that
    `grid` cuts. They may differ in dtype and in their other axes. Other inputs may broadcast as in NumPy;
    they get the halo along axes of more than one cell.

    Below, `**parameters` stands for those parameters of the job that the given function has.

    Parameters
    ----------
    function : callable
        Computes a block, as described above.
    halo : int, sequence or callable, optional
        Cells needed beyond the block: one number for every axis that all inputs have; or one number or (low,
        high) pair per leading axis; or a function of the job's parameters that returns either. Default: the
        cells by which the function's result is smaller than its block, if the function can be traced; else 0.
    boundary : str, tuple or dict
        Values of the cells beyond the array: "reflect", "mirror", "nearest", "constant" or "wrap", as in
        scipy.ndimage. A tuple has an entry per axis: a mode, a constant, or a pair of these for the two ends.
        A dict has either per input, such as {"p": ("wrap", (0.0, "nearest"))}; inputs that it does not name
        have "reflect". A constant is a number or the name of a parameter; of a `Series`, the row of the step
        counts. Both ends of an axis wrap, or none.
    cval : float
        The constant of "constant".
    out : callable, optional
        (shape, dtype, **parameters) -> (shape, dtype): of the result for a block of the first input with that
        shape, without halo. With several outputs it returns one pair for each. Along axes along which the
        array is cut, a result is as long as the block, or longer or shorter by a factor that is the same for
        all lengths that divide; blocks, chunks and calls hold such lengths. Default: the same shape; the
        dtype that the function returns or, if it has a parameter `out`, the input's.
    reference : callable, optional
        (blocks, **parameters) -> expected result, all float64, computed by another method than the
        function's; `verify` compares with it. May return (expected, tolerance). With several outputs it
        returns one of either for each. It may have a parameter `input_dtype`, the first input's dtype.
    ulps : float
        Tolerance of floating-point results if `reference` gives none, in units of the result dtype's epsilon
        times the largest magnitude in the block.
    check : callable, optional
        (shape, dtype, **parameters) -> None; raises UserError for input that the job cannot process.
    trials : sequence of (shape, dtype, parameters)
        Arrays on which `meshrun selftest` verifies the job.
    outputs : int or sequence of str
        How many results the function returns, as a tuple, or their names.
    feeds : sequence of str or None, optional
        For each output, the name of the input that it becomes in the next of `steps`; None: no input.
        Default: by position.
    strided_out : bool
        Whether the function can fill an `out` whose rows are not contiguous with each other: time steps then
        fill the next block in place. Default: `out` is C-contiguous.
    fuse : {"auto", "require", "off"}
        Compute the function as one kernel if it can be traced ("auto"), fail if it cannot ("require"), or
        always call it ("off"). The option `fuse` of a run takes precedence.
    split_dependent : bool
        Whether the result may depend on how the array is cut into blocks: by the number of ranks, and into
        pieces within one. Before a run, other functions are called on a small array, whole and in parts, and
        rejected if the bits differ.
    name : str, optional
        Name of the job. Default: the function's.

    Returns
    -------
    DeclaredJob
        The job: call it with arrays, or call `run`, `iterate` or `plan` of it.

    Raises
    ------
    UserError
        For a function that could not be called as described.

    Examples
    --------
    >>> @map_blocks(halo=1, boundary="nearest")
    ... def smooth(block):
    ...     return (block[:-2] + block[1:-1] + block[2:])[..., 1:-1] / 3
    >>> smooth.run("in.npy", "out.npy", ranks=4)  # doctest: +SKIP
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob[Any]:
        rules = spelled(boundary)
        if fuse not in FUSE:
            raise UserError("unknown value of fuse=", got=fuse, expected=", ".join(FUSE))
        beside = {
            "halo": halo if callable(halo) else None,
            "out": out,
            "reference": reference,
            "check": check,
        }
        declared = _declare(function, "map", name, **beside)
        widths = declared.halo if callable(halo) else halo
        results = _output_names(declared.name, outputs)
        check_boundary(declared, rules)
        return replace(
            declared,
            halo=widths,
            boundary=rules,
            cval=cval,
            ulps=ulps,
            trials=trials,
            output_names=results,
            strided_out=strided_out,
            fuse=fuse,
            split_dependent=split_dependent,
            feeds=_fed_arrays(declared, results, feeds),
        )

    return declare if function is None else declare(function)


@overload
def reduce_blocks(
    function: Callable[Concatenate[Any, P], object], /, *, combine: Callable[[Any, Any], Any]
) -> DeclaredJob[Callable[P, object]]: ...
@overload
def reduce_blocks(
    *,
    combine: Callable[[Any, Any], Any],
    finish: Callable[..., Any] | None = None,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    whole_rows: bool = False,
    name: str | None = None,
) -> Decorator: ...
def reduce_blocks(
    function: Callable[..., Any] | None = None,
    *,
    combine: Callable[[Any, Any], Any],
    finish: Callable[..., Any] | None = None,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    whole_rows: bool = False,
    name: str | None = None,
) -> Any:
    """Declare a function that computes a small partial result for a block; they are combined over all blocks.

    The array is cut into tiles, independently of the number of ranks, and the partial results are combined
    pairwise in an order that depends only on the tiles: the result has the same bits on any number of ranks.
    A tile is a box of the array whose cells are contiguous in C order. The function may have the parameters
    `xp` (numpy or cupy) and `here` (a `BlockContext`: the tile's position in the array).

    Parameters
    ----------
    function : callable
        Computes the partial result of a tile: a number, an array, or a tuple, list or dict of these.
    combine : callable
        (partial, partial) -> partial, on the host; the earlier block's comes first.
    finish : callable, optional
        (partial, **parameters) -> result, applied once at the end; `**parameters` as in `map_blocks`.
    check : callable, optional
        As in `map_blocks`.
    trials : sequence of (shape, dtype, parameters)
        As in `map_blocks`.
    whole_rows : bool
        Whether tiles are whole along all axes but the first, for reductions along that axis, such as the mean
        of each column. The result, an array, is written to OUTPUT if one is given.
    name : str, optional
        Name of the job. Default: the function's.

    Returns
    -------
    DeclaredJob
        The job: call it with an array, or call `run` or `plan` of it.

    Raises
    ------
    UserError
        For functions that could not be called as described.

    Examples
    --------
    >>> @reduce_blocks(combine=max)
    ... def largest(block):
    ...     return block.max()
    >>> largest.run("in.npy", ranks=4)  # doctest: +SKIP
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob[Any]:
        declared = _declare(function, "reduce", name, finish=finish, check=check)
        fitted(declared.name, "combine", combine, ())
        return replace(declared, combine=combine, trials=trials, whole_rows=whole_rows)

    return declare if function is None else declare(function)


@overload
def job(function: Callable[Concatenate[Any, P], object], /) -> DeclaredJob[Callable[P, object]]: ...
@overload
def job(
    *,
    inputs: Sequence[str] = (),
    outputs: int | Sequence[str] = 1,
    reference: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    forecast: Callable[..., Any] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> Decorator: ...
def job(
    function: Callable[..., Any] | None = None,
    *,
    inputs: Sequence[str] = (),
    outputs: int | Sequence[str] = 1,
    reference: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    forecast: Callable[..., Any] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> Any:
    """Declare a function that runs on every rank and may do anything with the ranks' `world`.

    Its return value on rank 0, a mapping of names to numbers, texts or lists, is the run's result. The
    function gets what it names as parameters; its other parameters become options:

    - `world`: the ranks, a `World`.
    - `input`: the opened input; several inputs by the names of `inputs`.
    - `argument`: INPUT as a text; the runner does not open it then.
    - `output`: a path with OUTPUT's suffix, at which the job must create a file or folder. It is renamed to
      OUTPUT when every rank has returned.
    - `create`: creates the array OUTPUT, whose parts all ranks write, and with each further call the next of
      several outputs; see `runner.run.services.created_output`.
    - `simulate`: takes time steps of a map job that the function makes, and writes their frames to OUTPUT;
      see `runner.run.services.simulation`. With it, the options of time steps apply.
    - `memory`: bytes that this rank may use for arrays, of its device or, for a CPU rank, of its host. With
      it, the options `host_memory` and `device_memory` apply.

    Parameters
    ----------
    function : callable
        Runs on every rank, as described above.
    inputs : sequence of str
        Names of the inputs, if there are several.
    outputs : int or sequence of str
        Number of outputs, or their names, of a job that creates its outputs.
    reference : callable, optional
        (array, **parameters) -> the expected mapping, or (mapping, {name: absolute tolerance});
        `**parameters` as in `map_blocks`.
    verify : callable, optional
        (world, inputs, output, mode, **parameters) -> the record of the check. The option `verify` calls it
        on every rank, with the inputs and the created output (of several, a list) as they are read back from
        their files, and "sample" or "full". It raises RunError on every rank if the output is wrong.
    forecast : callable, optional
        (place, inputs, **parameters) -> `runner.forecast.jobs.JobForecast`, for `meshrun plan`.
        `inputs` are pairs of shape and dtype.
    trials : sequence of (shape, dtype, parameters)
        As in `map_blocks`.
    name : str, optional
        Name of the job. Default: the function's.

    Returns
    -------
    DeclaredJob
        The job: call `run` or `plan` of it.

    Raises
    ------
    UserError
        For a function that could not be called as described, and for several outputs without `create`.

    Examples
    --------
    >>> @job
    ... def energy(world, input):
    ...     u = meshrun.load(world, input)
    ...     return {"energy": float(u.dot(u))}
    >>> energy.run("u.npy", ranks=4)  # doctest: +SKIP
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob[Any]:
        declared = _declare(function, "job", name, reference=reference, verify=verify, forecast=forecast)
        names = _output_names(declared.name, outputs)
        if len(names) > 1 and "create" not in declared.services:
            raise UserError(
                f"job {declared.name} has several outputs and does not create them",
                got=f"outputs={outputs!r}",
                hint=f"def {function.__name__}(world, input, create)",
            )
        return replace(declared, arrays=tuple(inputs) or declared.arrays, output_names=names, trials=trials)

    return declare if function is None else declare(function)


def _declare(
    function: Callable[..., Any], kind: Kind, name: str | None, **beside: Callable[..., Any] | None
) -> DeclaredJob[Any]:
    """Build the job. beside: its auxiliary functions, which are called with the job's parameters."""
    found = read_signature(function, kind)
    chosen, options = name or function.__name__, [parameter.name for parameter in found.options]
    fitting: dict[str, Any] = {
        role: fitted(chosen, role, one, options, max(len(found.arrays), 1))
        for role, one in beside.items()
        if one is not None
    }
    arrays = found.arrays or ("input",)  # a job of kind "job" has one source
    declared: DeclaredJob[Any] = DeclaredJob(chosen, kind, function, found.options, found.services, arrays)
    return replace(declared, **fitting)


def _output_names(job: str, outputs: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(outputs, int) and not isinstance(outputs, bool) and outputs >= 1:
        return ("output",) if outputs == 1 else tuple(f"output{n}" for n in range(1, outputs + 1))
    names = () if isinstance(outputs, str) else _each_of(outputs)
    if not names or not all(isinstance(n, str) and n for n in names) or len(set(names)) < len(names):
        raise UserError(
            f"job {job}: outputs is neither a number of results nor their names",
            got=repr(outputs),
            expected="2, or ('after', 'old')",
        )
    return names


def _each_of(names: Any) -> tuple[Any, ...]:
    """Return one name or several, or what was given instead, as a tuple."""
    return tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)


def _series_names(job: str, outputs: Sequence[str], series: Sequence[str]) -> tuple[str, ...]:
    names = _each_of(series)
    every = (*outputs, *names)
    if not all(isinstance(n, str) and n for n in names) or len(set(every)) < len(every):
        raise UserError(
            f"job {job}: series are not names of further results",
            got=repr(series),
            expected="('energy', 'trace'), none of them an output",
        )
    return names


def _fed_arrays(
    job: Job, outputs: Sequence[str], feeds: Sequence[str | None] | None
) -> tuple[str | None, ...]:
    """Return, per output, the input that it becomes in the next step."""
    if feeds is None:
        return tuple(job.arrays[n] if n < len(job.arrays) else None for n in range(len(outputs)))
    given = _each_of(feeds)
    fed = [name for name in given if name is not None]
    if len(given) != len(outputs) or any(name not in job.arrays or fed.count(name) > 1 for name in fed):
        raise UserError(
            f"job {job.name}: feeds must name one input, or None, for each output",
            got=", ".join(map(str, given)),
            expected=f"{len(outputs)} of {', '.join(job.arrays)}, each at most once",
        )
    return given
