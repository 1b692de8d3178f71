"""Tables in time: parameters of a function that are files or arrays with a row for each step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshrun.runner.errors import UserError

if TYPE_CHECKING:
    from meshrun.runner.region import HostArray

LARGEST = 64 << 20  # bytes of a table; every rank has all of it
FILES = (".npy", ".csv")
Parameters = dict[str, Any]  # of a job, by name


class Series:
    """A table in time, as the annotation of a parameter: `def shot(u, *, step, wavelet: meshrun.Series)`.

    The parameter is given as a file, .npy or .csv, or as an array. The function gets a NumPy array, from
    which it takes rows by the number of the step: `wavelet[step]`, `wavelet[step + 1]`, `table[step, 3]`.
    A run that would take a row beyond the table's end is refused before its first step.

    Parameters
    ----------
    values : array_like
        Numbers, with the steps along the first axis; at most 64 MiB.
    path : Path, optional
        The file that holds them.

    Raises
    ------
    UserError
        For values that are no table of numbers, and for a file that cannot be read as one.

    Examples
    --------
    >>> Series([0.0, 0.5, 1.0]).values[2]
    np.float64(1.0)
    """

    def __init__(self, values: Any, path: Path | None = None) -> None:
        import numpy as np  # not for the help

        self.path = path
        self.values: HostArray = np.ascontiguousarray(values)
        name = str(path) if path is not None else "the array"
        if self.values.dtype.kind not in "biufc" or np.ndim(values) == 0:
            raise UserError(
                f"{name} is no table in time",
                got=f"{self.values.dtype} of shape {np.shape(values)}",
                expected="numbers, with the steps along the first axis",
            )
        if self.values.nbytes > LARGEST:
            raise UserError(
                f"{name} is too large for a table in time, which every rank keeps",
                got=f"{self.values.nbytes:,} bytes",
                expected=f"at most {LARGEST:,}",
            )
        self.values = self.values.astype(self.values.dtype.newbyteorder("="), copy=False)
        self.values.flags.writeable = False  # one table for all calls

    def __str__(self) -> str:
        """Return the path of the file, or what the array is: the same text for the same values."""
        if self.path is not None:
            return str(self.path)
        import hashlib  # loads OpenSSL

        digest = hashlib.sha256(self.values.tobytes()).hexdigest()[:16]
        shape = "x".join(map(str, self.values.shape))
        return f"{self.values.dtype} of shape {shape}, SHA-256 {digest}"


def read_series(value: Any) -> Series:
    """Return a table in time from a path or an array; TypeError for another value, UserError as `Series`."""
    if isinstance(value, Series):
        return value
    if isinstance(value, (str, os.PathLike)):
        return _read_file(Path(value))
    if not hasattr(value, "__array__") and not isinstance(value, (list, tuple)):
        raise TypeError
    return Series(value.get() if hasattr(value, "__cuda_array_interface__") else value)


def _read_file(path: Path) -> Series:
    import numpy as np

    if path.suffix.lower() not in FILES:
        raise UserError(f"{path} is no table in time", expected=f"a file that ends in {' or '.join(FILES)}")
    try:
        if path.suffix.lower() == ".npy":
            return Series(np.load(path, allow_pickle=False), path)
        return Series(_read_csv(path), path)
    except OSError as reason:
        raise UserError(f"cannot read {path}", why=reason.strerror or reason) from reason
    except ValueError as reason:
        raise UserError(f"cannot read {path} as a table of numbers", why=reason) from reason


def _read_csv(path: Path) -> Any:
    """Return the numbers of a file with commas between columns; its first line may name the columns."""
    import numpy as np

    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    names = bool(lines) and not all(map(_is_number, lines[0].split(",")))
    if len(lines) == names:
        raise ValueError("it has no rows")
    table = np.loadtxt(lines[names:], delimiter=",", ndmin=2)
    return table[:, 0] if table.shape[1] == 1 else table


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
