"""A run from Python on several ranks of this machine, when no MPI launcher has started this program.

The job, which may be a function in a notebook, is written to a temporary folder with the call's arguments.
`meshrun -n RANKS call FOLDER` starts the ranks, and each reads the folder. Arrays are files in it: in memory
(/dev/shm) if there is room. The record or the error is returned in a file in the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from meshrun.runner import lock
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import MeshrunError, RunError, UserError, describe
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.pickling import dumps, user_modules
from meshrun.runner.options.run_options import Options
from meshrun.runner.options.values import whole_number
from meshrun.runner.plan.task import check_numbers
from meshrun.runner.region import HostArray
from meshrun.runner.report.record import Record
from meshrun.runner.report.units import counted
from meshrun.runner.run.array_call import host_array
from meshrun.runner.spelling import option
from meshrun.runner.system.host_memory import memory_folder
from meshrun.runner.system.launcher import check_connected, detect_launcher
from meshrun.runner.world.log import LOGGER
from meshrun.runner.world.world import World, open_world, single_rank_world

PROGRAM = (sys.executable, str(Path(__file__).parents[2] / "__main__.py"))
COPIES = 3  # of the arrays: the files, and the blocks and results of the ranks
# Raised by objects that cannot be pickled, or by the modules that have them.
UNPICKLABLE = (
    pickle.PicklingError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    RuntimeError,
    OSError,
    ImportError,
)
WARNING = "meshrun: warning: "
CALL, PATH, RECORD, ERROR = "call.pickle", "path.json", "record.json", "error.pickle"
Arguments = Sequence[Any]  # paths, or arrays


@dataclass(frozen=True)
class PythonCall:
    """The call that each rank runs."""

    job: Job
    inputs: list[str]
    outputs: list[str]
    parameters: dict[str, Any]
    options: Options


def is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def check_ranks(ranks: Any) -> int | None:
    """Return the number of ranks to start; None: use this program's ranks. Raises UserError."""
    if ranks is None:
        return None
    number = whole_number(ranks)
    if number is None or number < 1:
        raise UserError(
            f"Invalid value for {option('ranks')!r}", got=repr(ranks), expected="a number of ranks, 1 or more"
        )
    detected = detect_launcher()
    check_connected(detected)
    if detected is not None and detected.size is not None and detected.size != number:
        raise UserError(
            "this program is already a rank of an MPI launcher",
            got=f"ranks={number}",
            expected=f"{detected.size}, or no ranks=",
        )
    return None if detected is not None or number == 1 else number


def calling_ranks(options: Options) -> World:
    """Return the world of the ranks that an MPI launcher has started; without one, of this process alone,
    for host arrays. To be used in a `with` block. Collective."""
    launched = detect_launcher()
    if launched is None or launched.size == 1:
        return single_rank_world(CpuBackend())
    return open_world(options.device, oversubscribe=options.oversubscribe)


@contextlib.contextmanager
def files_of(
    job: Job, inputs: Arguments, outputs: Arguments, options: Options, world: World
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield paths for inputs and outputs: arrays are saved before, and filled from the results afterwards.
    Collective.

    options: of the run. world: of the ranks that call this, each with the same arrays. Each rank's arrays are
    filled. Raises UserError, on every rank, if the ranks' arrays differ, or if an array does not fit its
    result, cannot be filled, or shares memory with another.
    """
    given = [is_array(value) for value in (*inputs, *outputs)]
    if not any(map(any, world.control.allgather(given))):
        yield [str(value) for value in inputs], [str(value) for value in outputs]
        return
    world.collective_call(lambda: _check_arrays(job, inputs, outputs, options))
    _check_alike(world, job, inputs, outputs)
    size = sum(int(value.nbytes) for value in (*inputs, *outputs) if is_array(value))
    with _shared_folder(world, size) as folder:
        # A result may have the name of an input.
        results = folder / "results"
        world.on_root(results.mkdir)
        ins, outs = _paths(folder, job.arrays, inputs), _paths(results, job.result_names, outputs)
        world.on_root(lambda: _save(inputs, ins))
        yield ins, outs
        filled = [
            (name, value, path)
            for name, value, path in zip(job.result_names, outputs, outs, strict=False)
            if is_array(value)
        ]
        world.collective_call(lambda: _fill_all(job, filled))


def _paths(folder: Path, names: Sequence[str], values: Arguments) -> list[str]:
    """Return the paths of files, and for arrays those of files in `folder`."""
    named = zip(names, values, strict=False)
    return [str(folder / f"{name}.npy") if is_array(value) else str(value) for name, value in named]


def _check_arrays(job: Job, inputs: Arguments, outputs: Arguments, options: Options) -> None:
    """Raise UserError for arrays that a run cannot read or fill."""
    _check_count(job, "input", job.arrays, inputs)
    _check_count(job, "output", job.result_names, outputs)
    for name, value in zip(job.arrays, inputs, strict=False):
        if is_array(value):
            check_numbers(name, len(job.arrays), np.dtype(value.dtype))
    if not options.overwrite_input:
        _check_apart(job, inputs, outputs)
    for name, value in zip(job.result_names, outputs, strict=False):
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            raise UserError(f"job {job.name}: the array for the result {name} is read-only")
    for (one, first), (other, second) in combinations(zip(job.result_names, outputs, strict=False), 2):
        if is_array(first) and is_array(second) and share_memory(first, second):
            raise UserError(f"job {job.name}: the arrays for the results {one} and {other} share memory")


def _check_count(job: Job, kind: str, names: Sequence[str], values: Arguments) -> None:
    """Raise UserError for more inputs or outputs than a job has, such as a list of numbers."""
    if len(values) > len(names):
        raise UserError(
            f"job {job.name} has {counted(len(names), kind)}",
            got=f"a list of {len(values)}",
            hint=f"an array for each {kind}: numpy.asarray(values) for a list of numbers" if names else None,
        )


def _check_alike(world: World, job: Job, inputs: Arguments, outputs: Arguments) -> None:
    """Raise UserError on every rank if the ranks pass different arrays. Collective."""
    if world.size == 1:
        return
    mine = world.collective_call(
        lambda: [_described(value, cells=True) for value in inputs] + [_described(value) for value in outputs]
    )
    first, *others = world.control.allgather(mine)
    for rank, other in enumerate(others, 1):
        for name, one, another in zip((*job.arrays, *job.result_names), first, other, strict=False):
            if one != another:
                raise UserError(
                    f"job {job.name}: the ranks pass different arrays for {name}",
                    got=f"{one} on rank 0, {another} on rank {rank}",
                    expected="the same array on every rank",
                    everywhere=True,
                )
        if len(other) != len(first):
            raise UserError(
                f"job {job.name}: the ranks pass different numbers of arrays",
                got=f"{len(first)} on rank 0, {len(other)} on rank {rank}",
                everywhere=True,
            )


def _described(value: Any, *, cells: bool = False) -> str:
    """Return dtype and shape of an array; with a checksum of its `cells`, if they count."""
    if not is_array(value):
        return str(value)
    text = f"{value.dtype} of shape {tuple(value.shape)}"
    if not cells:
        return text
    values: Any = np.ascontiguousarray(_on_host(value)).reshape(-1).view(np.uint8)
    return f"{text} with checksum {hashlib.blake2b(values, digest_size=8).hexdigest()}"


def _on_host(value: Any) -> HostArray:
    array: HostArray = value.get() if hasattr(value, "get") else host_array(value)
    return array


def _save(arrays: Arguments, paths: Sequence[str]) -> None:
    for value, path in zip(arrays, paths, strict=True):
        if is_array(value):
            np.save(path, _on_host(value))


def _fill_all(job: Job, arrays: Sequence[tuple[str, Any, str]]) -> None:
    """Fill the arrays of results from files. arrays: names, arrays, paths; none is filled unless all fit."""
    results = [np.load(path, mmap_mode="r") for _, _, path in arrays]
    for (name, value, _), result in zip(arrays, results, strict=True):
        _check_fits(job, name, value, result)
    for (_, value, _), result in zip(arrays, results, strict=True):
        _fill(value, result)


@contextlib.contextmanager
def _shared_folder(world: World, size: int) -> Iterator[Path]:
    """Yield a temporary folder that all ranks see, for arrays of `size` bytes. Collective.

    In memory if there is room and one host; else in the working directory, which several hosts may share.
    """
    alone = len(world.hosts) == 1

    def make() -> Path:
        return lock.private_folder("call", memory_folder(COPIES * size) if alone else Path.cwd())

    folder = world.on_root(make)
    try:
        world.collective_call(lambda: _check_seen(folder))
        yield folder
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _check_seen(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(
            f"arrays pass between hosts through files in {folder.parent}, which this host does not share",
            hint="start in a folder that all hosts share, or paths of .npy files",
        )


def _check_apart(job: Job, inputs: Arguments, outputs: Arguments) -> None:
    """Raise UserError for a result's array that has memory of an input's."""
    for (name, array), (result, filled) in product(
        zip(job.arrays, inputs, strict=False), zip(job.result_names, outputs, strict=False)
    ):
        if is_array(array) and is_array(filled) and share_memory(array, filled):
            raise UserError(
                f"job {job.name}: the array for the result {result} shares memory with the input {name}, "
                "which the run would replace",
                hint=f"another array, or {option('overwrite_input', True)}",
            )


def share_memory(one: Any, other: Any) -> bool:
    """Return whether two arrays share memory: exactly for NumPy's, by their range of addresses for others."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.shares_memory(one, other))
    kinds = [hasattr(array, "__cuda_array_interface__") for array in (one, other)]
    if kinds[0] != kinds[1]:
        return False
    if not kinds[0]:
        return bool(np.shares_memory(np.asarray(one), np.asarray(other)))
    (first, stop), (other_first, other_stop) = map(_device_bytes, (one, other))
    return first < other_stop and other_first < stop


def _device_bytes(array: Any) -> tuple[int, int]:
    """Return the addresses of a device array's first byte and of the one after its last."""
    described = array.__cuda_array_interface__
    address, shape = int(described["data"][0]), tuple(described["shape"])
    size = np.dtype(described["typestr"]).itemsize
    if 0 in shape:
        return address, address
    dense = [size * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    strides = described.get("strides") or dense
    reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return address + sum(n for n in reach if n < 0), address + sum(n for n in reach if n > 0) + size


def _check_fits(job: Job, name: str, array: Any, result: Any) -> None:
    if (tuple(array.shape), np.dtype(array.dtype)) != (result.shape, result.dtype):
        raise UserError(
            f"job {job.name}: the array for the result {name} does not fit",
            got=f"{array.dtype} of shape {tuple(array.shape)}",
            expected=f"{result.dtype} of shape {result.shape}",
        )


def _fill(array: Any, result: Any) -> None:
    if hasattr(array, "set"):
        array.set(np.ascontiguousarray(result))
    else:
        array[...] = result


@contextlib.contextmanager
def call_folder(size: int) -> Iterator[Path]:
    """Yield a temporary folder for arrays of `size` bytes: in memory if there is room."""
    folder = lock.private_folder("call", memory_folder(COPIES * size))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def call_on_ranks(
    job: Job,
    inputs: Sequence[str],
    outputs: Sequence[str],
    parameters: dict[str, Any],
    options: Options,
    ranks: int,
) -> Record:
    """Start so many ranks, run the job on them, and return the record.

    Raises the error that ended the ranks. Their messages are written to this process's stderr.
    """
    with call_folder(0) as folder:
        write_call(folder, PythonCall(job, list(inputs), list(outputs), parameters, options))
        command = [*PROGRAM, "-n", str(ranks), "call", str(folder)]
        with subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="backslashreplace",  # a job may print anything
        ) as process:
            lines: list[str] = []
            reader = threading.Thread(target=forward, args=(process.stderr, lines))
            reader.start()
            try:
                status = process.wait()
            except BaseException:
                process.terminate()
                raise
            finally:
                reader.join()
        if status == 0:
            record: Record = json.loads((folder / RECORD).read_text())
            return record
        raise error_of(folder, status, lines)


def write_call(folder: Path, call: PythonCall) -> None:
    """Write the call for the ranks, which read it by `read_call`."""
    (folder / PATH).write_text(json.dumps([os.path.abspath(place) for place in sys.path]))
    (folder / CALL).write_bytes(pickled(call, call.job))


def pickled(call: Any, job: Job) -> bytes:
    """Return a call of a job, or the job, as bytes: the functions of the user's modules with their globals as
    they are now; if some of these cannot be sent, the ranks import modules, of which a warning tells."""
    name = getattr(job.function, "__module__", None) or "__main__"
    modules = user_modules()
    # What the ranks import: nothing; all but the job's module; all.
    choices = {
        "": modules,
        f"the modules that {name} uses": [module for module in modules if module.__name__ == name],
        f"{name} and the modules that it uses": [],
    }
    failures: list[BaseException] = []
    for imported, sent in choices.items():
        try:
            data = dumps(call, *sent)
        except UNPICKLABLE as failure:
            failures.append(failure)
            continue
        if imported and modules:
            LOGGER.warning(
                "the ranks import %s, with the values that they have then: those that they have now cannot "
                "be sent to them (%s)",
                imported,
                describe(failures[-1]),
            )
        return data
    raise UserError(
        f"job {job.name} cannot be sent to other ranks",
        why=describe(failures[-1]),
        hint="define everything that it uses inside the function, or in a file that it imports",
    ) from failures[-1]


def forward(stream: Any, lines: list[str]) -> None:
    """Keep the ranks' lines, log their warnings and write other lines to stderr, to the end: ranks wait for
    their reader."""
    for line in stream:
        lines.append(line.rstrip("\n"))
        if line.startswith(WARNING):
            LOGGER.warning("%s", line.removeprefix(WARNING).rstrip("\n"))
        elif not line.startswith("meshrun: "):  # an error is raised
            with contextlib.suppress(OSError, ValueError):  # a full disk, a closed stream
                sys.stderr.write(line)


def error_of(folder: Path, status: int, lines: Sequence[str]) -> MeshrunError:
    """Return the error that ended the ranks."""
    with contextlib.suppress(FileNotFoundError):
        failure: MeshrunError = pickle.loads((folder / ERROR).read_bytes())
        return failure
    sentences = [line.removeprefix("meshrun: ") for line in lines if line.startswith("meshrun: ")]
    kind = UserError if status == UserError.exit_code else RunError
    return kind(sentences[-1] if sentences else f"the ranks ended with exit status {status}")


def read_call(folder: Path) -> PythonCall:
    """Read the call, on a rank. folder: made by `call_on_ranks`; the call is unpickled."""
    path = json.loads((folder / PATH).read_text())
    # Before the call's functions import their modules: the program's order, in which it found them.
    sys.path[:] = [*dict.fromkeys([*path, *sys.path])]
    call: PythonCall = cloudpickle.loads((folder / CALL).read_bytes())
    return call


def keep_error(folder: Path, failure: BaseException) -> None:
    """Store an error for the calling program; only the first one is kept."""
    known = failure if isinstance(failure, MeshrunError) else RunError(describe(failure))
    temporary = folder / f"{ERROR}.{os.getpid()}"
    temporary.write_bytes(pickle.dumps(known))
    with contextlib.suppress(FileExistsError):
        os.link(temporary, folder / ERROR)


def keep_record(folder: Path, record: Record) -> None:
    """Store the record for the calling program. On rank 0."""
    (folder / RECORD).write_text(json.dumps(record))
