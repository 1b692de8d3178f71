"""`job.run(...)` takes what `meshrun run` takes: the same options, words and checks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import meshrun
from meshrun.runner.errors import UserError
from meshrun.runner.spelling import option

CALLS: list[int] = []  # no variable around a function that counts: those make it another job


@meshrun.map_blocks
def double(block: Any, *, out: Any, gain: float = 2.0) -> None:
    out[...] = gain * block


@meshrun.map_blocks
def cast(block: Any, *, dtype: str = "int16", shape: int = 0) -> Any:
    """With parameters that have the short names of a file's options."""
    return block.astype(dtype)


@meshrun.map_blocks(halo=1, boundary="nearest")
def mean(block: Any) -> Any:
    return (block[:-2, 1:-1] + block[2:, 1:-1]) / 2


@meshrun.reduce_blocks(combine=lambda a, b: a + b)
def total(block: Any) -> float:
    return float(block.sum())


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    np.save("in.npy", np.arange(6000, dtype=np.int32).reshape(1000, 6))
    np.arange(60, dtype=">i2").tofile("in.raw")
    return tmp_path


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        ({"chunk_bytes": 4096}, 170),
        ({"chunk_bytes": "4K"}, 170),
        ({"chunk_bytes": np.int64(4096)}, 170),
        ({"host_memory": "1M", "chunk_bytes": 240}, 10),
        ({"device_memory": 1 << 20}, 334),
        ({"depth": 3}, 334),
        ({"depth": 1}, 1000),
        ({"static": True}, 334),
        ({"resume": True}, 334),
    ],
)
def test_a_run_can_be_streamed(said: dict[str, Any], rows: int) -> None:
    record = double.run("in.npy", "out.npy", device="cpu", **said)
    assert record["stream"]["rows"] == rows
    np.testing.assert_array_equal(np.load("out.npy"), 2 * np.load("in.npy"))


def test_a_timeline_can_be_drawn(place: Path) -> None:
    double.run("in.npy", "out.npy", timeline=place / "run.json", json=place / "record.json")
    assert json.loads((place / "run.json").read_text())
    assert json.loads((place / "record.json").read_text())["stream"]["chunks"] == 3


def test_an_unfinished_run_can_be_resumed() -> None:
    def broken(block: Any, *, out: Any, gain: float = 2.0) -> None:
        CALLS.append(1)
        if len(CALLS) == 7:
            raise ValueError("enough")
        out[...] = gain * block

    CALLS.clear()
    job = meshrun.map_blocks(split_dependent=True)(broken)
    with pytest.raises(ValueError, match="enough"):
        job.run("in.npy", "out.npy", chunk_bytes=2400, depth=1)
    with pytest.raises(UserError) as refused:
        job.run("in.npy", "out.npy", chunk_bytes=2400, depth=1)
    assert (
        "unfinished. Try: the same command with resume=True, or to start from the beginning: rm -r "
        in str(refused.value)
    )
    record = job.run("in.npy", "out.npy", chunk_bytes=2400, depth=1, resume=True)
    assert record["stream"]["chunks"] == 10
    assert 0 < record["stream"]["resumed"] < 10
    np.testing.assert_array_equal(np.load("out.npy"), 2 * np.load("in.npy"))


@pytest.mark.parametrize(
    "said",
    [
        {"input_shape": "10x6", "input_dtype": ">i2"},
        {"input_shape": (10, 6), "input_dtype": np.dtype(">i2")},
        {"shape": [10, 6], "dtype": ">i2", "order": "C"},
    ],
)
def test_a_file_without_a_header_can_be_read(said: dict[str, Any]) -> None:
    double.run("in.raw", "out.npy", **said)
    np.testing.assert_array_equal(np.load("out.npy"), 2 * np.arange(60).reshape(10, 6))


def test_a_jobs_own_parameter_comes_before_the_short_name_of_an_option() -> None:
    record = cast.run("in.raw", "out.npy", dtype="float64", shape=5, input_dtype=">i2", input_shape=60)
    assert record["parameters"] == {"dtype": "float64", "shape": 5}
    assert np.load("out.npy").dtype == np.float64
    with pytest.raises(UserError, match="got no input_shape and no input_dtype"):
        cast.run("in.raw", "out.npy", dtype="float64", shape=5)


def test_a_grid_may_be_numbers(place: Path) -> None:
    assert double.run("in.npy", "out.npy", grid=(2, 3), chunk_bytes=120)["grid"] == [2, 3]
    assert double.run("in.npy", "out.npy", grid="1x1")["grid"] == [1, 1]


@pytest.mark.parametrize(("said", "mode"), [(True, "sample"), ("full", "full"), (False, None), ("off", None)])
def test_a_result_can_be_proven(said: Any, mode: str | None) -> None:
    proof = double.run("in.npy", "out.npy", verify=said)["verify"]
    assert (proof and proof["mode"]) == mode


def test_measured_rates_are_found_as_the_command_finds_them(place: Path) -> None:
    (place / "config" / "meshrun").mkdir(parents=True)
    (place / "config" / "meshrun" / "rates.json").write_text("no rates")
    assert double.run("in.npy", "out.npy", device="cpu")["plan"] is None


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"device": "gpu"}, "Invalid value for 'device': 'gpu' is not one of 'auto', 'cpu', 'cuda'"),
        ({"verify": "some"}, "Invalid value for 'verify': 'some' is not one of 'off', 'sample', 'full'"),
        ({"boundary": "edge"}, "Invalid value for 'boundary': 'edge' is not one of 'reflect', 'mirror', "),
        ({"input_order": "A"}, "Invalid value for 'input_order': 'A' is not one of 'C', 'F'"),
        ({"cval": "much"}, "Invalid value for 'cval': 'much' is not a valid float"),
        ({"chunk_bytes": 0}, "Invalid value for 'chunk_bytes': 0 is not a size; expected a number of bytes"),
        ({"chunk_bytes": -4096}, "Invalid value for 'chunk_bytes': -4096 is not a size"),
        ({"host_memory": "64 M"}, "Invalid value for 'host_memory': '64 M' is not a size"),
        ({"device_memory": 1.5e9}, "Invalid value for 'device_memory': 1500000000.0 is not a size"),
        ({"chunk_bytes": True}, "Invalid value for 'chunk_bytes': True is not a size"),
        ({"chunk_bytes": 1 << 63}, "is more than any file or memory has; expected at most 9223372036854"),
        ({"depth": 0}, "Invalid value for 'depth': 0 is not in the range 1<=x<=1024"),
        ({"depth": 2.5}, "Invalid value for 'depth': 2.5 is not a valid integer"),
        ({"resume": "yes"}, "Invalid value for 'resume': 'yes' is neither True nor False"),
        ({"grid": "two"}, "grid does not parse: got 'two', expected numbers joined by x"),
        ({"grid": (2, "x")}, "Invalid value for 'grid': (2, 'x') is neither a text such as '2x4' nor"),
        ({"grid": (2, 2)}, "grid does not use every rank exactly once: got 2x2 on 1 rank(s), expected blocks "
         "that multiply to 1. Try: grid='0x0'"),
        ({"input_shape": "10x"}, "shape does not parse: got '10x'"),
        ({"input_dtype": object()}, "is not a dtype"),
        ({"chunk_bytes": 8}, "chunk_bytes is less than a row with the halo: got 8 bytes, expected at least"),
        ({"chunk_bytes": "1M", "overlap": False}, "overlap does not apply: streamed runs always overlap"),
        ({"boundary": "wrap", "cval": 1.0}, "cval does not apply: it is the constant of boundary='constant': "
         "got cval=1 and the boundary wrap. Try: boundary='constant'"),
        ({"timeline": "run.txt"}, "unknown timeline format: run.txt"),
        ({"chunk_byte": 4096}, "no such parameter: got chunk_byte, expected gain. Try: chunk_bytes"),
        ({"gian": 3}, "job double has no such parameter: got gian, expected gain. Try: gain"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_in_a_programs_words(place: Path, said: dict[str, Any], sentence: str) -> None:
    before = sorted(place.iterdir())
    with pytest.raises(UserError) as refused:
        double.run("in.npy", "out.npy", **{"device": "cpu", **said})
    assert sentence in str(refused.value)
    assert "--" not in str(refused.value)
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: meshrun.open_world("cuda"), "device='cuda', but CuPy cannot be imported"),
        (
            lambda: meshrun.matmul(np.eye(2), np.eye(2), precision="tf32"),
            "precision='tf32' is a mode of GPUs",
        ),
        (lambda: meshrun.transpose(np.eye(2), axes=(0, 0)), "Try: axes='1,0'"),
        (lambda: meshrun.irfft(np.ones(1)), "Try: length=1"),
    ],
)
def test_a_public_function_names_keywords(
    call: Callable[[], Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # not installed, also where there is a GPU
    with pytest.raises(UserError) as refused:
        call()
    assert words in str(refused.value)
    assert "--" not in str(refused.value)
    assert option("device") == "--device"


def test_warnings_of_a_program_name_the_keyword(caplog: pytest.LogCaptureFixture) -> None:
    np.save("small.npy", np.zeros((2, 6)))
    record = mean.run("small.npy", "out.npy", device="cpu", ranks=2, steps=4, steps_per_exchange=3)
    assert "steps_per_exchange=3 is lowered to 1" in record["warnings"][0]
    assert "steps_per_exchange=3 is lowered to 1" in caplog.text


@meshrun.map_blocks
def shift(
    block: Any,
    *,
    by: float = 1.0,
    times: int = 1,
    up: bool = True,
    how: Literal["once", "twice"] = "once",
    unit: str | None = None,
    table: Path | None = None,
) -> Any:
    assert [type(one) for one in (by, times, up, how)] == [float, int, bool, str]
    assert table is None or isinstance(table, Path)
    factor = (2 if how == "twice" else 1) * times * (1 if up else -1)
    return block + factor * by


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"by": 3, "how": "twice"}, 6.0),
        ({"by": np.float32(0.5), "times": np.int8(3), "up": np.False_}, -1.5),
        ({"table": "in.npy", "unit": None}, 1.0),
        ({"table": Path("in.npy"), "unit": Path("metre")}, 1.0),
    ],
    ids=str,
)
def test_a_jobs_parameters_become_what_they_are_declared_as(given: dict[str, Any], added: float) -> None:
    """A path in a text, an integer where a number is declared, NumPy's numbers."""
    array = np.load("in.npy")
    shift.run("in.npy", "out.npy", device="cpu", **given)
    for found in (np.load("out.npy"), shift(array, **given)):
        np.testing.assert_array_equal(found, array + added)


def test_a_parameter_without_a_type_is_passed_on_as_it_is() -> None:
    job = meshrun.map_blocks(name="add")(lambda block, *, these=(1,): block + sum(these))
    np.testing.assert_array_equal(job(np.arange(4), these=(2, 3)), np.arange(5, 9))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"how": "thrice"}, "'how': 'thrice' is not one of 'once', 'twice'"),
        ({"how": ["once"]}, "'how': ['once'] is not one of"),
        ({"how": None}, "'how': None is not one of"),
        ({"by": "1.5"}, "'by': '1.5' is not a valid float"),
        ({"by": None}, "'by': None is not a valid float"),
        ({"by": True}, "'by': True is not a valid float"),
        ({"by": np.ones(2)}, "'by': array([1., 1.]) is not a valid float"),
        ({"times": 1.5}, "'times': 1.5 is not a valid integer"),
        ({"times": "2"}, "'times': '2' is not a valid integer"),
        ({"times": True}, "'times': True is not a valid integer"),
        ({"up": "no"}, "'up': 'no' is neither True nor False"),
        ({"up": 2}, "'up': 2 is neither True nor False"),
        ({"unit": (0, 1)}, "'unit': (0, 1) is not a text"),
        ({"table": 3}, "'table': 3 is not a path"),
    ],
    ids=str,
)
def test_a_jobs_parameter_of_another_type_is_refused(
    place: Path, given: dict[str, Any], sentence: str
) -> None:
    before, array = sorted(place.iterdir()), np.load("in.npy")
    for attempt in (
        lambda: shift.run("in.npy", "out.npy", device="cpu", **given),
        lambda: shift(array, **given),
        lambda: shift.iterate(array, steps=2, **given),
        lambda: shift.plan("in.npy", ranks=2, **given),
    ):
        with pytest.raises(UserError) as refused:
            attempt()
        assert f"Invalid value for {sentence}" in str(refused.value)
    assert sorted(place.iterdir()) == before


def test_a_stream_of_a_reduction_is_refused() -> None:
    with pytest.raises(UserError, match="depth does not apply to job total"):
        total.run("in.npy", depth=3)
