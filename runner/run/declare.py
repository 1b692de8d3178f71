"""Decorators that declare jobs. Independent of MPI and GPUs.

A job is a plain function over a plain array. The decorators add what the runner needs to
partition the array, and keep the function itself callable: `edges.function(block)` in a unit test,
`edges(array)` for the whole array, `edges.run("in.npy", "out.npy")` from a file to a file.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast, overload

from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Halo, Job, Trials
from meshrun.runner.job.signature import FORM, Kind, fitted, read_signature, run_name
from meshrun.runner.options.choices import BOUNDARIES, FUSE, Boundary, Copies
from meshrun.runner.options.spelling import python_caller

if TYPE_CHECKING:
    from meshrun.runner.options.choices import DeviceChoice
    from meshrun.runner.report.record import Record
    from meshrun.runner.run.record.run_record import PlanRecord

P = ParamSpec("P")
R = TypeVar("R")

OWN = "parameter "  # before a parameter's name among the keywords of a method with options


def own_parameters_first(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Wrap a method of a job so that a keyword is the job's parameter, if it has one of that name.

    The method's own option is `run_NAME` then; that name is accepted for other jobs, too. The method gets a
    parameter's value under its name with OWN before it.
    """
    options = {
        name: parameter
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }

    @functools.wraps(method)
    def call(self: Any, *arguments: P.args, **keywords: P.kwargs) -> R:
        own = {parameter.name for parameter in self.parameters}
        passed: dict[str, Any] = {OWN + name: keywords.pop(name) for name in own & {*keywords}}
        for name, option in options.items():
            called = run_name(name, own)
            for alias in (called, run_name(f"run_{name}", own)):
                if alias not in keywords:
                    continue
                if name in passed:
                    raise UserError(f"{called} and {alias} are the same option of job {self.name}")
                passed[name] = keywords.pop(alias)
            if option.default is option.empty and name not in passed and called != name:
                raise UserError(
                    f"job {self.name} needs {called}: {name} is a parameter of its own", hint=f"{called}=..."
                )
        return method(self, *arguments, **keywords, **passed)

    return cast("Callable[Concatenate[Any, P], R]", call)


def _own(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the job's parameters as the job calls them."""
    return {name.removeprefix(OWN): value for name, value in parameters.items()}


class DeclaredJob(Job):
    """A declared job that can run itself: `help(job)` shows its function's docstring and its options."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        object.__setattr__(self, "__doc__", _describe(self))

    def __repr__(self) -> str:
        return f"<meshrun job {self.name} ({', '.join(self.arrays)} -> {', '.join(self.output_names)})>"

    def __call__(self, *arrays: Any, **parameters: Any) -> Any:
        """Apply the job to whole arrays in this process. Returns the result; a tuple if there are several."""
        from meshrun.runner.run.array_call import apply

        with python_caller(renamed_options(self)):
            return apply(self, arrays, parameters)

    @own_parameters_first
    def run(
        self,
        /,
        input: Any,
        output: Any = None,
        *,
        device: DeviceChoice = "auto",
        json: str | Path | None = None,
        verify: Literal["off", "sample", "full"] | bool = "off",
        checksum: Literal["off", "sample", "full"] = "off",
        grid: str | Sequence[int] | None = None,
        boundary: Boundary | None = None,
        cval: float | None = None,
        overlap: bool | None = None,
        fuse: Literal["auto", "require", "off"] | None = None,
        fuse_math: Literal["strict", "fast"] = "strict",
        oversubscribe: bool = False,
        overwrite_input: bool = False,
        input_shape: str | Sequence[int] | Sequence[Sequence[int]] | None = None,
        input_dtype: Any = None,
        input_order: Literal["C", "F"] | None = None,
        chunk_bytes: int | str | None = None,
        host_memory: int | str | None = None,
        device_memory: int | str | None = None,
        depth: int | None = None,
        resume: bool = False,
        static: bool = False,
        timeline: str | Path | None = None,
        steps: int | None = None,
        steps_per_exchange: int | None = None,
        halo: Literal["auto", "nccl", "direct"] = "auto",
        copies: Literal["auto", "one", "two"] = "auto",
        until: float | str | tuple[float, str | Sequence[str]] | None = None,
        check_finite: int | None = None,
        every: int | None = None,
        frames: str | Path | None = None,
        frame_field: str | None = None,
        frame_range: str | tuple[float, float] | None = None,
        frame_colors: str = "viridis",
        checkpoint: int | str | None = None,
        ranks: int | None = None,
        debug: bool = False,
        **parameters: Any,
    ) -> Record:
        """Run on files or arrays over every rank of this program; collective. Returns the run's record.

        input, output: a path or an array, or a sequence with one for each of the job's inputs and outputs.
        An output's array is filled; an existing output file is replaced. If an MPI launcher has started this
        program, each rank passes the same arrays, and the output is filled on each.

        The keywords are the options of `meshrun run` and the job's own parameters. A name of both is the
        job's parameter; the option is then called run_NAME, such as run_depth. Raises UserError for values
        that the command refuses, and RunError if the run fails.

        Parameters
        ----------
        device: device to compute on: auto, cpu or cuda.
        json: file for the record.
        verify: verify parts of the result ("sample" or True) or all of it ("full").
        checksum: check arrays that cross ranks by checksums: one message in 64 ("sample"), or all ("full").
        grid: number of blocks per axis: "2x4" or (2, 4).
        boundary, cval: cells beyond the array; the constant of "constant". None: as the job declares.
        overlap: overlap computation with communication. None: chosen by device.
        fuse: compute the function as one kernel: where it can be traced ("auto"), or fail ("require").
            None: as the job declares.
        fuse_math: "fast" lets that kernel contract a * b + c, which changes the last bits.
        oversubscribe: let ranks share a GPU.
        overwrite_input: let an output replace an input: the same file, or an array with the same memory.
        input_shape, input_dtype, input_order: for an input without a header: "1000x512" or (1000, 512); a
            dtype or its name; "C" or "F". Lists describe several inputs. Also shape, dtype and order, if
            the job has no such parameter.
        chunk_bytes, host_memory, device_memory: bytes, or a text such as "64M". The run is streamed if any
            of these, or of the next four, is given.
        depth: chunks in flight. None: 3.
        resume: continue an unfinished run of this command.
        static: disable work stealing.
        timeline: file for a drawing of the run: .html or .json.
        steps: number of steps to take; each result becomes an input of the next step, according to `feeds`.
        steps_per_exchange: steps between two halo exchanges; the halo is so many times as wide. None: as
            many as one kernel takes, or 1.
        halo: how GPUs exchange halos: by messages ("nccl"), or by storing into each other's memory
            ("direct").
        copies: of the fields in memory: "two", or "one", which takes half the bytes.
        until: stop when no cell changes by more than this in a step: 1e-6 for every field that steps change,
            "1e-6:u,v" or (1e-6, ("u", "v")) for those fields. Or, of a flow, "steady" or "steady:1e-6": when
            its velocity changes by no more than this part of itself.
        check_finite: fail if a value is not finite, checked every so many steps.
        every: steps between two frames, or two checks of `until`.
        frames: a folder of PNGs, a .gif, .webp, .png or .mp4, or a .npy or .zarr with a time axis.
        frame_field, frame_range, frame_colors: the input that frames show; (low, high); a colour map.
        checkpoint: save the state every so many steps, or every "5min"; continue with resume=True.
        ranks: number of ranks to start on this machine, unless an MPI launcher has started this program;
            the job may be defined in a notebook. None: this program's ranks.
        debug: show the traceback of an error that ends the ranks.
        """
        given = locals()
        keywords = {name: given[name] for name in run_keywords() if name != "ranks"}
        from meshrun.runner.forecast.machine import rates_file
        from meshrun.runner.run.execute import run
        from meshrun.runner.run.options import read_options
        from meshrun.runner.run.python_call import call_on_ranks, calling_ranks, check_ranks, files_of
        from meshrun.runner.run.record.run_record import RunRecord

        short = {name: parameters.pop(name) for name in FORM if name in parameters}
        parameters = _own(parameters)
        for name, value in (("shape", input_shape), ("dtype", input_dtype), ("order", input_order)):
            keywords[f"input_{name}"] = short.get(name) if value is None else value
        with python_caller(renamed_options(self)):
            self.complete(parameters, others=keywords)
            options, started = read_options(keywords, rates_file()), check_ranks(ranks)
            with (
                calling_ranks(options) as world,
                files_of(self, _each(input), _each(output), options, world) as (inputs, outputs),
            ):
                if started is None:
                    opened = world if world.size > 1 else None
                    return RunRecord(run(self, inputs, outputs, parameters, options, world=opened))
                return RunRecord(call_on_ranks(self, inputs, outputs, parameters, options, started))

    @own_parameters_first
    def plan(
        self,
        /,
        *inputs: str | Path,
        ranks: int,
        hosts: int | None = None,
        gpu: str | None = None,
        input_shape: str | Sequence[int] | Sequence[Sequence[int]] | None = None,
        input_dtype: Any = None,
        input_order: Literal["C", "F"] | None = None,
        grid: str | Sequence[int] | None = None,
        boundary: Boundary | None = None,
        cval: float | None = None,
        depth: int | None = None,
        chunk_bytes: int | str | None = None,
        host_memory: int | str | None = None,
        device_memory: int | str | None = None,
        copies: Copies = "auto",
        steps: int | None = None,
        **parameters: Any,
    ) -> PlanRecord:
        """Forecast the time and memory of a run, without ranks or a GPU, as `meshrun plan` does.

        Returns the record of the plan, a dict that prints as the command's table. inputs: files; or none, and
        input_shape and input_dtype instead. ranks, hosts: how many. gpu: model, such as "h200", or "cpu".
        chunk_bytes, host_memory, device_memory: bytes, or texts such as "64M". steps: time steps of the run.
        The others are as in `run`. Raises UserError where the job cannot be planned or a value is wrong.
        """
        from meshrun.runner.forecast.planned import plan_record
        from meshrun.runner.run.options import checked
        from meshrun.runner.run.record.run_record import PlanRecord

        keywords: dict[str, Any] = {
            "input_shape": input_shape, "input_dtype": input_dtype, "input_order": input_order,
            "ranks": ranks, "hosts": hosts, "gpu": gpu, "grid": grid, "boundary": boundary, "cval": cval,
            "depth": depth, "chunk_bytes": chunk_bytes, "host_memory": host_memory,
            "device_memory": device_memory, "copies": copies, "steps": steps,
        }  # fmt: skip
        parameters = _own(parameters)
        self.complete(parameters)
        if others := [type(one).__name__ for one in inputs if not isinstance(one, str | os.PathLike)]:
            hint = "input_shape=array.shape, input_dtype=array.dtype"
            raise UserError("a plan is of files", got=", ".join(others), expected="paths", hint=hint)
        with python_caller(renamed_options(self, DeclaredJob.plan)):
            options = {name: checked(name, value) for name, value in keywords.items()}
            return PlanRecord(plan_record(self, [str(path) for path in inputs], parameters, **options))

    @own_parameters_first
    def iterate(self, /, *arrays: Any, steps: int, every: int | None = None, **parameters: Any) -> Any:
        """Take steps on whole arrays in this process. Returns the results of the last step.

        steps: how many; each result becomes an input of the next step, according to the job's `feeds`. every:
        return an iterator instead, which yields the results after every so many steps and after the last.
        Raises UserError for a job whose results cannot become its inputs.
        """
        from meshrun.runner.run.array_call import iterate

        with python_caller(renamed_options(self)):
            return iterate(self, arrays, _own(parameters), steps, every)


def run_keywords(method: Callable[..., Any] = DeclaredJob.run) -> list[str]:
    """Return the keywords of `DeclaredJob.run`: the options of `meshrun run`, by name; or those of `plan`."""
    parameters = inspect.signature(method).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def renamed_options(job: Job, method: Callable[..., Any] = DeclaredJob.run) -> dict[str, str]:
    """Return the options of a run whose names a job's own parameters have: their names for this job."""
    own = {parameter.name for parameter in job.parameters}
    renamed = {name: run_name(name, own) for name in run_keywords(method) if name in own}
    return renamed | {name: run_name(f"input_{name}", own) for name in FORM if name in own}


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
    if renamed := renamed_options(job):
        lines += ["", f"Options of a run with another name for this job: {', '.join(renamed.values())}"]
    return "\n".join(lines)


def _each(value: Any) -> list[Any]:
    """Return one path or array, several or None as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


@overload
def map_blocks(function: Callable[..., Any], /) -> DeclaredJob: ...
@overload
def map_blocks(
    *,
    halo: Halo | None = None,
    boundary: str = "reflect",
    cval: float = 0.0,
    out: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    ulps: float = 16.0,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    outputs: int | Sequence[str] = 1,
    feeds: Sequence[str | None] | None = None,
    strided_out: bool = False,
    fuse: Literal["auto", "require", "off"] = "auto",
    split_dependent: bool = False,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], DeclaredJob]: ...
def map_blocks(
    function: Callable[..., Any] | None = None,
    *,
    halo: Halo | None = None,
    boundary: str = "reflect",
    cval: float = 0.0,
    out: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    ulps: float = 16.0,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    outputs: int | Sequence[str] = 1,
    feeds: Sequence[str | None] | None = None,
    strided_out: bool = False,
    fuse: Literal["auto", "require", "off"] = "auto",
    split_dependent: bool = False,
    name: str | None = None,
) -> DeclaredJob | Callable[[Callable[..., Any]], DeclaredJob]:
    """Declare a function that computes the results for blocks, which it gets with their halo.

    The function's leading positional parameters without default are its inputs: it gets a block of each, a
    C-contiguous NumPy or CuPy array. It may also have the parameters `out` (the result's array, to fill; with
    several outputs a tuple of them), `xp` (numpy or cupy) and `here` (the block's place in the array); its
    other parameters become options. It is called for any cut of the arrays, also several times on a rank, so
    a result cell may depend only on its neighbourhood. It may change a block in place, unless the block is of
    an input that time steps do not change. Raises UserError for functions that could not be called as
    described below; `parameters` stands for those parameters of the job that a function has.

    Inputs must have the same lengths along the axes that are cut: the first, those with a halo and those that
    `grid` cuts. They may differ in dtype and in their other axes.

    Parameters
    ----------
    halo: cells needed beyond the block: one number for every axis that all inputs have, or one number
        or (low, high) pair per leading axis, or a function of the job's parameters that returns either.
        Default: the cells by which the function's result is smaller than its block, if the function can be
        traced; else 0.
    boundary: cells beyond the array: reflect, mirror, nearest, constant or wrap, as in scipy.ndimage.
    cval: the constant of boundary="constant".
    out: (shape, dtype, **parameters) -> (shape, dtype) of the result for a block of the first input with
        that shape, without halo. With several outputs it returns one pair for each. Along axes along which
        the array is cut, a result is as long as the block, or longer or shorter by a factor that is the same
        for all lengths that divide; blocks, chunks and calls hold such lengths. Default: the same shape; the
        dtype that the function returns or, if it has a parameter `out`, the input's.
    reference: (blocks, **parameters) -> expected result, all float64, computed by another method than the
        function's; `verify` compares with it. May return (expected, tolerance). With several outputs it
        returns one of either for each. It may have a parameter `input_dtype`, the first input's dtype.
    ulps: tolerance of floating-point results if `reference` gives none, in units of the
        result dtype's epsilon times the largest magnitude in the block.
    check: (shape, dtype, **parameters) -> None; raises UserError for input that the job cannot process.
    trials: (shape, dtype, parameters) of arrays on which `meshrun selftest` verifies the job.
    outputs: how many results the function returns, as a tuple, or their names.
    strided_out: the function can fill an `out` whose rows are not contiguous with each other: time steps
        then fill the next block in place. Default: `out` is C-contiguous.
    fuse: compute the function as one kernel if it can be traced ("auto"), fail if it cannot ("require"), or
        always call it ("off"). The option `fuse` of a run takes precedence.
    split_dependent: the result may depend on how the array is cut into blocks: by the number of ranks, and
        into pieces within one. Before a run, other functions are called on a small array, whole and in parts,
        and rejected if the bits differ.
    feeds: for each output, the name of the input that it becomes in the next of `steps`; None:
        no input. Default: by position.
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob:
        if boundary not in BOUNDARIES:
            raise UserError("unknown boundary", got=boundary, expected=", ".join(BOUNDARIES))
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
        return replace(
            declared,
            halo=widths,
            boundary=boundary,
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
def reduce_blocks(function: Callable[..., Any], /, *, combine: Callable[[Any, Any], Any]) -> DeclaredJob: ...
@overload
def reduce_blocks(
    *,
    combine: Callable[[Any, Any], Any],
    finish: Callable[..., Any] | None = None,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    whole_rows: bool = False,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], DeclaredJob]: ...
def reduce_blocks(
    function: Callable[..., Any] | None = None,
    *,
    combine: Callable[[Any, Any], Any],
    finish: Callable[..., Any] | None = None,
    check: Callable[..., None] | None = None,
    trials: Trials = (),
    whole_rows: bool = False,
    name: str | None = None,
) -> DeclaredJob | Callable[[Callable[..., Any]], DeclaredJob]:
    """Declare a function that computes a small partial result for a block; they are combined over all blocks.

    The array is cut into tiles, independently of the number of ranks, and the partial results are combined
    pairwise in an order that depends only on the tiles: the result has the same bits on any number of ranks.
    A tile is a box of the array whose cells are contiguous in C order. The function may have the parameters
    `xp` (numpy or cupy) and `here` (a BlockContext: the tile's place in the array).

    Parameters
    ----------
    combine: (partial, partial) -> partial, on the host; the earlier block's comes first.
    finish: (partial, **parameters) -> result, applied once at the end. UserError and `parameters`: as in
        `map_blocks`.
    check, trials: as in `map_blocks`.
    whole_rows: tiles are whole along all axes but the first, for reductions along that axis, such as the
        mean of each column. The result, an array, is written to OUTPUT if one is given.
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob:
        declared = _declare(function, "reduce", name, finish=finish, check=check)
        fitted(declared.name, "combine", combine, ())
        return replace(declared, combine=combine, trials=trials, whole_rows=whole_rows)

    return declare if function is None else declare(function)


@overload
def job(function: Callable[..., Any], /) -> DeclaredJob: ...
@overload
def job(
    *,
    inputs: Sequence[str] = (),
    reference: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    forecast: Callable[..., Any] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> Callable[[Callable[..., Any]], DeclaredJob]: ...
def job(
    function: Callable[..., Any] | None = None,
    *,
    inputs: Sequence[str] = (),
    reference: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    forecast: Callable[..., Any] | None = None,
    trials: Trials = (),
    name: str | None = None,
) -> DeclaredJob | Callable[[Callable[..., Any]], DeclaredJob]:
    """Declare a function that gets the `world` (and `input`, `output`, if it has them) and may do anything.

    It runs on every rank. Its return value on rank 0, a mapping of names to numbers, texts or lists, is the
    run's result. output: a path with OUTPUT's suffix, at which the job must create a file or folder; it is
    renamed to OUTPUT when every rank has returned. argument: INPUT as a text; the runner does not open it
    then. simulate: takes time steps of a map job that the function makes, and writes their frames to OUTPUT;
    see `runner.run.services.simulation`. With it, the options of time steps apply. inputs: the opened arrays
    of several inputs. create: creates the array OUTPUT, whose parts all ranks write; see
    `runner.run.services.created_output`. memory: bytes that this rank may use for arrays, of its device or,
    for a CPU rank, of its host; with it, host_memory and device_memory apply.

    inputs: names of the inputs, if there are several. verify: (world, inputs, output, mode, **parameters) ->
    the record of the check. `verify` calls it on every rank, with the inputs and the created output as they
    are read back from their files, and "sample" or "full"; it raises RunError on every rank if the output is
    wrong. forecast: (place, inputs, **parameters) -> `runner.forecast.job_forecast.JobForecast`, for
    `meshrun plan`; `inputs` are pairs of shape and dtype. reference: (array, **parameters) -> the expected
    mapping, or (mapping, {name: absolute tolerance}); `parameters` as in `map_blocks`. trials: as in
    `map_blocks`.
    """

    def declare(function: Callable[..., Any]) -> DeclaredJob:
        declared = _declare(function, "job", name, reference=reference, verify=verify, forecast=forecast)
        return replace(declared, arrays=tuple(inputs) or declared.arrays, trials=trials)

    return declare if function is None else declare(function)


def _declare(
    function: Callable[..., Any], kind: Kind, name: str | None, **beside: Callable[..., Any] | None
) -> DeclaredJob:
    """Build the job. beside: its auxiliary functions, which are called with the job's parameters."""
    found = read_signature(function, kind)
    chosen, options = name or function.__name__, [parameter.name for parameter in found.options]
    fitting: dict[str, Any] = {
        role: fitted(chosen, role, one, options, max(len(found.arrays), 1))
        for role, one in beside.items()
        if one is not None
    }
    arrays = found.arrays or ("input",)  # a job of kind "job" has one source
    declared = DeclaredJob(chosen, kind, function, found.options, found.services, arrays)
    return replace(declared, **fitting)


def _output_names(job: str, outputs: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(outputs, int) and not isinstance(outputs, bool) and outputs >= 1:
        return ("output",) if outputs == 1 else tuple(f"output{n}" for n in range(1, outputs + 1))
    names = () if isinstance(outputs, (str, int)) else tuple(outputs)
    if not names or len(set(names)) < len(names) or not all(isinstance(n, str) and n for n in names):
        raise UserError(
            f"job {job}: outputs is neither a number of results nor their names",
            got=repr(outputs),
            expected="2, or ('after', 'old')",
        )
    return names


def _fed_arrays(
    job: Job, outputs: Sequence[str], feeds: Sequence[str | None] | None
) -> tuple[str | None, ...]:
    """Return, per output, the input that it becomes in the next step."""
    if feeds is None:
        return tuple(job.arrays[n] if n < len(job.arrays) else None for n in range(len(outputs)))
    given = (feeds,) if isinstance(feeds, str) else tuple(feeds)
    fed = [name for name in given if name is not None]
    if len(given) != len(outputs) or not set(fed) <= set(job.arrays) or len(set(fed)) < len(fed):
        raise UserError(
            f"job {job.name}: feeds must name one input, or None, for each output",
            got=", ".join(map(str, given)),
            expected=f"{len(outputs)} of {', '.join(job.arrays)}, each at most once",
        )
    return given
