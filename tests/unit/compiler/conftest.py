"""The host's compiler, and a folder of libraries that lasts as long as the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.runner.system.compiler import Compiler, find_compiler


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    found = find_compiler()
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")
