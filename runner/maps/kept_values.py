"""What a function keeps from one call to the next: variables and objects from outside of it.

`if mean is None: mean = block.mean()` keeps the mean of the first block that a process computes. That may be
a small array on which the function is only tried, and it is another block on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import CellType, ModuleType
from typing import Any

import numpy as np

from meshrun.runner.compiler.lint.source import LIBRARIES, functions_of, named, names_in
from meshrun.runner.job.declaration import Job

MOST_OBJECTS = 2000  # lists, dictionaries, arrays and what else may change, that are noted
MOST_BYTES = 1 << 18  # of the arrays that are noted
DEEPEST = 4  # objects in each other
MISSING = object()


@dataclass
class KeptValues:
    """The variables outside of functions, and what they hold, as they were at one moment.

    Objects of libraries, such as random generators, are not noted, nor are files and the environment.

    variables: a namespace or a cell, a name in it, and its value. contents: lists, dictionaries, sets, arrays
    and user's objects, each with a copy of what it holds.
    """

    variables: list[tuple[dict[str, Any] | CellType, str, Any]] = field(default_factory=list)
    contents: list[tuple[Any, Any]] = field(default_factory=list)
    _seen: dict[int, Any] = field(default_factory=dict)
    _bytes: int = 0

    @classmethod
    def of(cls, function: Callable[..., Any], parameters: Mapping[str, Any]) -> KeptValues:
        """Return what a function and those that it calls may change, as it is at this moment.

        parameters: by name, as the function gets them.
        """
        kept = cls()
        kept._note_all([getattr(function, "__self__", None), *parameters.values()], DEEPEST)
        for each in functions_of(function):
            code, values = each.__code__, named(each)
            names = [*dict.fromkeys(names_in(code))]
            # Note which objects the names stand for: globals, attributes of modules, variables around it.
            users = [one for one in values.values() if isinstance(one, ModuleType) and _is_users(one)]
            for space in (each.__globals__, *map(vars, users)):
                kept.variables += ((space, name, space.get(name, MISSING)) for name in names)
            kept.variables += (
                (cell, name, values.get(name, MISSING))
                for name, cell in zip(code.co_freevars, each.__closure__ or (), strict=True)
            )
            # Note what these objects hold.
            kept._note_all([vars(each), each.__defaults__, each.__kwdefaults__, *values.values()], DEEPEST)
        return kept

    def restore(self) -> None:
        """Set all variables and objects back to what they were."""
        for holder, name, value in self.variables:
            if isinstance(holder, CellType):
                if value is not MISSING:
                    holder.cell_contents = value
                elif holder != CellType():
                    del holder.cell_contents
            elif value is MISSING:
                holder.pop(name, None)
            elif holder.get(name, MISSING) is not value:
                holder[name] = value
        for value, copy in self.contents:
            _restore_contents(value, copy)

    def _note_all(self, values: Iterable[Any], depth: int) -> None:
        """Copy what values hold that may change, and what is held in these."""
        for value in values:
            if id(value) in self._seen or depth == 0 or len(self._seen) >= MOST_OBJECTS:
                continue
            self._seen[id(value)] = value  # an address is an object's as long as it lives
            if type(value) is np.ndarray and self._bytes + value.nbytes <= MOST_BYTES:
                self._bytes += value.nbytes
                self.contents.append((value, value.copy()))
            elif isinstance(value, (list, set)):
                self.contents.append((value, [*value]))
                self._note_all(value, depth - 1)
            elif isinstance(value, tuple):
                self._note_all(value, depth - 1)
            elif isinstance(value, dict):
                self.contents.append((value, dict(value)))
                self._note_all(value.values(), depth - 1)
            elif isinstance(value, Job):  # the function itself, as it is called in its module
                self.contents.append((value, _attributes(value)))
            elif hasattr(value, "__dict__") and not isinstance(value, ModuleType) and _is_users(value):
                attributes = _attributes(value)
                self.contents.append((value, attributes))
                self._note_all((one for _, one in attributes), depth - 1)


def _are_same(values: Collection[Any], others: Collection[Any]) -> bool:
    """Return whether two collections have the same objects in the same order."""
    return len(values) == len(others) and all(a is b for a, b in zip(values, others, strict=True))


def _is_users(value: Any) -> bool:
    """Return whether a module, a class or an object of a class is the user's."""
    if isinstance(value, ModuleType):
        module = value.__name__
    else:
        module = (value if isinstance(value, type) else type(value)).__module__
    return module.split(".")[0] not in {*LIBRARIES, "meshrun"}


def _attributes(value: Any) -> list[tuple[str, Any]]:
    return [(name, one) for name, one in vars(value).items() if not name.startswith("__")]


def _restore_contents(value: Any, copy: Any) -> None:
    """Set what an object holds back to a copy, if it has changed: other threads may read it."""
    if type(value) is np.ndarray:
        if value.flags.writeable and value.tobytes() != copy.tobytes():
            value[...] = copy
    elif isinstance(value, list):
        if not _are_same(value, copy):
            value[:] = copy
    elif isinstance(value, (set, dict)):
        same = [*value] == [*copy] if isinstance(value, dict) else value == {*copy}
        if not same or (isinstance(value, dict) and not _are_same(value.values(), copy.values())):
            value.clear()
            value.update(copy)
    else:
        _restore_attributes(value, copy)


def _restore_attributes(value: Any, attributes: list[tuple[str, Any]]) -> None:
    """Set the attributes of an object or a class back, where they have changed."""
    kept, present = dict(attributes), dict(_attributes(value))
    for name in present.keys() - kept.keys():
        delattr(value, name)
    for name, one in kept.items():
        if present.get(name, MISSING) is not one:
            setattr(value, name, one)
