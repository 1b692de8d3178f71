"""Every mistake a user can make gets one sentence and the right exit status, and leaves nothing behind.

Each case is the command on its words in this process, one rank, no MPI; some are the installed command in a
process of its own, as a user runs it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typed import LAUNCHERS, typed

from meshrun.jobs.filters.laplacian import laplacian
from meshrun.launch.cli.main import main
from meshrun.launch.mpi.rank_command import PROGRAM

DEADLOCK = 60  # seconds; nothing here takes a twentieth of it
SHAPE = (6, 8, 3)

JOBS = """
from typing import Literal
import meshrun

@meshrun.map_blocks(halo=3, boundary="mirror")
def wide(block, *, passes: int = 1, gain: float = 1.0, mode: Literal["soft", "hard"] = "soft"):
    return block[3:-3, 3:-3]

@meshrun.map_blocks
def needy(block, *, passes: int):
    return block

@meshrun.reduce_blocks(combine=lambda a, b: a + b)
def total(block):
    return float(block.sum())

@meshrun.map_blocks
def fails(block, *, error: str):
    raise eval(error)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good inputs and broken ones."""
    folder = tmp_path_factory.mktemp("made")
    array = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    for name, values in {
        "in": array,
        "flat": np.arange(9.0),
        "single": np.array(3.0),
        "float": np.ones((5, 5), np.float32),
        "complex": np.ones((4, 4), complex),
        "text": np.array(["a", "b"]),
        "empty": np.ones((0, 5), np.float32),
    }.items():
        np.save(folder / f"{name}.npy", values)
    np.save(folder / "object.npy", np.array([{}], object), allow_pickle=True)
    np.save(folder / "fields.npy", np.zeros(3, [("x", "f4"), ("y", "i4")]))
    np.save(folder / "days.npy", np.zeros(3, "M8[D]"))
    np.savez(folder / "several.npz", a=np.zeros(3))
    for ending in ("tif", "png", "h5", "npy"):
        with open(folder / f"other.{ending}", "wb") as file:
            np.save(file, np.zeros((9, 9))) if ending != "npy" else file.write(b"\x89PNG\r\n\x1a\n")
    for suffix in (".png", ".jpg"):
        Image.fromarray(array).save(folder / f"in{suffix}")
    for name in ("in.npy", "in.png", "in.jpg"):
        whole = (folder / name).read_bytes()
        (folder / f"cut{name[2:]}").write_bytes(whole[: len(whole) * 2 // 3])
        (folder / f"nothing{name[2:]}").write_bytes(b"")
        (folder / f"words{name[2:]}").write_text("no array at all\n" * 10)
    (folder / "in.xyz").write_bytes(b"")
    (folder / "jobs_of_mine.py").write_text(JOBS)
    (folder / "none.py").write_text("x = 1\n")
    (folder / "broken.py").write_text("def (:\n")
    (folder / "lonely.py").write_text("import no_such_module_anywhere\n")
    (folder / "odd.py").write_text("class Odd(Exception): ...\nraise Odd('very')\n")
    (folder / "leaver.py").write_text("import sys\nsys.exit(0)\n")
    for name in ("folder.npy", "folder.svg"):
        (folder / name).mkdir()
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like `made`, where this process works from now on."""
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def run(work: Path) -> Run:
    """The command on words, in this process; nothing may be new in `work` afterwards unless it says 0."""

    def command(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        return leaving_nothing(work, words, lambda: typed(*words, environment=environment))

    return command


@pytest.fixture
def run_apart(work: Path) -> Run:
    """Likewise in a process of its own."""

    def command(words: list[str], **popen: object) -> subprocess.CompletedProcess[str]:
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": DEADLOCK, **popen}
        return leaving_nothing(
            work, words, lambda: subprocess.run([*PROGRAM, *words], check=False, **options)
        )

    return command


def leaving_nothing(
    folder: Path, words: list[str], command: Callable[[], subprocess.CompletedProcess[str]]
) -> subprocess.CompletedProcess[str]:
    before = content(folder)
    ended = command()
    assert ("Traceback" in ended.stderr) == ("--debug" in words)
    if ended.returncode:
        assert content(folder) == before
    return ended


def content(folder: Path) -> dict[str, bytes]:
    """Every file by name, without what Python compiles."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {
        str(path.relative_to(folder)): path.read_bytes() if os.access(path, os.R_OK) else b""
        for path in files
    }


WORK = "run laplacian in.npy out.npy"
OURS = "jobs_of_mine.py"
# The words, and what the sentence about them says, in this order.
CASES: list[tuple[str, ...]] = [
    # Inputs.
    ("run laplacian gone.npy out.npy", "gone.npy does not exist"),
    ("run laplacian gone.png out.npy", "gone.png does not exist"),
    ("run laplacian . out.npy", "the input is a folder of images, the output a file", "got out.npy"),
    ("run laplacian folder.npy out", "the folder folder.npy holds no image", "got nothing", "expected files"),
    ("run laplacian . folder.svg --grid 2", "--grid does not apply to a folder of images",
     "Try: leave it out"),
    ("run laplacian cut.npy out.npy", "cut.npy is truncated", "got 181 bytes", "expected 272"),
    ("run laplacian cut.png out.npy", "cut.png is broken or truncated: "),
    ("run laplacian cut.jpg out.npy", "cut.jpg is broken or truncated: "),
    ("run laplacian nothing.npy out.npy", "nothing.npy is not a readable .npy file", "got"),
    ("run laplacian nothing.png out.npy", "nothing.png is not a readable picture", "expected", "PNG"),
    ("run laplacian words.npy out.npy", "words.npy is not a readable .npy file", "got"),
    ("run laplacian words.jpg out.npy", "words.jpg is not a readable picture", "expected", "JPEG"),
    ("run laplacian in.xyz out.npy", "unknown file format: in.xyz", "got .xyz", "expected .npy", "Try:"),
    ("run laplacian complex.npy out.npy", "laplacian", "got complex128", "expected bool, uint8", "Try:"),
    ("run laplacian object.npy out.npy", "does not hold numbers", "got dtype object", "expected a numeric"),
    ("run laplacian fields.npy out.npy", "does not hold numbers", "Try: numpy.save of one field: array['x']"),
    ("run laplacian days.npy out.npy", "does not hold numbers", "Try: numpy.save of array.astype('int64')"),
    ("run laplacian several.npz out.npy", "got .npz",
     "Try: numpy.save('several.npy', numpy.load('several.npz')['NAME'])"),
    ("run laplacian other.tif out.npy", "other.tif is not a readable", "Try: mv other.tif other.npy"),
    ("run laplacian other.png out.npy", "other.png is not a readable", "Try: mv other.png other.npy"),
    ("run laplacian other.h5 out.npy", "other.h5 is not a readable", "Try: mv other.h5 other.npy"),
    ("run laplacian other.npy out.npy", "other.npy is not a readable", "Try: mv other.npy other.png"),
    ("run laplacian text.npy out.npy", "does not hold numbers", "got dtype <U1"),
    ("run laplacian single.npy out.npy", "the input is a scalar", "got no axes",
     "Try: numpy.save of array.reshape(1)"),
    ("run laplacian flat.npy out.npy", "rows and columns", "got shape (9,)", "expected 2 axes"),
    ("run grayscale float.npy out.npy", "a colour image", "got shape (5, 5)", "expected (rows, columns, 3)"),
    ("run statistics empty.npy", "without elements", "got shape (0, 5)", "expected one element"),
    # Jobs.
    ("run nosuch in.npy out.npy", "unknown job", "got nosuch", "laplacian", "FILE.py:NAME", "Try:"),
    ("run gone.py:edges in.npy out.npy", "gone.py does not exist"),
    ("run none.py in.npy out.npy", "declares no job: it has no function", "@meshrun.distribute, map_blocks"),
    (f"run {OURS} in.npy out.npy", f"{OURS} declares", "expected one of", f"{OURS}:wide"),
    (f"run {OURS}:edges in.npy out.npy", "declares no job 'edges': its jobs are wide, needy, total"),
    ("run broken.py in.npy out.npy", "syntax error in broken.py, line 1: invalid syntax"),
    ("run lonely.py in.npy out.npy", "lonely.py cannot be imported", "no_such_module_anywhere"),
    ("run odd.py in.npy out.npy", "odd.py cannot be imported: Odd: very", "odd.py:2", "--debug"),
    ("run leaver.py in.npy out.npy", "leaver.py cannot be imported: it ends the program, SystemExit: 0"),
    # Options.
    (f"run {OURS}:wide float.npy out.npy --passes two", "'--passes'", "'two' is not a valid integer", "Try:"),
    (f"run {OURS}:wide float.npy out.npy --gain big", "'--gain'", "'big' is not a valid float", "Try:"),
    (f"run {OURS}:wide float.npy out.npy --mode loud", "'--mode'", "'loud' is not one of", "'hard'", "Try:"),
    (f"run {OURS}:needy float.npy out.npy", "Missing option '--passes'", "Try:"),
    (f"{WORK} --gain 3", "No such option '--gain'", "Try:"),
    (f"{WORK} --dtype uint3", "'--dtype'", "'uint3' is not one of", "'float32'"),
    (f"{WORK} --boundary edge", "'--boundary'", "'edge' is not one of", "'reflect'", "Try:"),
    (f"{WORK} --cval 3", "--cval does not apply", "got --cval 3 and the boundary ", "--boundary constant"),
    (f"{WORK} --boundary wrap --cval 3", "--cval does not apply", "the boundary wrap"),
    (f"{WORK} --boundary constant --cval 300", "--cval does not fit", "got 300", "from 0 to 255 (uint8)"),
    ("run laplacian float.npy out.npy --boundary constant --cval 1e39", "--cval does not fit", "(float32)"),
    (f"{WORK} --grid two", "--grid does not parse", "got 'two'", "expected numbers joined by x", "Try:"),
    (f"{WORK} --grid 2x2", "every rank exactly once", "got 2x2 on 1 rank", "multiply to 1", "Try:"),
    (f"{WORK} --grid 1x1x1x1", "more axes than the array", "got 1x1x1x1", "the array is 6x8x3"),
    (f"{WORK} --device tpu", "'--device'", "'tpu' is not one of", "'cpu'", "Try:"),
    ("-n 0 " + WORK, "'-n'", "0 is not in the range", "Try:"),
    ("-n two " + WORK, "'-n'", "'two' is not a valid integer", "Try:"),
    ("run convolve flat.npy out.npy --kernel 1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3",
     "halo is wider than the array along axis 0", "got 10", "at most 9", "Try:"),
    ("run convolve float.npy out.npy --kernel gone.npy", "the kernel 'gone.npy'", "No such file", "Try:"),
    ("run convolve flat.npy out.npy --kernel 1;2", "more axes than the array", "at most 1"),
    ("run elementwise float.npy out.npy --expression x+", "the expression 'x+'", "a formula in x", "Try:"),
    ("run grayscale in.npy out.npy --weights 1", "the weights", "got '1'", "expected three numbers", "Try:"),
    ("run statistics in.npy --bins 0", "so many bins", "got 0", "expected 1 to 65536"),
    ("run statistics in.npy --grid 1", "--grid does not apply to job statistics: expected a job made by"),
    ("run statistics in.npy --cval 1 --no-overlap", ": --cval, --overlap do not apply to job statistics"),
    ("run airflow cylinder out.xyz", "unknown format", "expected a folder, .gif, .webp, .png, .mp4\n"),
    ("run airflow cylinder out.gif --forces gone/f.csv", "the forces file's folder does not exist: got gone"),
    ("run airflow cylinder out.gif --fields gone/f.h5", "the fields file's folder does not exist: got gone"),
    ("run airflow cylinder gone/out.gif", "the output's folder does not exist: got gone"),
    # Outputs.
    ("run laplacian in.npy", "job laplacian writes a file: OUTPUT is missing", "expected OUTPUT after INPUT"),
    (f"run {OURS}:total in.npy out.npy", "job total writes no file", "got OUTPUT out.npy", "Try:"),
    ("run statistics in.npy out.npy", "job statistics writes no file", "got OUTPUT out.npy", "Try:"),
    ("run laplacian in.npy gone/out.npy", "output's folder does not exist", "got gone", "Try: mkdir -p gone"),
    ("run laplacian in.npy folder.npy", "the output is a folder", "got folder.npy", "expected a file name"),
    (f"run laplacian in.npy {'x' * 300}.npy", "the output's name is too long", "got 304 bytes", "233"),
    ("run laplacian in.npy out.xyz", "unknown file format: out.xyz", "got .xyz", "expected .npy", "Try:"),
    ("run laplacian in.npy out", "unknown file format: out", "got no suffix", "expected .npy"),
    ("run laplacian float.npy out.png", "PNG cannot hold", "got float32 of shape (5, 5)", "uint8", "Try:"),
    ("run laplacian in.npy out.jpg --verify", "--verify reads the output back", ".jpg", "Try:"),
    (f"{WORK} --json gone/record.json", "record's folder does not exist", "got gone", "Try: mkdir -p gone"),
    (f"{WORK} --json .", "the record is a folder", "expected a file name"),
    (f"{WORK} --json a.json --timeline ./a.json", "--json and --timeline name the same file", "got ./a.json"),
    (f"{WORK} --json ./in.npy", "INPUT and --json name the same file", "got ./in.npy"),
    (f"{WORK} --json ./out.npy", "OUTPUT and --json name the same file", "got ./out.npy"),
    # Words.
    ("run laplacian", "Missing argument 'INPUT'", "Try:"),
    (f"{WORK} more.npy", "unexpected extra argument (more.npy)", "Try:"),
    ("run", "Missing command", "Try:"),
    ("walk laplacian", "No such command 'walk'", "Try:"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0][:60])
def test_a_mistake_gets_one_sentence(run: Run, case: tuple[str, ...]) -> None:
    words, *says = case
    ended = run(words.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    one_sentence(ended.stderr, *says)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("SystemExit(0)", ["SystemExit: 0", f"{OURS}:"]),
        ("LookupError('of two\\nlines')", ["LookupError: of two lines", f"{OURS}:"]),
        ("MemoryError", ["out of memory: an allocation failed."]),
    ],
)
def test_whatever_a_function_raises_is_a_failure(run: Run, error: str, says: list[str]) -> None:
    ended = run(["run", f"{OURS}:fails", "in.npy", "out.npy", "--error", error])
    assert (ended.returncode, ended.stdout) == (1, "")
    one_sentence(ended.stderr, *says, "Try: ")


@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt"])
def test_an_end_that_a_function_asks_for_is_a_failure(run_apart: Run, error: str) -> None:
    ended = run_apart(["run", f"{OURS}:fails", "in.npy", "out.npy", "--error", f"{error}(0)"])
    assert (ended.returncode, ended.stdout) == (1, "")
    one_sentence(ended.stderr, f"{error}: 0", f"{OURS}:", "Try: ")


BENCH = "bench all_reduce -b 64 -e 64 -n 2 --device cpu"
HOST_ONLY = "--device cpu"
BAD_USAGE = 6  # nccl-tests' testInvalidUsage
# Nothing is measured: not a line is on stdout.
BENCH_CASES: list[tuple[str, ...]] = [
    # Sizes.
    ("bench all_reduce -b foo", "'-b'", "does not parse", "got 'foo'", "K, M or G", "Try:"),
    ("bench all_reduce -b 1T", "'-b'", "does not parse", "got '1T'"),
    ("bench all_reduce -b -5", "'-b'", "does not parse", "got '-5'"),
    ("bench all_reduce -e 1.5.2G", "'-e'", "does not parse", "got '1.5.2G'"),
    ("bench all_reduce -e nan", "'-e'", "does not parse", "got 'nan'"),
    ("bench all_reduce -e 1e999", "'-e'", "does not parse", "got '1e999'"),
    ("bench all_reduce -e 1e305G", "'-e'", "does not parse", "got '1e305G'"),
    ("bench all_reduce -i 1Mi", "'-i'", "does not parse", "got '1Mi'"),
    ("bench all_reduce -b 100T", "'-b'", "does not parse", "got '100T'"),
    ("bench all_reduce -b 2M -e 1M", "-b is greater than -e", "2097152 > 1048576", "Try:"),
    ("bench all_reduce -b 64M", "-b is greater than -e", "67108864 > 33554432"),
    ("bench all_reduce -b 0", "-b 0", "smallest size is 1 byte", "Try:"),
    ("bench all_reduce -b 0.5", "-b 0", "smallest size is 1 byte"),
    ("bench all_reduce -b 8 -i 0", "-i 0 without -f", "never grow", "Try:"),
    (f"bench all_reduce -b 102400G -e 102400G {HOST_ONLY}", "does not fit into memory",
     "got -b 109951162777600 bytes", "expected at most", "GiB) for each buffer", "Try: -b"),
    # Words that are none of those known.
    ("bench", "Missing command", "Try: meshrun bench --help"),
    ("bench all_shrink", "No such command 'all_shrink'", "Try: meshrun bench --help"),
    ("bench all_reduce -d float12", "'-d'", "'float12' is none of int8, uint8", "f8e5m2, all", "Try:"),
    ("bench all_reduce -o xor", "'-o'", "'xor' is none of sum, prod", "mulsum, all", "Try:"),
    ("bench all_reduce -n many", "'-n'", "'many' is not a valid integer", "Try:"),
    ("bench all_reduce -n 0", "'-n'", "0 is not in the range", "Try:"),
    ("bench all_reduce -m 0", "'-m'", "0 is not in the range"),
    ("bench all_reduce -w -1", "'-w'", "-1 is not in the range"),
    ("bench all_reduce -N -1", "'-N'", "-1 is not in the range"),
    ("bench all_reduce -f 0", "'-f'", "0 is not in the range"),
    ("bench all_reduce -f 1.5", "'-f'", "'1.5' is not a valid integer"),
    ("bench all_reduce -a 4", "'-a'", "4 is not in the range"),
    ("bench all_reduce -z 4", "'-z'", "4 is not in the range"),
    ("bench all_reduce -T soon", "'-T'", "'soon' is not a valid integer"),
    ("bench all_reduce --nosuch", "No such option '--nosuch'", "Try:"),
    ("bench all_reduce extra", "unexpected extra argument (extra)", "Try:"),
    ("bench all_reduce --device tpu", "'--device'", "'tpu' is not one of", "Try:"),
    ("bench all_reduce --min-busbw nan", "--min-busbw nan", "a bandwidth is 0 GB/s or more"),
    ("bench all_reduce --min-busbw fast", "'--min-busbw'", "'fast' is not a valid float"),
    # What nccl-tests has and this has not.
    ("bench all_reduce -g eight", "'-g'", "'eight' is not a valid integer", "Try:"),
    ("bench all_reduce -t 0", "'-t'", "0 is not in the range", "Try:"),
    ("bench all_reduce -D 1 -R 2", "'-D'", "device headers", "Try:"),
    ("bench all_reduce -V 8", "'-V'", "device headers", "Try:"),
    # What does not go together.
    (f"{BENCH} -z 3 -G 1", "-z", "a graph (-G)", "Try:"),
    (f"{BENCH} -I 1 -G 1", "-I", "a graph (-G)", "Try:"),
    (f"{BENCH} -I 1 -K 2", "-K 2 leaves none of -n 2", "Try:"),
    (f"{BENCH} -K 1", "-K", "add -I 1", "Try:"),
    # What does not go with these ranks.
    (f"bench broadcast {HOST_ONLY} -r 1", "no such root", "got -r 1", "expected at most 0"),
    (f"bench all {HOST_ONLY} -r 1", "no such root", "got -r 1", "expected at most 0"),
    ("bench broadcast -r -2", "'-r'", "-2 is not in the range", "Try:"),
    (f"{BENCH} -G 2", "-G", "NCCL and GPUs", "got ranks that measure host memory", "Try: without -G"),
    (f"{BENCH} -M 1", "-M", "NCCL and GPUs", "Try: without -M"),
    (f"{BENCH} -R 1", "-R", "NCCL and GPUs", "Try: without -R"),
    (f"{BENCH} -x 0", "-x", "NCCL and GPUs", "Try: without -x"),
    (f"{BENCH} -y 1 -R 2", "-R, -y", "NCCL and GPUs", "Try: without -R, -y, or with --device cuda"),
    (f"{BENCH} --split MOD0", "the split does not parse", "got 'MOD0'", "such as MOD8"),
    (f"{BENCH} --split FOO", "the split does not parse", "got 'FOO'", "expected AND, OR, MOD or DIV"),
    (f"{BENCH} --split-mask zz", "not a hexadecimal number", "got 'zz'"),
    (f"bench alltoallv -b 64 -e 64 {HOST_ONLY} --matrix gone", "traffic matrix gone cannot be read"),
    (f"bench alltoallv -b 64 -e 64 {HOST_ONLY} --matrix words.npy", "traffic matrix words.npy"),
    (f"bench pingpong {HOST_ONLY}", "pingpong needs two ranks", "Try: meshrun -n 2 bench pingpong"),
    ("bench scale", "Missing argument 'OPERATION'", "Try:"),
    ("bench scale all_shrink", "'all_shrink' is not one of", "Try:"),
    ("bench scale all_reduce --split MOD2", "scale splits the ranks itself", "Try:"),
    (f"bench scale broadcast -b 64 -e 64 {HOST_ONLY} -r 1", "no such root"),
    # Files.
    (f"{BENCH} -J out.txt", "not JSON", "got out.txt", "expected a name ending in .json"),
    (f"{BENCH} -J gone/out.json", "cannot write gone/out.json", "No such file or directory"),
    (f"{BENCH} --plot out.xyz", "is unknown", "got out.xyz", "expected .html"),
    (f"{BENCH} --plot gone/out.svg", "cannot write gone/out.svg", "No such file or directory"),
    (f"{BENCH} --plot folder.svg", "cannot write folder.svg", "Is a directory"),
    (f"{BENCH} --json-lines gone/out", "cannot write gone/out", "No such file or directory"),
    (f"{BENCH} --json-lines .", "cannot write .", "Is a directory"),
    (f"{BENCH} --csv gone/out", "cannot write gone/out", "No such file or directory"),
    (f"bench broadcast {HOST_ONLY} -r 1 --plot out.svg --json-lines words.npy", "no such root"),
    # Records.
    ("bench compare gone.txt in.npy", "cannot read gone.txt", "No such file or directory"),
    ("bench compare words.npy words.npy", "words.npy holds no measurements", "expected the output of"),
    ("bench compare in.npy in.npy", "in.npy holds no measurements"),
    ("bench compare words.npy", "Missing argument 'B'", "Try:"),
    ("bench compare a b --tolerance -1", "'--tolerance'", "-1.0 is not in the range", "Try:"),
    ("bench compare a b --metric speed", "'--metric'", "'speed' is not one of", "Try:"),
    ("bench plot --to out.svg", "Missing argument 'RECORD...'", "Try:"),
    ("bench plot words.npy", "Missing option '--to'", "Try:"),
    ("bench plot gone.txt --to out.svg", "cannot read gone.txt"),
    ("bench plot words.npy --to out.svg", "words.npy holds no measurements"),
]  # fmt: skip


@pytest.mark.parametrize("case", BENCH_CASES, ids=lambda case: case[0][:60])
def test_a_mistake_in_what_to_measure(run: Run, case: tuple[str, ...]) -> None:
    words, *says = case
    ended = run(words.split())
    assert (ended.returncode, ended.stdout) == (BAD_USAGE, ""), ended.stderr
    one_sentence(ended.stderr, *says)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("run laplacian gone.npy out.npy", 2),
        ("run broken.py in.npy out.npy", 2),
        (f"{WORK} --gain 3", 2),
        ("bench all_reduce -b foo", BAD_USAGE),
        (f"bench broadcast {HOST_ONLY} -r 1", BAD_USAGE),
    ],
)
def test_the_installed_command_says_the_same(run: Run, run_apart: Run, words: str, status: int) -> None:
    """Of each kind of mistake one, each noticed at another place on the way to a run."""
    ended = run_apart(words.split())
    assert (ended.returncode, ended.stdout) == (status, "")
    one_sentence(ended.stderr)
    assert ended.stderr == run(words.split()).stderr


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NCCL_TESTS_SPLIT", "nope", "the split does not parse: got 'nope'"),
        ("NCCL_TESTS_SPLIT_MASK", "0xg", "the split mask is not a hexadecimal number: got '0xg'"),
        ("NCCL_TESTS_MIN_BW", "fast", "'fast' is not a valid float"),
        ("NCCL_TESTS_ALLTOALLV_SPREAD", "wide", "'wide' is not a valid float"),
    ],
)
def test_a_mistake_in_the_environment(run: Run, name: str, value: str, says: str) -> None:
    words = ["bench", "alltoallv", "-b", "64", "-e", "64", "--device", "cpu"]
    ended = run(words, **{name: value})
    assert (ended.returncode, ended.stdout) == (BAD_USAGE, "")
    one_sentence(ended.stderr, says)


@pytest.mark.parametrize("option", ["-J closed/out.json", "--plot closed/out.svg", "--csv closed/out"])
def test_a_measurement_that_may_not_be_kept(run_apart: Run, work: Path, option: str) -> None:
    (work / "closed").mkdir(mode=0o555)
    ended = run_apart([*BENCH.split(), *option.split()], preexec_fn=powerless)
    assert (ended.returncode, ended.stdout) == (BAD_USAGE, "")
    one_sentence(ended.stderr, f"cannot write {option.split()[1]}", "Permission denied")


def test_measuring_gpus_where_there_are_none(run_apart: Run) -> None:
    words = ["bench", "all_reduce", "-b", "64", "-e", "64", "--device", "cuda"]
    ended = run_apart(words, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert (ended.returncode, ended.stdout) == (BAD_USAGE, "")
    one_sentence(ended.stderr, "[rank 0, host ", "cuda")


@pytest.mark.parametrize(
    "words", ["jobs", "kernel laplacian a", "bench compare a b", "bench plot a --to b.svg"]
)
def test_ranks_for_what_no_rank_does(run: Run, words: str) -> None:
    ended = run(["-n", "2", *words.split()])
    assert (ended.returncode, ended.stdout) == (2, "")
    one_sentence(ended.stderr, "starts no ranks; remove -n", "Try: ")


@pytest.mark.parametrize("words", ["--simulate hosts=2,gpus=2", "--quick --simulate=hosts=2,gpus=2"])
def test_a_rehearsal_starts_no_ranks(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("meshrun.launch.mpi.local.start", lambda *_, **__: pytest.fail("ranks were started"))
    assert main(["-n", "2", "validate", *words.split()]) == 3
    written = capsys.readouterr()
    one_sentence(written.err, "`meshrun validate --simulate` starts no ranks; remove -n", "Try: ")
    assert written.out.startswith("UNKNOWN: ")


def one_sentence(errors: str, *says: str) -> None:
    """`errors` is one line of ours that says all of `says`, in this order."""
    assert errors.startswith("meshrun: ")
    assert errors.count("\n") == 1
    assert re.search(".*".join(map(re.escape, says)), errors), errors


def powerless() -> None:
    """Take from a root process the right to pass over permissions, before it becomes the command."""
    drop, rights = 24, (1, 2)  # PR_CAPBSET_DROP; CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    for right in rights if os.geteuid() == 0 else ():
        if ctypes.CDLL(None, use_errno=True).prctl(drop, right, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def test_a_file_that_may_not_be_read(run_apart: Run, work: Path) -> None:
    for name in ("in.npy", "in.png"):
        (work / name).chmod(0o000)
    for name in ("in.npy", "in.png"):
        ended = run_apart(["run", "laplacian", name, "out.npy"], preexec_fn=powerless)
        assert ended.returncode == 2
        one_sentence(ended.stderr, f"cannot read {name}", "Permission denied")


def test_a_folder_that_may_not_be_written_to(run_apart: Run, work: Path) -> None:
    (work / "closed").mkdir(mode=0o555)
    ended = run_apart(["run", "laplacian", "in.npy", "closed/out.npy"], preexec_fn=powerless)
    assert ended.returncode == 2
    one_sentence(
        ended.stderr, "the output's folder cannot be written to", "got closed", "Try: another folder"
    )
    ended = run_apart([*WORK.split(), "--json", "closed/record.json"], preexec_fn=powerless)
    assert ended.returncode == 2
    one_sentence(ended.stderr, "the record's folder cannot be written to", "got closed")


def test_cuda_where_there_is_none_names_the_extra_or_the_driver(run_apart: Run) -> None:
    ended = run_apart([*WORK.split(), "--device", "cuda"], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert ended.returncode == 2
    # Which of the two depends on whether CuPy is installed here.
    no_cupy = "CuPy cannot be imported.*Try: pip install 'meshrun\\[cuda12\\]'.*'meshrun\\[cuda13\\]'"
    assert re.search(f"{no_cupy}|finds no GPU.*Try: ", ended.stderr)
    one_sentence(ended.stderr, "[rank 0, host ", "cuda")


def test_the_traceback_is_there_for_those_who_ask(run: Run) -> None:
    ended = run(["run", "odd.py", "in.npy", "out.npy", "--debug"])
    assert ended.returncode == 2
    assert 'odd.py", line 2' in ended.stderr


@pytest.mark.parametrize("name", ["in.npy", "in.png"])
def test_a_file_may_be_filtered_into_itself(run: Run, work: Path, name: str) -> None:
    """Read in parts while it is written: the new content is beside it until the end."""
    path = work / name
    before = np.load(work / "in.npy")
    ended = run(["run", "laplacian", name, name, "--verify", "full", "--overwrite-input"])
    assert (ended.returncode, ended.stdout) == (0, "")
    after = np.load(path) if path.suffix == ".npy" else np.asarray(Image.open(path))
    np.testing.assert_array_equal(after, laplacian(before))
