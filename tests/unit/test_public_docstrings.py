"""Docstrings of public names have numpydoc sections, which the site renders as lists."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import meshrun

SECTION = re.compile(r"^(\w[\w ]*)\n-+\n", re.MULTILINE)
WITHOUT_RESULT = {"save", "write_block"}
HIDDEN = {"layout", "filled"}  # fields of a distributed array that no program needs
ITEM = re.compile(r"(?P<names>\*{0,2}\w+(, \*{0,2}\w+)*) : \S.*")
NAME = re.compile(r"\w+")


def sections(documented: Any) -> dict[str, str]:
    """The sections of a docstring by title; the text before them as ""."""
    first, *others = SECTION.split(inspect.getdoc(documented) or "")
    return {"": first, **dict(zip(others[::2], others[1::2], strict=True))}


def items(section: str) -> dict[str, str]:
    """The items of a section with named items: what describes each. Asserts their form."""
    described: dict[str, str] = {}
    names: list[str] = []
    for line in filter(None, section.splitlines()):
        if line.startswith("    "):
            assert names, f"describes no item: {line!r}"
            described |= {name: f"{described[name]} {line.strip()}" for name in names}
        else:
            found = ITEM.fullmatch(line)
            assert found, f"no `name : type`: {line!r}"
            names = [name.strip("* ") for name in found["names"].split(",")]
            described |= dict.fromkeys(names, "")
    assert all(described.values()), f"no description: {described}"
    return described


def public_methods() -> Iterator[Any]:
    for name in meshrun.__all__:
        value = getattr(meshrun, name)
        if inspect.isclass(value) and not issubclass(value, Exception):
            for method in vars(value).values():
                if inspect.isfunction(method) and method.__doc__ and not method.__name__.startswith("_"):
                    yield pytest.param(method, id=f"{name}.{method.__name__}")


@pytest.mark.parametrize("name", meshrun.__all__)
def test_a_public_name_has_parameters_errors_and_an_example(name: str) -> None:
    value = getattr(meshrun, name)
    found = sections(value)
    assert ">>> " in found["Examples"]
    if inspect.isclass(value):
        fields = (
            {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
        )
        described = {**items(found.get("Parameters", "")), **items(found.get("Attributes", ""))}
        assert fields - {name for name in fields if name.startswith("_")} <= set(described) | HIDDEN
        return
    assert set(items(found["Parameters"])) == {*inspect.signature(value).parameters}
    assert re.match(r"\w+Error\n    \w", found["Raises"])
    assert name in WITHOUT_RESULT or re.match(r".+\n    \w", found["Returns"])


@pytest.mark.parametrize("method", [*public_methods()])
def test_a_public_method_describes_its_parameters(method: Any) -> None:
    found = sections(method)
    assert found[""]
    parameters = {*inspect.signature(method).parameters} - {"self"}
    assert set(items(found.get("Parameters", ""))) == parameters


@pytest.mark.parametrize("name", meshrun.__all__)
def test_an_example_is_python(name: str) -> None:
    for example in doctest.DocTestParser().get_examples(inspect.getdoc(getattr(meshrun, name)) or ""):
        compile(example.source, name, "exec")
