"""The keywords of `job.run`, `job.plan` and `job.iterate`, as type checkers and `inspect.signature` see them.

The table of options (runner/options/table.py) has the same; a test compares both.

A job whose function has no parameters but its block and annotated services takes no keywords but options:
those that it has besides are of type NoParameter, which no value has. Other jobs take keywords of any name,
and only the run finds a wrong one. A type cannot say "these options, and the parameters of that function":
`Concatenate` adds only positional parameters to those of a ParamSpec.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from meshrun.runner.job.declaration import Job
from meshrun.runner.options.choices import (
    BoundaryRules,
    Checksum,
    Colors,
    Copies,
    DeviceChoice,
    Fuse,
    FuseMath,
    HaloChoice,
    Order,
    Verify,
)

if TYPE_CHECKING:
    from meshrun.runner.run.record.printed import PlanRecord, RunRecord

Parameter_contra = TypeVar("Parameter_contra", contravariant=True)


Function_contra = TypeVar("Function_contra", contravariant=True)  # of a job


class TypedJob(Job, Generic[Function_contra]):
    """A job whose function has a type for type checkers."""


class NoParameter:
    """The type of a keyword that a job does not have."""


class RunCall(Protocol[Parameter_contra]):
    """`job.run`."""

    def __call__(
        self,
        input: Any,
        output: Any = None,
        *,
        device: DeviceChoice = "auto",
        verify: Verify | bool = "off",
        checksum: Checksum = "off",
        grid: str | Sequence[int] | None = None,
        boundary: BoundaryRules | None = None,
        cval: float | None = None,
        overlap: bool | None = None,
        oversubscribe: bool = False,
        fuse: Fuse | None = None,
        fuse_math: FuseMath = "strict",
        max_iterations: int = 1_000_000,
        json: str | Path | None = None,
        overwrite_input: bool = False,
        input_shape: str | Sequence[int] | Sequence[Sequence[int]] | None = None,
        shape: str | Sequence[int] | Sequence[Sequence[int]] | None = None,
        input_dtype: Any = None,
        dtype: Any = None,
        input_order: Order | None = None,
        order: Order | None = None,
        steps: int | None = None,
        steps_per_exchange: int | None = None,
        halo: HaloChoice = "auto",
        copies: Copies = "auto",
        until: float | str | tuple[float, str | Sequence[str]] | None = None,
        check_finite: int | None = None,
        every: int | None = None,
        frames: str | Path | None = None,
        frame_field: str | None = None,
        frame_range: str | tuple[float, float] | None = None,
        frame_colors: Colors = "viridis",
        checkpoint: int | str | None = None,
        chunk_bytes: int | str | None = None,
        host_memory: int | str | None = None,
        device_memory: int | str | None = None,
        depth: int | None = None,
        resume: bool = False,
        static: bool = False,
        verbose: bool = False,
        timeline: str | Path | None = None,
        debug: bool = False,
        ranks: int | None = None,
        **parameters: Parameter_contra,
    ) -> RunRecord: ...


class PlanCall(Protocol[Parameter_contra]):
    """`job.plan`."""

    def __call__(
        self,
        *inputs: str | Path,
        input_shape: str | Sequence[int] | Sequence[Sequence[int]] | None = None,
        shape: str | Sequence[int] | Sequence[Sequence[int]] | None = None,
        input_dtype: Any = None,
        dtype: Any = None,
        input_order: Order | None = None,
        order: Order | None = None,
        ranks: int,
        hosts: int | None = None,
        gpu: str | None = None,
        grid: str | Sequence[int] | None = None,
        boundary: BoundaryRules | None = None,
        cval: float | None = None,
        depth: int | None = None,
        chunk_bytes: int | str | None = None,
        host_memory: int | str | None = None,
        device_memory: int | str | None = None,
        steps: int | None = None,
        copies: Copies = "auto",
        **parameters: Parameter_contra,
    ) -> PlanRecord: ...


class IterateCall(Protocol[Parameter_contra]):
    """`job.iterate`."""

    @overload
    def __call__(
        self, *arrays: Any, steps: int, every: None = None, **parameters: Parameter_contra
    ) -> Any: ...
    @overload
    def __call__(
        self, *arrays: Any, steps: int, every: int, **parameters: Parameter_contra
    ) -> Iterator[Any]: ...
    def __call__(self, *arrays: Any, steps: int, every: int | None = None, **parameters: Any) -> Any: ...


class Services(Protocol):
    """What can be called like the function of a job without parameters of its own, its block left out."""

    def __call__(self, *, out: Any = ..., xp: Any = ..., here: Any = ...) -> object: ...


class RunMethod(Protocol):
    """`run`, as an attribute of a job."""

    @overload
    def __get__(self, job: TypedJob[Services], of: Any) -> RunCall[NoParameter]: ...
    @overload
    def __get__(self, job: TypedJob[Any], of: Any) -> RunCall[Any]: ...


class PlanMethod(Protocol):
    """`plan`, as an attribute of a job."""

    @overload
    def __get__(self, job: TypedJob[Services], of: Any) -> PlanCall[NoParameter]: ...
    @overload
    def __get__(self, job: TypedJob[Any], of: Any) -> PlanCall[Any]: ...


class IterateMethod(Protocol):
    """`iterate`, as an attribute of a job."""

    @overload
    def __get__(self, job: TypedJob[Services], of: Any) -> IterateCall[NoParameter]: ...
    @overload
    def __get__(self, job: TypedJob[Any], of: Any) -> IterateCall[Any]: ...


class _Annotation(str):
    """An annotation that a signature shows without quotes."""

    __repr__ = str.__str__


def as_method(function: Callable[..., Any], name: str, signature: Any, documentation: str) -> Any:
    """Return a function as a method, with its name, docstring and the signature of `signature.__call__`."""
    called = inspect.signature(signature.__call__)
    parameters = [
        parameter.replace(annotation=_Annotation(parameter.annotation))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in called.parameters.values()
    ]
    called = called.replace(parameters=parameters, return_annotation=_Annotation(called.return_annotation))
    vars(function)["__signature__"], function.__doc__ = called, documentation
    function.__name__, function.__qualname__ = name, f"DeclaredJob.{name}"
    return function
