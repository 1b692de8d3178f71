"""Every option of nccl-tests 2.19.6 in each of its spellings: defaults, effects and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.bench.cli import bench
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.options import LETTERS, bench_options
from meshrun.jobs.measure.sizes import MIB, parse_nccl_tests_size
from meshrun.launch.cli.main import command as meshrun
from meshrun.runner.comm.collectives.api import DATATYPES, REDUCTIONS
from meshrun.runner.errors import UserError

# Of every command: click keeps the names of --help of the first context that it sees.
MESHRUN = click.Context(meshrun, **meshrun.context_settings)


def parsed(*words: str, command: str = "all_reduce") -> BenchOptions:
    """Parse a command line."""
    found = bench.commands[command]
    parameters: dict[str, Any] = found.make_context(command, list(words), parent=MESHRUN).params
    return bench_options((command,), parameters)


@pytest.fixture(autouse=True)
def no_settings_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPLIT", "SPLIT_MASK", "MIN_BW", *(f"ALLTOALLV_{n}" for n in ("SPREAD", "MATRIX_FILE"))):
        monkeypatch.delenv(f"NCCL_TESTS_{name}", raising=False)


def test_the_defaults_are_those_of_nccl_tests() -> None:
    """The initial values at the top of its src/common.cu."""
    assert parsed() == BenchOptions(
        ("all_reduce",),
        SweepSettings(
            minbytes=32 << 20,
            maxbytes=32 << 20,
            stepbytes=1 << 20,
            stepfactor=1,
            iters=20,
            warmup_iters=1,
            agg_iters=1,
            run_cycles=1,
            average=1,
            check=1,
            reductions=("sum",),
            datatypes=("float",),
            root=0,
            blocking=0,
            stream_null=False,
            timeout=0,
            cudagraph=0,
            report_cputime=False,
            report_timestamps=False,
            local_register=0,
            cta_policy=None,
            memory=False,
            unalign=0,
            per_iter_timing=False,
            per_iter_skip=0,
        ),
    )
    assert SweepSettings() == parsed().settings


# Letter, nccl-tests' long name, a word, and what it sets: (name, value).
SPELLED: list[tuple[str, str, str, tuple[str, Any]]] = [
    ("b", "minbytes", "8", ("minbytes", 8)),
    ("e", "maxbytes", "1g", ("maxbytes", 1 << 30)),
    ("i", "stepbytes", "2M", ("stepbytes", 2 << 20)),
    ("f", "stepfactor", "2", ("stepfactor", 2)),
    ("n", "iters", "100", ("iters", 100)),
    ("w", "warmup_iters", "5", ("warmup_iters", 5)),
    ("m", "agg_iters", "4", ("agg_iters", 4)),
    ("N", "run_cycles", "0", ("run_cycles", 0)),
    ("a", "average", "3", ("average", 3)),
    ("c", "check", "0", ("check", 0)),
    ("o", "op", "mulsum", ("reductions", ("mulsum",))),
    ("o", "op", "all", ("reductions", REDUCTIONS)),
    ("d", "datatype", "bfloat16", ("datatypes", ("bfloat16",))),
    ("d", "datatype", "all", ("datatypes", tuple(DATATYPES))),
    ("r", "root", "-1", ("root", -1)),
    ("z", "blocking", "3", ("blocking", 3)),
    ("y", "stream_null", "1", ("stream_null", True)),
    ("T", "timeout", "30", ("timeout", 30)),
    ("G", "cudagraph", "10", ("cudagraph", 10)),
    ("C", "report_cputime", "1", ("report_cputime", True)),
    ("S", "report_timestamps", "1", ("report_timestamps", True)),
    ("R", "local_register", "2", ("local_register", 2)),
    ("x", "cta_policy", "0", ("cta_policy", 0)),
    ("M", "memory", "1", ("memory", True)),
    ("u", "unalign", "3", ("unalign", 3)),
    ("I", "per_iter_timing", "1", ("per_iter_timing", True)),
]


@pytest.mark.parametrize("case", SPELLED, ids=lambda case: f"{case[0]} {case[2]}")
def test_every_spelling_sets_the_same(case: tuple[str, str, str, tuple[str, Any]]) -> None:
    letter, name, word, (field, value) = case
    found = [
        parsed(f"-{letter}", word),
        parsed(f"-{letter}{word}"),
        parsed(f"--{name}", word),
        parsed(f"--{name}={word}"),
        parsed(f"--{name.replace('_', '-')}", word),
    ]
    assert found == 5 * [BenchOptions(("all_reduce",), SweepSettings(**{field: value}))]


def test_the_other_options() -> None:
    """-K needs -I, -J is no setting, -p -t -g and -D have one value that scripts may pass."""
    for skip in ("-K", "--per_iter_skip", "--per-iter-skip"):
        assert parsed("-I", "1", skip, "5").settings == SweepSettings(per_iter_timing=True, per_iter_skip=5)
    for output in ("-J", "--output_file", "--output-file"):
        assert parsed(output, "a.json") == BenchOptions(
            ("all_reduce",), SweepSettings(), output_file="a.json"
        )
    harmless = [("p", "parallel_init", "1"), ("t", "nthreads", "1"), ("g", "ngpus", "1")]
    harmless += [("D", "device_implementation", "0")]
    for letter, name, word in harmless:
        for spelling in (f"-{letter}", f"--{name}", f"--{name.replace('_', '-')}"):
            assert parsed(spelling, word) == parsed()
    tried = {letter for letter, *_ in (*SPELLED, *harmless)} | {*"KJV"}
    assert {f"-{letter}" for letter in tried} == LETTERS.keys()


@pytest.mark.parametrize(
    "command",
    [
        name
        for name in bench.commands
        if name not in ("compare", "copy", "memory", "nvbandwidth", "plot", "replay")
    ],
)
def test_every_measurement_takes_its_letters(command: str) -> None:
    found = {spelling for parameter in bench.commands[command].params for spelling in parameter.opts}
    own = {"pingpong": "befndTJ", "overlap": "beifncodrTJ"}
    assert found >= ({f"-{letter}" for letter in own[command]} if command in own else LETTERS.keys())


def test_pingpong_has_defaults_of_its_own() -> None:
    settings = parsed(command="pingpong").settings
    assert settings == SweepSettings(minbytes=8, stepfactor=2, iters=100)


@pytest.mark.parametrize(
    ("variable", "value", "field", "found"),
    [
        ("NCCL_TESTS_SPLIT", "MOD8", "split", "MOD8"),
        ("NCCL_TESTS_SPLIT_MASK", "0x7", "split_mask", "0x7"),
        ("NCCL_TESTS_MIN_BW", "12.5", "min_busbw", 12.5),
        ("NCCL_TESTS_ALLTOALLV_SPREAD", "0.5", "spread", 0.5),
        ("NCCL_TESTS_ALLTOALLV_MATRIX_FILE", "matrix.txt", "matrix", Path("matrix.txt")),
        ("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE", "2", "matrix_scale", 2.0),
    ],
)
def test_its_variables_apply_and_options_have_priority(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str, found: object
) -> None:
    monkeypatch.setenv(variable, value)
    assert getattr(parsed(command="alltoallv"), field) == found
    option = {"min_busbw": "--min-busbw"}.get(field, f"--{field.replace('_', '-')}")
    assert str(getattr(parsed(option, "1", command="alltoallv"), field)) in ("1", "1.0")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8", 8), ("1K", 1024), ("1k", 1024), ("32M", 32 * MIB), ("1.5g", 3 << 29), (".5K", 512), ("2.", 2),
        (" 4 M ", 4 * MIB), ("1e6", 1_000_000), ("1E3k", 1_024_000), ("0", 0), ("0.9", 0), ("8G", 8 << 30),
    ],
)  # fmt: skip
def test_sizes_as_the_c_library_reads_them(text: str, nbytes: int) -> None:
    assert parse_nccl_tests_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "1T", "-5", "+5", "1.5.2G", "0x10", "8KB", "1e", "1e999", "inf"])
def test_sizes_that_do_not_parse(text: str) -> None:
    with pytest.raises(UserError, match=r"does not parse.*powers of 1024"):
        parse_nccl_tests_size(text)


@given(st.text(max_size=8) | st.floats().map(str) | st.from_regex(r"[0-9.e]{1,400}[kmgT]?", fullmatch=True))
def test_any_text_is_a_size_or_a_user_error(text: str) -> None:
    try:
        size = parse_nccl_tests_size(text)
    except UserError:
        return
    assert size >= 0


@pytest.mark.parametrize(
    ("words", "sizes", "warmed"),
    [
        ("-b 8 -e 64 -f 2", [8, 16, 32, 64], [8, 16, 32, 64]),
        ("-b 8 -e 70 -f 2", [8, 16, 32, 64], [8, 16, 32, 64]),
        ("-b 8 -e 500 -f 4", [8, 32, 128], [8, 16, 32, 64, 128, 256]),
        ("-b 10 -e 40 -i 10", [10, 20, 30, 40], [10, 20, 40]),
        ("-b 10 -e 39 -i 10", [10, 20, 30], [10, 20]),
        ("-b 1M -e 3M", [MIB, 2 * MIB, 3 * MIB], [MIB, 2 * MIB]),
        ("-b 8 -e 64 -i 0 -f 8", [8, 64], [8, 16, 32, 64]),
        ("", [32 * MIB], [32 * MIB]),
    ],
)
def test_the_sizes_measured_and_warmed_up(words: str, sizes: list[int], warmed: list[int]) -> None:
    settings = parsed(*words.split()).settings
    assert [*settings.sizes()] == sizes
    assert settings.warmup_sizes() == warmed


def test_many_small_steps_need_no_memory() -> None:
    assert len(parsed("-b", "1", "-e", "1024G", "-i", "1").settings.sizes()) == 1 << 40


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-t 0", "0 is not in the range"),
        ("-g eight", "'eight' is not a valid integer"),
        ("-D 1", "device headers"),
        ("-V 16", "device headers"),
        ("-z 1 -G 1", "a graph"),
        ("-z 3 -G 1", "a graph"),
        ("-I 1 -G 1", "a graph"),
        ("-K 1", "add -I 1"),
        ("-I 1 -K 20", "leaves none of -n 20"),
        ("-b 2 -e 1", "-b is greater than -e"),
        ("-b 0", "1 byte"),
        ("-i 0", "never grow"),
        ("--min-busbw inf", "a bandwidth"),
    ],
)
def test_what_is_refused_ends_with_status_6(words: str, reason: str) -> None:
    with pytest.raises(click.UsageError, match=reason) as mistake:
        bench.invoke(bench.make_context("bench", ["all_reduce", *words.split()], parent=MESHRUN))
    assert mistake.value.exit_code == 6


COUNTS = ("-n", "-w", "-m", "-N", "-c", "-r", "-T", "-G", "-u", "-K")
MORE_COUNTS = [("pingpong", "-n"), ("copy", "-n"), ("copy", "--sample-pairs")]


@pytest.mark.parametrize(("command", "letter"), [*(("all_reduce", one) for one in COUNTS), *MORE_COUNTS])
def test_a_count_is_an_int_of_c(command: str, letter: str) -> None:
    with pytest.raises(click.UsageError, match=f"'{letter}'.*{10**30} is not in the range"):
        parsed(letter, str(10**30), command=command)


def test_channels_belong_to_a_sweep() -> None:
    assert parsed("--sweep-tuning").channels == ()
    assert parsed("--sweep-tuning", "--channels", "4,16").channels == (4, 16)
    for words, sentence in (
        (("--channels", "4"), "add --sweep-tuning"),
        (("--sweep-tuning", "--channels", "4,65"), "NCCL has 1 to 64 channels"),
        (("--sweep-tuning", "--channels", "many"), "'many' is no list of numbers such as 4,16"),
    ):
        with pytest.raises(click.UsageError, match=sentence):
            parsed(*words)


@pytest.mark.parametrize(
    ("words", "ranks", "rest"),
    [
        ("all_reduce -b 8 -g 8 -e 8G", 8, "all_reduce -b 8 -e 8G"),
        ("all-reduce -g8 -t 2", 16, "all-reduce"),
        ("alltoallv --ngpus 4 --nthreads=2", 8, "alltoallv"),
        ("scale all_reduce -g 2 -g 3", 3, "scale all_reduce"),  # as getopt: the last counts
        ("all_reduce -g 1 -t 1", 1, "all_reduce"),
        ("all_reduce -g x -t 0", 0, "all_reduce"),  # refused when the words are parsed
        ("all_reduce -b 8 -g", 1, "all_reduce -b 8"),
        ("pingpong -g 2", 1, "pingpong -g 2"),
        ("copy -t 4 -t 5", 1, "copy -t 4 -t 5"),  # of copy, -t is a test case
        ("nosuch -g 2", 1, "nosuch -g 2"),
        ("", 1, ""),
    ],
)
def test_the_ranks_that_g_and_t_ask_for(words: str, ranks: int, rest: str) -> None:
    assert bench.ranks_asked(words.split()) == (ranks, tuple(rest.split()))
