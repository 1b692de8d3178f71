"""Functions as bytes, for other processes: those of notebooks and of this program by value."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """Return a value, with the functions that it uses, as bytes for `cloudpickle.loads`."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Keeps the files of functions, which errors name: from version 3.1.3 on, cloudpickle leaves them out."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            return _code_of_file, (value.co_filename, *self.dispatch_table[CodeType](value))
        return super().reducer_override(value)


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)
