"""Fingerprint of a run: an unfinished run is resumed only if input, job, options and code are the same."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from typing import Any

from meshrun.runner.arrays.inputs import Inputs, input_key
from meshrun.runner.compiler.function_key import code_text, source_file
from meshrun.runner.plan.chunks import Chunks
from meshrun.runner.plan.task import Task
from meshrun.runner.report.record import plain
from meshrun.runner.report.versions import installed_version
from meshrun.runner.storage.formats.registry import ComputedSource, Source
from meshrun.runner.world.world import World


def fingerprint(
    world: World, task: Task, sources: Sequence[Source], chunks: Chunks | None, inputs: Inputs
) -> dict[str, Any]:
    """Return the fingerprint of a run over arrays, for its journal: plain values. On rank 0.

    chunks: of a streamed run.
    """
    return {
        **task_fingerprint(world, task, inputs),
        "inputs": {
            field.name: {
                **_origin(source, inputs, number),
                "shape": list(field.stored),
                "dtype": str(field.dtype),
            }
            for number, (field, source) in enumerate(zip(task.fields, sources, strict=True))
        },
        "results": {
            name: {"shape": list(shape), "dtype": str(dtype)}
            for name, (shape, dtype) in zip(task.job.output_names, task.stored, strict=True)
        },
        "halo": [list(width) for width in task.widths],
        **({} if chunks is None else {"grid": list(task.partition.grid), "rows": chunks.rows}),
    }


def _origin(source: Source, inputs: Inputs, number: int) -> dict[str, Any]:
    """Return where an input comes from."""
    if isinstance(source, ComputedSource):
        return {"computed": plain(dict(source.description))}
    return {
        "path": str(source.path.resolve()),
        "array": source.name,
        "order": source.form.order or "C",
        **_state(inputs, number),
    }


def _state(inputs: Inputs, number: int) -> dict[str, int]:
    """Return size, last change and number of files of an input."""
    size, changed, files, _ = inputs.states[input_key(number)]
    return {"bytes": size, "changed_ns": changed, "files": files}


def task_fingerprint(world: World, task: Task, inputs: Inputs) -> dict[str, Any]:
    """Return the part of a fingerprint that does not depend on the array. On rank 0."""
    return {
        "meshrun": installed_version("meshrun") or "",  # none if run from a folder of sources
        "job": task.job.name,
        "code": code_of(task.job.function),
        **({"captured": dict(inputs.captured.values)} if inputs.captured.values else {}),
        "parameters": plain(task.described_parameters),
        "files": inputs.of_parameters,
        "boundary": task.declared_boundary or task.boundary,
        "cval": plain(task.cval),
        "arithmetic": getattr(task.kernel, "arithmetic", "strict"),
        **({"fuse": "require"} if getattr(task.kernel, "inexact", False) else {}),
        "device": world.backend.device.kind,  # results are rounded differently
    }


def code_of(function: Any) -> str:
    """Return the SHA-256 of the source file of a job's function and of the CUDA sources beside it.

    A function without a source file is hashed by its compiled code.
    """
    function = inspect.unwrap(function)
    path = source_file(function)
    if path is None:
        return hashlib.sha256(code_text(function.__code__).encode()).hexdigest()
    digest = hashlib.sha256()
    for file in (path, *sorted(path.parent.glob("*.cu*")), *sorted(path.parent.glob("kernels/*.cu*"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def warn_of_unknown(world: World, job: str, inputs: Inputs) -> None:
    """Warn, in a run that is resumed, of what the job's function captures and the fingerprint lacks.
    Collective. job: its name."""
    unknown: dict[str, str] = world.on_root(lambda: dict(inputs.captured.unknown))
    if unknown:
        listed = " and ".join(f"{name} ({what})" for name, what in unknown.items())
        world.warn(
            f"job {job} uses {listed}: it is not known whether the unfinished run, which is resumed, "
            "had the same"
        )
