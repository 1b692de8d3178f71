"""Everything here needs a GPU, and says so where there is none."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing_gpu()
    if reason:
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason=reason))


def missing_gpu() -> str | None:
    """Why GPU tests cannot run here; None when they can."""
    try:
        from runner.backend import cuda
    except ImportError as reason:
        return f"no CuPy: {reason}"
    return None if cuda.count() else "CuPy is here, a GPU is not"
