"""What the decorators read from a plain function: its options, their help, and what it asks for."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.job.declaration import Job
from meshrun.runner.run.declare import job, map_blocks, reduce_blocks

if TYPE_CHECKING:
    from somewhere import OnlyForTheTypeChecker


@map_blocks(halo=1, boundary="nearest")
def edges(
    block: Any,
    *,
    out: Any,
    xp: Any,
    gain: float = 1.0,
    rounds: int = 2,
    mode: Literal["fast", "exact"] = "fast",
    weights: Path | None = None,
    name: str | None = None,
    verbose: bool = False,
    threshold: float,
) -> None:
    """Laplacian edge filter.

    More about it: this is not an option.

    gain: factor on the result
    rounds: how often, where one line is
        not enough to say it,
        and two are not either
    threshold: what counts as an edge
    """


def test_options_have_name_type_default_and_help() -> None:
    assert [(p.name, p.type, p.default, p.required) for p in edges.parameters] == [
        ("gain", float, 1.0, False),
        ("rounds", int, 2, False),
        ("mode", ("fast", "exact"), "fast", False),
        ("weights", Path, None, False),
        ("name", str, None, False),
        ("verbose", bool, False, False),
        ("threshold", float, None, True),
    ]
    helps = {p.name: p.help for p in edges.parameters}
    assert helps["gain"] == "factor on the result"
    assert helps["rounds"] == "how often, where one line is not enough to say it, and two are not either"
    assert helps["threshold"] == "what counts as an edge"
    assert helps["mode"] == ""


def test_a_job_knows_what_it_is() -> None:
    assert (edges.name, edges.kind, edges.summary) == ("edges", "map", "Laplacian edge filter.")
    assert edges.services == {"out", "xp"}
    assert (edges.halo, edges.boundary) == (1, "nearest")


def test_the_function_stays_callable() -> None:
    @map_blocks
    def double(block: Any) -> Any:
        return 2 * block

    assert double.function(np.arange(3)).tolist() == [0, 2, 4]


def test_decorators_with_and_without_parentheses() -> None:
    def function(block: Any) -> Any:
        return block

    for declared in (map_blocks(function), map_blocks()(function), map_blocks(name="other")(function)):
        assert isinstance(declared, Job)
        assert declared.function is function
    assert map_blocks(name="other")(function).name == "other"
    assert reduce_blocks(function, combine=max).combine is max
    assert reduce_blocks(combine=max, finish=abs)(function).finish(-3) == 3


def test_a_job_of_its_own_has_no_block() -> None:
    @job
    def everything(world: Any, output: Any = None, *, rounds: int = 3) -> dict[str, int]:
        return {}

    assert everything.kind == "job"
    assert [p.name for p in everything.parameters] == ["rounds"]
    assert everything.services == {"world", "output"}


def test_the_block_may_have_any_name_even_a_services() -> None:
    @map_blocks
    def function(input: Any, *, here: Any) -> Any:
        return input

    assert function.services == {"here"}


def test_an_option_without_annotation_takes_its_defaults_type() -> None:
    @map_blocks
    def function(block, *, a=1, b=2.5, c="x", d=True, e=None, f):
        return block

    assert [p.type for p in function.parameters] == [int, float, str, bool, object, object]


def test_a_halo_may_depend_on_the_parameters() -> None:
    wide = map_blocks(halo=lambda radius: (radius, 2 * radius))(radius_job)
    assert wide.halo_for({"radius": 3}) == (3, 6)
    assert edges.halo_for({"gain": 1.0}) == 1


def radius_job(block: Any, *, radius: int = 1) -> Any:
    return block


def test_parameters_are_completed_and_checked() -> None:
    complete = edges.complete({"threshold": 0.5, "rounds": 7})
    assert complete["threshold"] == 0.5
    assert complete["rounds"] == 7
    assert complete["gain"] == 1.0
    assert list(complete) == [p.name for p in edges.parameters]
    with pytest.raises(UserError, match=r"no such parameter: got gian, expected gain, rounds, .*Try: gain"):
        edges.complete({"gian": 2.0, "threshold": 1.0})
    with pytest.raises(UserError, match="needs a value for threshold"):
        edges.complete({})


def test_no_parameter_is_called_like_an_option_that_shows_help() -> None:
    def clash(block: Any, *, help: int = 1) -> Any:
        return block

    def other(block: Any, *, help_all: int = 1) -> Any:
        return block

    with pytest.raises(UserError, match="job clash: a parameter cannot be called help"):
        map_blocks(clash)
    with pytest.raises(UserError, match="job other: a parameter cannot be called help_all"):
        map_blocks(other)


def test_two_parameters_are_not_one_option() -> None:
    def clash(block: Any, *, wrap: bool = True, no_wrap: int = 1) -> Any:
        return block

    with pytest.raises(UserError, match="wrap and no_wrap would both be the option --no-wrap"):
        map_blocks(clash)


def unnamed_options(block, *rest):
    return block


def any_options(block, **rest):
    return block


def no_option_can_be_a_list(block: Any, *, sizes: list[int]) -> Any:
    return block


def a_type_of_unknown_name(block: Any, *, size: OnlyForTheTypeChecker) -> Any:
    return block


def neither_int_nor_text(block: Any, *, size: int | str = 1) -> Any:
    return block


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (unnamed_options, "rest"),
        (any_options, "rest"),
        (no_option_can_be_a_list, "sizes"),
        (a_type_of_unknown_name, "OnlyForTheTypeChecker"),
        (neither_int_nor_text, "size"),
        (lambda: None, "no parameter for an array"),
    ],
)
def test_signatures_that_no_command_line_can_have(function: Callable[..., Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        map_blocks(function)


def test_a_type_that_only_the_type_checker_knows_is_no_obstacle() -> None:
    def function(
        block: OnlyForTheTypeChecker, *, here: OnlyForTheTypeChecker, gain: float = 1.0
    ) -> OnlyForTheTypeChecker:
        return block

    assert [(p.name, p.type) for p in map_blocks(function).parameters] == [("gain", float)]


def test_an_unknown_boundary() -> None:
    with pytest.raises(UserError, match="got periodic, expected reflect, mirror, nearest, constant, wrap"):
        map_blocks(boundary="periodic")(radius_job)


def test_public_names_lead_to_what_they_say() -> None:
    assert meshrun.map_blocks is map_blocks
    assert meshrun.UserError is UserError
    for name in meshrun.__all__:  # also without CuPy, as for `help(meshrun)`
        assert callable(getattr(meshrun, name))
        assert name in dir(meshrun)
    with pytest.raises(AttributeError, match="'meshrun' has no attribute 'nothing'"):
        _ = meshrun.nothing


def test_a_kernel_without_cupy_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "meshrun.runner.device.cuda", raising=False)
    with pytest.raises(UserError, match=r"needs CuPy, which cannot be imported.*meshrun\[cuda12"):
        meshrun.kernel(tmp_path / "a.cu", "a")


def test_a_service_that_a_kind_does_not_get_is_refused() -> None:
    def total(block: Any, *, world: Any) -> float:
        return 0.0

    with pytest.raises(
        UserError, match=r"'world' is not available to a function of this kind.*expected here, xp"
    ):
        meshrun.reduce_blocks(combine=max)(total)
    with pytest.raises(UserError, match=r"'out' is not available to a function of this kind"):
        meshrun.job(lambda world, out: None)


# ---- functions beside the job's own: they get those of its parameters that they name


def test_a_reference_may_name_the_inputs_dtype() -> None:
    asked: list[Any] = []

    def exact(block: Any, *, input_dtype: Any, scale: float = 1.0) -> Any:
        asked.append(input_dtype)
        return block * scale

    for reference in (exact, lambda block, scale: block * scale, lambda block, **rest: block * rest["scale"]):

        @meshrun.map_blocks(reference=reference)
        def times(block: Any, *, scale: float = 1.0) -> Any:
            return block * scale

        assert times.reference is not None
        assert times.reference(3.0, scale=2.0, input_dtype=np.dtype(np.int64)) == 6.0
    assert asked == [np.dtype(np.int64)]
    with pytest.raises(UserError, match="check names input_dtype, which is not a parameter of the job"):
        meshrun.map_blocks(check=lambda shape, dtype, input_dtype: None)(lambda block: block)


def scaled(block: Any, *, scale: float = 1.0, offset: int = 0) -> Any:
    return block * scale + offset


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (lambda p: p, 6.0),
        (lambda p, scale: p * scale, 12.0),
        (lambda p, *, offset, scale: (p, scale, offset), (6.0, 2.0, 5)),
        (lambda p, **parameters: parameters, {"scale": 2.0, "offset": 5}),
        (lambda p, digits=1: (p, digits), (6.0, 1)),
        (lambda scale: scale, 6.0),  # the partial result, whatever its name
        (str, "6.0"),
        (np.negative, -6.0),
        (functools.partial(lambda p, k, scale: p + k * scale, k=10), 26.0),
    ],
)
def test_finish_gets_the_parameters_that_it_names(finish: Any, expected: Any) -> None:
    declared = reduce_blocks(combine=operator.add, finish=finish)(
        lambda block, *, scale=1.0, offset=0: float(block.sum())
    )
    assert declared(np.array([1.0, 2.0, 3.0]), scale=2.0, offset=5) == expected


def test_so_do_the_functions_of_a_map_job(tmp_path: Path) -> None:
    seen: list[Any] = []
    declared = map_blocks(
        halo=lambda offset: seen.append(offset) or 0,
        out=lambda shape, dtype, scale: (shape, np.dtype(type(scale))),
        check=lambda shape, dtype: seen.append(shape),
        reference=lambda block, offset, scale: block * scale + offset,
    )(scaled)
    np.save(tmp_path / "in.npy", np.ones((4, 3)))
    declared.run(tmp_path / "in.npy", tmp_path / "out.npy", scale=3.0, offset=1, verify="full", device="cpu")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.full((4, 3), 4.0))
    assert seen == [(4, 3), 1]


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({"finish": lambda: 0}, "finish cannot be called with the partial result"),
        ({"finish": lambda p, gain: 0}, "finish names gain, which is not a parameter of the job"),
        ({"finish": lambda p, q, /: 0}, "finish names q, which"),
        ({"finish": 3}, "finish is not a function"),
        ({"check": lambda shape: None}, "check cannot be called with the shape and the dtype"),
        ({"combine": lambda a: a}, "combine cannot be called with two partial results"),
        ({"combine": lambda a, b, scale: a}, "combine names scale, which it is not given"),
    ],
)
def test_functions_that_could_not_be_called_are_refused_before_any_input_is_read(
    functions: Any, words: str
) -> None:
    with pytest.raises(UserError, match=f"job scaled: {words}"):
        reduce_blocks(**{"combine": operator.add, **functions})(scaled)


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({"out": lambda shape: shape}, "out cannot be called with the shape and the dtype"),
        ({"reference": lambda block, gain: block}, "reference names gain, which is not a parameter"),
        ({"halo": lambda width: width}, "halo names width, which is not a parameter of the job"),
    ],
)
def test_those_of_a_map_job_too(functions: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        map_blocks(**functions)(scaled)
    assert "scale, offset" in str(caught.value) or "cannot be called" in words


def test_and_those_of_other_jobs() -> None:
    with pytest.raises(UserError, match="job anything: reference names gain"):
        job(reference=lambda array, gain: {}, name="anything")(lambda world, *, scale=1.0: {})


class Scale:
    def __call__(self, block: Any) -> Any:
        return 2 * block


@pytest.mark.parametrize("value", [functools.partial(operator.mul, 2), Scale(), np.sqrt, abs, 3, "edges"])
@pytest.mark.parametrize("decorator", [map_blocks(halo=0), meshrun.distribute, job])
def test_what_is_no_function_is_refused(decorator: Any, value: Any) -> None:
    with pytest.raises(UserError, match="a job is a function that is written in Python"):
        decorator(value)
