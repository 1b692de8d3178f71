"""A run from Python on several ranks of this machine, when no MPI launcher has started this program.

The job, which may be a function in a notebook, is written to a temporary folder with the call's arguments.
`meshrun -n RANKS call FOLDER` starts the ranks, and each reads the folder. Arrays are files in it: in memory
(/dev/shm) if there is room. The record or the error is returned in a file in the folder.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np

from runner import lock
from runner.errors import MeshrunError, RunError, UserError, describe
from runner.job.declaration import Job
from runner.job.pickling import dumps
from runner.plan.task import check_numbers
from runner.report.record import Record
from runner.run.array_call import host_array
from runner.run.options import Options, whole_number
from runner.system.host_memory import memory_folder
from runner.system.launcher import detect_launcher

PROGRAM = (sys.executable, str(Path(__file__).resolve().parents[2] / "launch" / "__main__.py"))
COPIES = 3  # of the arrays: the files, and the blocks and results of the ranks
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
            "Invalid value for '--ranks'", got=repr(ranks), expected="a number of ranks, 1 or more"
        )
    detected = detect_launcher()
    if detected is not None and detected.size is not None and detected.size != number:
        raise UserError(
            "this program is already a rank of an MPI launcher",
            got=f"ranks={number}",
            expected=f"{detected.size}, or no ranks=",
        )
    return None if detected is not None or number == 1 else number


@contextlib.contextmanager
def files_of(
    job: Job, inputs: Arguments, outputs: Arguments, options: Options, *, alone: bool
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield paths for inputs and outputs: arrays are saved before, and filled from the results afterwards.

    options: of the run. alone: this program is the only rank. Raises UserError if arrays are passed by
    several ranks, if an array does not fit its result, or if it shares memory with an input.
    """
    arrays = [value for value in (*inputs, *outputs) if is_array(value)]
    if not arrays:
        yield [str(value) for value in inputs], [str(value) for value in outputs]
        return
    if not alone:
        raise UserError("arrays cannot be passed to a run of several programs", hint="paths of .npy files")
    if not options.overwrite_input:
        _check_apart(job, inputs, outputs)
    for name, value in zip(job.output_names, outputs, strict=False):
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            raise UserError(f"job {job.name}: the array for the result {name} is read-only")
    for (one, first), (other, second) in combinations(zip(job.output_names, outputs, strict=False), 2):
        if is_array(first) and is_array(second) and share_memory(first, second):
            raise UserError(f"job {job.name}: the arrays for the results {one} and {other} share memory")
    with _folder(sum(int(array.nbytes) for array in arrays)) as folder:
        ins, outs = [], []
        for name, value in zip(job.arrays, inputs, strict=False):
            ins.append(str(folder / f"input-{name}.npy") if is_array(value) else str(value))
            if is_array(value):
                array = value.get() if hasattr(value, "get") else host_array(value)
                check_numbers(name, len(job.arrays), array.dtype)
                np.save(ins[-1], array)
        for name, value in zip(job.output_names, outputs, strict=False):
            outs.append(str(folder / f"output-{name}.npy") if is_array(value) else str(value))
        yield ins + [str(value) for value in inputs[len(ins) :]], outs
        filled = [
            (name, value, np.load(path, mmap_mode="r"))
            for name, value, path in zip(job.output_names, outputs, outs, strict=False)
            if is_array(value)
        ]
        for name, value, result in filled:
            _check_fits(job, name, value, result)
        for _, value, result in filled:
            _fill(value, result)


def _check_apart(job: Job, inputs: Arguments, outputs: Arguments) -> None:
    """Raise UserError for a result's array that has memory of an input's."""
    for (name, array), (result, filled) in product(
        zip(job.arrays, inputs, strict=False), zip(job.output_names, outputs, strict=False)
    ):
        if is_array(array) and is_array(filled) and share_memory(array, filled):
            raise UserError(
                f"job {job.name}: the array for the result {result} shares memory with the input {name}, "
                "which the run would replace",
                hint="another array, or --overwrite-input",
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
def _folder(size: int) -> Iterator[Path]:
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
    with _folder(0) as folder:
        call = PythonCall(job, list(inputs), list(outputs), parameters, options)
        (folder / PATH).write_text(json.dumps([os.path.abspath(place) for place in sys.path]))
        (folder / CALL).write_bytes(_pickled(call))
        command = [*PROGRAM, "-n", str(ranks), "call", str(folder)]
        with subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="backslashreplace",  # a job may print anything
        ) as process:
            lines: list[str] = []
            reader = threading.Thread(target=_forward, args=(process.stderr, lines))
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
        raise _error(folder, status, lines)


def _pickled(call: PythonCall) -> bytes:
    """Return the call as bytes: the functions of the job's module with their globals as they are now; if some
    of these cannot be sent, the ranks import the module."""
    module = sys.modules.get(getattr(call.job.function, "__module__", None) or "")
    for modules in ([module], []) if module is not None and not _is_installed(module) else ([],):
        try:
            return dumps(call, *modules)
        except Exception as failure:  # an object may raise anything when it is pickled
            reason = failure
    raise UserError(
        f"job {call.job.name} cannot be sent to other ranks",
        why=describe(reason),
        hint="define everything that it uses inside the function, or in a file that it imports",
    ) from reason


def _is_installed(module: ModuleType) -> bool:
    """Return whether a module is of a package that is installed, such as this one."""
    file = getattr(module, "__file__", None)
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    ours = module.__name__.partition(".")[0] in ("runner", "jobs", "meshrun")
    return ours or (file is not None and any(Path(file).is_relative_to(place) for place in places))


def _forward(stream: Any, lines: list[str]) -> None:
    """Keep the ranks' lines and write them to stderr, to the end, as ranks wait for their reader."""
    for line in stream:
        lines.append(line.rstrip("\n"))
        if not line.startswith("meshrun: ") or line.startswith("meshrun: warning: "):  # an error is raised
            with contextlib.suppress(OSError, ValueError):  # a full disk, a closed stream
                sys.stderr.write(line)


def _error(folder: Path, status: int, lines: Sequence[str]) -> MeshrunError:
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
    sys.path[:] = [*dict.fromkeys([*sys.path, *path])]  # before the call's functions import their modules
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
