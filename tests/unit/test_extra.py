"""The extra `test`: what is missing of it would be skipped without a word to whoever runs the tests."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement


def test_all_that_the_tests_need_is_installed() -> None:
    needed = [Requirement(words) for words in metadata.requires("meshrun") or []]
    chosen = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": "test"})]
    assert len(chosen) > 20
    missing = []
    for one in chosen:
        try:
            version = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            version = "none"
        if version == "none" or version not in one.specifier:
            missing.append(f"{one}: {version} is installed")
    assert missing == []
