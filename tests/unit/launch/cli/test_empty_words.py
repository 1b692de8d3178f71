"""An empty word, as of a variable that is not set, is refused: it never counts as not given."""

from __future__ import annotations

import pytest

from meshrun.launch.cli.main import main

VALIDATE = [["--simulate", ""], ["--simulate="], ["--rungs", ""], ["-J", ""], ["--html", ""], ["--junit="]]
VALIDATE += [["--prometheus", ""], ["--baseline", ""], ["--save-baseline", ""], ["--budget", ""], [""]]
BENCH = [
    ["all_reduce", "-J", ""],
    ["all_reduce", "--plot", ""],
    ["all_reduce", "--json-lines="],
    ["all_reduce", "--split", ""],
    ["all_reduce", "--split-mask", ""],
    ["alltoallv", "--matrix", ""],
    ["pingpong", "--pairs", ""],
    ["copy", "-p", "", "--list"],
    ["copy", "-t", ""],
    ["memory", "transpose", "--shape", ""],
    ["memory", "pool", "-J", ""],
    ["plot", "", "--to", "p.html"],
    ["compare", "", ""],
    [""],
]
LAUNCH = [
    ["mpirun", "--hosts", "", "--", "selftest"],
    ["mpirun", "--hostfile", "", "--", "selftest"],
    ["mpirun", "--network", "", "--hosts", "a", "--", "selftest"],
    ["slurm", "--partition", "", "--print", "--", "selftest"],
    ["slurm", "--container=", "--print", "--", "selftest"],
    ["kubernetes", "--image", "", "--print", "--", "selftest"],
    ["kubernetes", "--image", "i", "--name", "", "--print", "--", "selftest"],
    ["local", "-j", "2", "--print", "--", "validate", "--simulate", ""],
]
PLAN = [["--gpu", ""], ["--grid", ""], ["--json", ""], ["--shape", ""], ["--input-dtype", ""]]
RUN = [["--grid", ""], ["--json="], ["--timeline", ""], ["--input-dtype", ""]]
EVERY = [
    *((3, ["validate", *words]) for words in VALIDATE),
    *((6, ["bench", *words]) for words in BENCH),
    *((2, ["launch", *words]) for words in LAUNCH[:-1]),
    (3, ["launch", *LAUNCH[-1]]),
    *((2, ["plan", "laplacian", "--ranks", "2", *words]) for words in PLAN),
    *((2, ["run", "laplacian", "in.npy", "out.npy", *words]) for words in RUN),
]


@pytest.mark.parametrize(("status", "words"), EVERY)
def test_an_empty_word_is_refused(status: int, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == status
    assert "empty argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "slurm", "-j", "1x2", "--mpi", "pmix", "--srun-args", "", "--print", "--", "validate"],
        ["launch", "local", "-j", "2", "-x", "NCCL_DEBUG=", "--print", "--", "validate"],
    ],
)
def test_what_may_be_empty(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert "empty" not in capsys.readouterr().err
