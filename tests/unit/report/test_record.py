"""The envelope of records, and what JSON has no number for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshrun.runner.errors import RunError
from meshrun.runner.report.record import envelope, json_text, plain, stdout, stdout_for, write_json


def test_the_envelope_comes_first() -> None:
    assert list(envelope("rates", 2, {"a": 1}).items()) == [
        ("schema", 2),
        ("kind", "rates"),
        ("version", 2),
        ("a", 1),
    ]


def test_a_format_that_had_such_a_key_before_keeps_it() -> None:
    record = envelope("bench", 3, {"version": "2.18.3", "schema": "meshrun.validate"})
    assert record == {"schema": "meshrun.validate", "kind": "bench", "version": "2.18.3"}


def test_an_envelope_again_changes_nothing() -> None:
    once = envelope("run", 1, {"job": "edges"})
    assert envelope("run", 1, once) == once


def test_nan_and_infinities_are_null() -> None:
    odd = {"a": float("nan"), "b": [np.float32("inf"), np.array([1.0, -np.inf])], "c": complex(0, np.inf)}
    text = json_text("test", 1, odd)
    found = json.loads(text, parse_constant=pytest.fail)
    assert (found["a"], found["b"], found["c"]) == (None, [None, [1.0, None]], [0.0, None])
    assert text.endswith("}\n")


def test_parameters_and_results_have_texts_for_them() -> None:
    assert plain({"cval": float("nan"), "gain": (np.inf, 1j * np.inf)})["cval"] == "nan"
    assert plain((np.inf, -np.inf, 1.5, True, None, Path("a"))) == ["inf", "-inf", 1.5, True, None, "a"]


def test_a_record_is_written_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", "test", 1, {"rows": np.arange(3)})
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "schema": 1,
        "kind": "test",
        "version": 1,
        "rows": [0, 1, 2],
    }


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot write the record"):
        write_json(tmp_path / "no" / "a.json", "test", 1, {})


NOISY = """
import os

import meshrun


@meshrun.map_blocks(split_dependent=True)
def noisy(block):
    os.write(1, b"NCCL version 2.28.9\\n")  # as a library does
    print("hello")
    return block + 1
"""


@pytest.mark.parametrize("ranks", [[], ["-n", "2"]])
@pytest.mark.parametrize("record", [["--json", "-"], []])
def test_what_libraries_print_does_not_get_into_a_record(
    ranks: list[str], record: list[str], tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(NOISY)
    np.save(tmp_path / "in.npy", np.zeros((4, 3)))
    words = [*ranks, "run", "job.py:noisy", "in.npy", "out.npy", "--device", "cpu", *record]
    done = subprocess.run(
        [sys.executable, "-m", "meshrun", *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    noise = ["NCCL version 2.28.9", "hello"]
    if record:
        assert json.loads(done.stdout)["kind"] == "run"
        assert {*noise} <= {*done.stderr.splitlines()}
    else:
        assert sorted(done.stdout.splitlines()) == sorted(noise * (2 if ranks else 1))


RESERVES = """
import os, sys
from meshrun.runner.report.record import stdout, stdout_for
with stdout_for(sys.argv[1]):
    print("a text")
    os.write(1, b"bytes\\n")
    stdout().write("the record\\n")
    stdout().flush()
print("after")
os.write(1, b"bytes after\\n")
"""


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("-", (["the record", "after", "bytes after"], ["a text", "bytes"])),
        ("a.json", (["a text", "bytes", "the record", "after", "bytes after"], [])),
    ],
)
def test_standard_output_is_kept_for_a_record_and_given_back(
    file: str, expected: tuple[list[str], list[str]]
) -> None:
    done = subprocess.run([sys.executable, "-uc", RESERVES, file], capture_output=True, text=True, check=True)
    assert (sorted(done.stdout.splitlines()), sorted(done.stderr.splitlines())) == tuple(
        map(sorted, expected)
    )


def test_a_replaced_standard_output_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with stdout_for("-"):
        print("a text")
        stdout().write("the record")
    assert capsys.readouterr().out == "a text\nthe record"
