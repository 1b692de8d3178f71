"""The files of a run: how many, by what names, and whether they can be read and written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from meshrun.runner.errors import UserError
from meshrun.runner.files import remove_path
from meshrun.runner.job.declaration import Job
from meshrun.runner.job.discover import names as installed
from meshrun.runner.job.signature import renamed_options
from meshrun.runner.options.run_options import Options
from meshrun.runner.report.record import STDOUT
from meshrun.runner.report.units import counted
from meshrun.runner.spelling import option, run_command
from meshrun.runner.storage.formats.containers import prefixes
from meshrun.runner.storage.formats.image_folder import Folder, check_output_folder, open_folder
from meshrun.runner.storage.formats.registry import (
    FOLDERS,
    Source,
    array_at,
    check_output,
    check_place,
    is_same_array,
)
from meshrun.runner.storage.paths import BESIDE, abandoned, named, split, suffix
from meshrun.runner.storage.series_file import check_series
from meshrun.runner.storage.transaction import OutputTransaction

Files = str | Path | Sequence[str | Path] | None
Place = tuple[Path, str | None]  # a file or folder, and the name of an array in it


def as_list(paths: Files) -> list[str | Path]:
    """Return one path, several or None as a list."""
    if paths is None:
        return []
    return [paths] if isinstance(paths, (str, Path)) else list(paths)


def writes_files(job: Job) -> bool:
    return job.kind == "map" or bool({"output", "create", "simulate"} & job.services)


def name_files(
    job: Job, inputs: Sequence[str | Path], outputs: Sequence[str | Path]
) -> tuple[list[Path], list[Path]]:
    """Return the paths of inputs and outputs; raises UserError if their number is not the job's.

    The film of a simulation may be missing, or "-".
    """
    if "simulate" in job.services and [str(one) for one in outputs] == ["-"]:
        outputs = []  # no film
    if not (writes_files(job) or job.whole_rows) and outputs:
        raise UserError(f"job {job.name} writes no file", got=f"OUTPUT {outputs[0]}", hint="leave OUTPUT out")
    optional = job.whole_rows or "simulate" in job.services
    writes = len(outputs) == 1 if optional else writes_files(job)
    wanted = (job.arrays, job.result_names if writes else ())
    if (len(inputs), len(outputs)) != tuple(map(len, wanted)):
        if len(inputs) == len(wanted[0]) == len(wanted[1]) == 1 and not outputs:
            raise UserError(
                f"job {job.name} writes a file: OUTPUT is missing",
                expected="OUTPUT after INPUT",
                hint=run_command(f"{job.name} {inputs[0]} OUTPUT") if job.name in installed() else None,
            )
        raise wrong_number(job, [*inputs, *outputs])
    several = sum(map(len, wanted)) > 2
    names = file_names(job) if several else ["INPUT", "OUTPUT"]
    paths = [named(name, path) for name, path in zip(names, [*inputs, *outputs], strict=False)]
    return paths[: len(inputs)], paths[len(inputs) :]


def file_names(job: Job) -> list[str]:
    """Return a name for each file of a job, in order: its inputs, then its outputs."""
    return [name.upper() for name in (*job.arrays, *(job.result_names if writes_files(job) else ()))]


def wrong_number(job: Job, paths: Sequence[str | Path]) -> UserError:
    """Build the error for too few or too many files: it lists them by name."""
    given = zip(file_names(job), paths, strict=False)
    missing = file_names(job)[len(paths) :]
    rest = [str(path) for path in paths[len(file_names(job)) :]]
    listed = [f"{name} = {path}" for name, path in given]
    listed += [f"{name} is missing" for name in missing] + [f"{path} is one too many" for path in rest]
    ins, outs = len(job.arrays), len(file_names(job)) - len(job.arrays)
    hint = job.option_hint(job.arrays[-1]) if missing and job.kind == "map" and ins > 1 else None
    return UserError(
        f"job {job.name} takes {counted(ins, 'input')} and writes {counted(outs, 'output')}",
        got=f"{counted(len(paths), 'file')}: {'; '.join(listed)}",
        expected=" ".join(file_names(job)),
        hint=hint,
    )


def check_files(
    job: Job,
    parameters: dict[str, Any],
    paths: tuple[list[Path], list[Path]],
    options: Options,
    transaction: OutputTransaction,
) -> Folder | None:
    """Refuse files that could not be written, before any work. Returns the input if it is a folder.

    Locks the outputs until the run ends, and then removes what runs that were killed have left of them.
    """
    inputs, targets = paths
    of_images = len(inputs) == 1 and job.opens_input and os.path.isdir(inputs[0])
    folder = open_folder(inputs[0]) if of_images else None
    for target in targets[: len(targets) - len(job.series)]:
        _check_target(job, target, folder)
    for name, target in zip(job.series, targets[len(targets) - len(job.series) :], strict=True):
        check_series(name, target)
        check_place(target, "output", beside=BESIDE)
    more: tuple[tuple[str, str | None], ...] = (
        ("json", options.json),
        ("timeline", options.stream.timeline),
        ("frames", options.steps.frames),
    )
    of_job = {name: file for name, (file, _) in _path_parameters(job, parameters).items()}
    read = ("INPUT", *of_job)
    given: list[tuple[str, Path | str]] = [
        *(("INPUT", path) for path in inputs),
        *of_job.items(),
        *(("OUTPUT", path) for path in targets),
        *((option(name), path) for name, path in more if path is not None),
    ]
    if options.json not in (None, STDOUT):
        check_place(Path(options.json), "record")
    for (one, first), (other, second) in combinations(given, 2):
        if one in of_job and other in ("OUTPUT", option("frames")) and job.kind != "job":
            _check_outside(one, Path(first), split(named(other, second))[0])
        # An input may be read twice, and an old file is replaced only when the new one is complete.
        if one in read and other in (*read, "OUTPUT"):
            continue
        if one == other == "OUTPUT":
            _check_two_outputs(Path(first), Path(second))
            continue
        if same_file(split(named(one, first))[0], split(named(other, second))[0]):
            raise UserError(f"{one} and {other} name the same file", got=second, expected="two files")
    if targets:
        transaction.lock(*(split(target)[0] for target in targets))
        if "simulate" not in job.services:  # whose films go on in a resumed run
            for left in (left for target in targets for left in abandoned(target)):
                with contextlib.suppress(OSError):
                    remove_path(left)
    return folder


def check_no_overwrite(
    job: Job,
    parameters: dict[str, Any],
    paths: tuple[list[Path], list[Path]],
    sources: Sequence[Source],
    options: Options,
) -> None:
    """Raise UserError for an output that is an input, unless that is allowed, or that lies inside one.

    Links to a file are the file. Nothing is an input that does not exist. sources: the opened inputs; none of
    a folder.
    """
    inputs, targets = paths
    opened = [(source.path, source.name) for source in sources] or [split(path) for path in inputs]
    read = [*(("INPUT", place) for place in opened), *_path_parameters(job, parameters).items()]
    for target in targets:
        file, name = array_at(target)
        for what, place in read:
            shown = place[0] if place[1] is None else f"{place[0]}:{place[1]}"
            if not place[0].exists():
                continue
            if suffix(place[0]) in FOLDERS and _inside(_folder(file, name), _folder(*place)):
                raise UserError(f"OUTPUT {target} lies inside {what} {shown}", hint="another folder")
            # A job that is not made by map_blocks replaces the whole file, rather than an array in it.
            if not options.overwrite_input and _replaces((file, name), place, job.kind != "map"):
                same = "is" if (file, name or None) == (place[0], place[1] or None) else "is the same as"
                same = "contains" if _inside(_folder(*place), _folder(file, name)) else same
                raise UserError(
                    f"OUTPUT {target} {same} {what} {shown}, which the run would replace",
                    hint=f"another name for OUTPUT, or {option('overwrite_input', True)}",
                )


def _path_parameters(job: Job, parameters: dict[str, Any]) -> dict[str, tuple[Path, str | None]]:
    """Return the files that a job's own parameters name, by their option."""
    given = [one.name for one in job.parameters if one.type is Path and parameters[one.name] is not None]
    renamed = renamed_options(job.parameters) if given else ()
    names = [f"parameter {name}" if name in renamed else option(name) for name in given]
    return {name: split(Path(parameters[own])) for name, own in zip(names, given, strict=True)}


def _check_target(job: Job, target: Path, folder: Folder | None) -> None:
    """Refuse an output that could not be written. folder: the input, if it is one of images."""
    if "simulate" in job.services:  # a film, whose format is checked with the other options of frames
        if target.name in ("", ".."):
            raise UserError("OUTPUT has no name of its own", got=target, expected="a file or folder")
    elif folder is None:
        check_output(target, alone=job.kind != "map")
    else:
        check_output_folder(target, folder.images)


def _check_outside(parameter: str, folder: Path, target: Path) -> None:
    """Refuse a file that is written in a folder that a parameter names: what is in it must not change."""
    if folder.is_dir() and target.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"the folder of {parameter} must not change during the run",
            got=f"{target}, a file in {folder}",
            expected="files that are written elsewhere",
        )


def _check_two_outputs(first: Path, second: Path) -> None:
    """Refuse two outputs in one file, unless they are two arrays of a container, neither inside the other."""
    (file, name), (other_file, other) = array_at(first), array_at(second)
    if file.resolve() != other_file.resolve():
        return
    if name is None or other is None:
        raise UserError("two outputs are the same file", got=second, expected="two files")
    if name == other:
        raise UserError("two outputs are the same array", got=second, expected="two names")
    if name in prefixes(other) or other in prefixes(name):
        raise UserError("one output is inside another", got=f"{first} and {second}", expected="two arrays")
    if file != other_file:
        raise UserError("two outputs name one file by different paths", got=f"{first} and {second}")


def _replaces(target: Place, place: Place, whole: bool) -> bool:
    (file, name), (other_file, other) = target, place
    if not same_file(file, other_file):
        # A folder is replaced with all that is in it; an array of a store may also be given as a folder.
        one, another = _folder(file, name), _folder(other_file, other)
        return suffix(file) in FOLDERS and (same_file(one, another) or _inside(another, one))
    return whole or name is None or is_same_array(file, name, other or "")


def _folder(file: Path, name: str | None) -> Path:
    """Return the folder of an array in a Zarr store; another file is its own."""
    return file / (name or "") if suffix(file) in FOLDERS else file


def same_file(one: Path, other: Path) -> bool:
    """Return whether two paths are the same file or folder, which need not exist."""
    if one.exists() and other.exists():
        return os.path.samefile(one, other)
    return one.resolve() == other.resolve()


def _inside(path: Path, folder: Path) -> bool:
    """Return whether a path is in a folder or in a folder of it."""
    return any(same_file(parent, folder) for parent in path.resolve().parents)
