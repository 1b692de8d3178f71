"""Functions as bytes, for other processes: those of notebooks and of this program by value."""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """Return a value, with the functions that it uses, as bytes for `cloudpickle.loads`."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _reduced(code: CodeType) -> tuple[Any, ...]:
    """Reduce as cloudpickle does, but keep the file: errors name it, and version 3.1.3 leaves it out."""
    return _code_of_file, (code.co_filename, *cloudpickle.Pickler.dispatch_table[CodeType](code))


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)


_TABLE = ChainMap({CodeType: _reduced}, cloudpickle.Pickler.dispatch_table)
_Pickler: Any = type("_Pickler", (cloudpickle.Pickler,), {"dispatch_table": _TABLE})
