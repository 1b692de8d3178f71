"""Records: dicts of plain values with a common envelope, written as JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from meshrun.runner import files
from meshrun.runner.errors import RunError, show

Record = dict[str, Any]
SCHEMA = 2  # of a run's record
STDOUT = "-"  # the name under which a record goes to standard output
_RESERVED: list[TextIO] = []


def stdout() -> TextIO:
    """Return the stream of a record that goes to standard output."""
    return _RESERVED[-1] if _RESERVED else sys.stdout


@contextmanager
def stdout_for(file: str | Path | None) -> Iterator[None]:
    """Keep standard output for a record whose file is "-": what else is written there inside, by Python or by
    libraries such as NCCL, goes to standard error. Does nothing where sys.stdout has been replaced."""
    try:
        replaced = sys.stdout.fileno() != 1
    except (OSError, ValueError, AttributeError):  # no file, closed, none
        replaced = True
    if replaced or str(file) != STDOUT:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    stream = os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    _RESERVED.append(stream)
    try:
        yield
    finally:
        _RESERVED.pop()
        sys.stdout.flush()
        os.dup2(kept, 1)
        with suppress(OSError):  # what could not be written has been told
            stream.close()


def envelope(kind: str, version: int, payload: Mapping[str, Any]) -> Record:
    """The payload as a record: `schema`, `kind` and `version` first.

    kind: type of the record, such as "run" or "plan". version: of this kind's keys.
    schema: the version again, unless the payload has one. A payload's own `kind` or `version`, from formats
    older than the envelope, is kept.
    """
    return {"schema": version, "kind": kind, "version": version, **payload}


def type_record(array: tuple[Sequence[int], np.dtype[Any]]) -> dict[str, Any]:
    """Return an array's shape and dtype as plain values."""
    return {"shape": list(array[0]), "dtype": str(array[1])}


def json_text(kind: str, version: int, payload: Mapping[str, Any]) -> str:
    """The record as a JSON document that ends in a newline; NaN and infinities are null."""
    record = plain(envelope(kind, version, payload), texts=False)
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def write_json(path: Path, kind: str, version: int, payload: Mapping[str, Any]) -> None:
    """Write the record as JSON, atomically, or to standard output if the path is "-". Raises RunError."""
    if str(path) == STDOUT:
        show(json_text(kind, version, payload), stdout())
        return
    try:
        files.write_file(path, json_text(kind, version, payload))
    except OSError as reason:
        raise RunError(f"cannot write the record {path}", why=reason.strerror or reason) from reason


def plain(value: Any, *, texts: bool = True) -> Any:
    """A value in JSON's types: NumPy's as lists and numbers, complex numbers as [real, imaginary].

    NaN and infinities, which JSON lacks, become the texts "nan", "inf" and "-inf", or None if not `texts`:
    then RunError is raised for values of types that JSON lacks, which stay as they are otherwise.
    """
    if isinstance(value, dict):
        return {str(key): plain(item, texts=texts) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, texts=texts) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist(), texts=texts)
    if isinstance(value, complex):
        return plain([value.real, value.imag], texts=texts)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value) if texts else None
    if isinstance(value, Path):
        return str(value)
    if not texts and not isinstance(value, (str, int, float, type(None))):
        raise RunError(
            "a record cannot hold a value of this kind",
            got=type(value).__name__,
            expected="numbers, texts, arrays, and lists and dictionaries of them",
        )
    return value
