"""Imports as progress: a rank that loads a large package from a slow file system is not stuck."""

from __future__ import annotations

import sys


class ImportCounter:
    """Counts the names of modules that are looked for, in `counter[0]`: each once, as a loop that tries one
    again and again makes no progress. It is in `sys.meta_path`, and finds no module itself."""

    def __init__(self, counter: memoryview) -> None:
        self._counter = counter
        self._known: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name not in self._known:
            self._known.add(name)
            self._counter[0] = len(self._known)

    def start(self) -> None:
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
