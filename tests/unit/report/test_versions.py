"""Versions of installed packages."""

from __future__ import annotations

import importlib.metadata

from meshrun.runner.report.versions import installed_version


def test_a_version_is_that_of_the_installation() -> None:
    assert installed_version("numpy") == importlib.metadata.version("numpy")


def test_what_is_not_installed_has_none() -> None:
    assert installed_version("no-such-package-anywhere") is None
