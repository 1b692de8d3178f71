"""Versions of installed packages, for records."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def installed_version(package: str) -> str | None:
    """Return a package's version; None if it is not installed. Read once: its metadata are a whole file."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
