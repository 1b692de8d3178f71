"""The .npy format: whatever NumPy writes is read, what we write NumPy reads, broken files are named."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.runner.errors import RunError, UserError
from meshrun.runner.plan.grid import Partition
from meshrun.runner.region import Region, Shape
from meshrun.runner.storage.formats.npy import NpySink
from meshrun.runner.storage.formats.registry import check_output, commit, open_sink, open_source
from meshrun.runner.storage.paths import partial_path

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def whole(shape: Shape) -> Region:
    return Region((0,) * len(shape), shape)


def sample(shape: Shape, dtype: str) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 100, shape)
    return np.asarray(values + 1j * values if "c" in dtype else values).astype(dtype)


def read(path: Path, region: Region | None = None) -> np.ndarray:
    source = open_source(path)
    region = region or whole(source.shape)
    target = np.empty(region.shape, source.dtype)
    source.read(region, target)
    return target


def write(path: Path, array: np.ndarray, grid: Shape | None = None, order: list[int] | None = None) -> None:
    """Write block by block, as the ranks of `grid` in the given order would."""
    partition = Partition(array.shape, grid or (1,) * array.ndim)
    open_sink(path, array.shape, array.dtype, "nonce").create()
    for rank in order or range(partition.size):
        sink = open_sink(path, array.shape, array.dtype, "nonce")  # each rank has its own
        block = (*partition[rank].slices, ...)  # a view, also of a scalar
        sink.write(partition[rank], array[block])
    commit(sink)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0), (4, 5), (2, 3, 4)])
@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(tmp_path: Path, dtype: str, byte_order: str, shape: Shape) -> None:
    array = sample(shape, byte_order + dtype)
    path = tmp_path / "a.npy"
    write(path, array)
    theirs, ours = np.load(path), read(path)
    assert theirs.dtype == array.dtype
    assert ours.dtype == array.dtype.newbyteorder("=")
    for got in (theirs, ours):
        assert got.shape == shape
        np.testing.assert_array_equal(got, array)
    assert os.listdir(tmp_path) == ["a.npy"]


@pytest.mark.parametrize("dtype", [">f8", "<i2", "=c16", "?"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (4, 5), (2, 3, 4)])
def test_every_file_that_numpy_writes(
    tmp_path: Path, shape: Shape, order: str, version: tuple[int, int], dtype: str
) -> None:
    array = np.asarray(sample(shape, dtype), order="F" if order == "F" else "C")
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    got = read(path)
    assert got.flags.c_contiguous
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, array)


@given(st.data())
def test_blocks_written_in_any_order_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    grid = tuple(data.draw(st.integers(1, 4)) for _ in shape)
    order = data.draw(st.permutations(range(math.prod(grid))))
    array = sample(shape, data.draw(st.sampled_from(DTYPES)))
    path = tmp_path_factory.getbasetemp() / "blocks.npy"
    write(path, array, grid, order)
    np.testing.assert_array_equal(np.load(path), array)


@given(st.data())
def test_any_region_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    pairs = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    region = Region(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
    array = sample(shape, ">i4")
    path = tmp_path_factory.getbasetemp() / "region.npy"
    np.save(path, np.asarray(array, order=data.draw(st.sampled_from("CF"))))
    np.testing.assert_array_equal(read(path, region), array[region.slices])


def test_a_block_need_not_be_contiguous(tmp_path: Path) -> None:
    array = sample((4, 6), "f4")
    path = tmp_path / "a.npy"
    write(path, np.asfortranarray(array))
    np.testing.assert_array_equal(np.load(path), array)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 2), "f4"), ((2, 3), "f8"), ((2, 3), ">f4"), ((6,), "f4"), ((2, 3), "i4")]
)
def test_an_array_that_is_not_the_region_is_refused(tmp_path: Path, shape: Shape, dtype: str) -> None:
    """Its bytes would land beside their place, in another rank's part."""
    sink = open_sink(tmp_path / "a.npy", (2, 3), np.dtype("f4"), "nonce")
    sink.create()
    with pytest.raises(ValueError, match="float32"):
        sink.write(whole((2, 3)), np.zeros(shape, dtype))


def test_a_source_travels_as_a_description(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100_000))
    source = open_source(tmp_path / "a.npy")
    assert source.array[7] == 7
    message = pickle.dumps(source)
    assert len(message) < 2000
    assert pickle.loads(message).array[99_999] == 99_999


def test_reading_maps_the_file(tmp_path: Path) -> None:
    """A rank that reads its part does not load the whole."""
    np.save(tmp_path / "a.npy", np.arange(10))
    assert isinstance(open_source(tmp_path / "a.npy").array, np.memmap)


# Broken files


def header(text: str, version: int = 1) -> bytes:
    size = (len(text) + 1).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode("latin1") + b"\n"


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
BROKEN = {
    "empty": b"",
    "text": b"this is not an array\n" * 10,
    "magic only": b"\x93NUMPY",
    "half a header": header(GOOD)[:30],
    "a future version": b"\x93NUMPY\x09\x00" + header(GOOD)[8:],
    "no dictionary": header("[1, 2, 3]"),
    "code": header("__import__('os').abort()"),
    "an open bracket": header("{'descr': '<f4', 'shape': (2, 3"),
    "an open text": header("{'descr': '<f4"),
    "a bad indent": header("x\n    y\n  z"),
    "a missing key": header("{'descr': '<f4', 'shape': (2, 3)}"),
    "no dtype": header(GOOD.replace("<f4", "zebra")),
    "a negative length": header(GOOD.replace("(2, 3)", "(-2, 3)")) + bytes(100),
    "a length of text": header(GOOD.replace("(2, 3)", "('2', 3)")) + bytes(100),
    "a null byte": header(GOOD.replace("2", "\0")),
    "a huge shape without cells": header(GOOD.replace("(2, 3)", f"({2**62}, 0)")) + bytes(100),
    "a huge shape": header(GOOD.replace("(2, 3)", f"({10**30}, 3)")) + bytes(100),
    "an endless header": header(GOOD + " " * 20_000),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "broken.npy"
    path.write_bytes(BROKEN[name])
    with pytest.raises(UserError, match=r"broken\.npy"):
        open_source(path)


@given(st.binary(min_size=1, max_size=3), st.integers(0, len(header(GOOD)) - 1), st.integers(0, 3))
@settings(max_examples=3 * settings().max_examples)
def test_a_damaged_header_is_refused_or_read_as_numpy_reads_it(
    tmp_path_factory: pytest.TempPathFactory, damage: bytes, position: int, dropped: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npy"
    good = header(GOOD)
    path.write_bytes(good[:position] + damage + good[position + dropped :] + bytes(24))
    try:
        outcome: np.ndarray | str = read(path)
    except UserError as failure:
        outcome = str(failure)
    if isinstance(outcome, str):
        assert str(path) in outcome
    else:
        np.testing.assert_array_equal(outcome, np.load(path))


@pytest.mark.parametrize("missing", [1, 23, 24])
def test_a_truncated_file_is_refused_before_anything_is_read(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "short.npy"
    np.save(path, np.zeros((2, 3), "f4"))
    os.truncate(path, path.stat().st_size - missing)
    with pytest.raises(UserError, match=r"truncated.*expected 152 for shape \(2, 3\) of float32"):
        open_source(path)


@pytest.mark.parametrize(
    "array",
    [
        np.array([None, "x"], object),
        np.zeros(3, [("x", "f4"), ("y", "i2")]),
        np.array(["a", "bc"]),
        np.array([b"a"]),
        np.array(["2024-01-01"], "M8[D]"),
        np.array([3], "m8[s]"),
        np.zeros(2, "V3"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_what_is_not_numbers_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(UserError, match="does not hold numbers"):
        open_source(tmp_path / "a.npy")


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(UserError, match="does not exist"):
        open_source(tmp_path / "missing.npy")
    with pytest.raises(UserError, match="a folder"):
        open_source(tmp_path / "folder.npy")
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    with pytest.raises(UserError, match=r"loop\.npy"):
        open_source(tmp_path / "loop.npy")
    for name, got in (("a.xyz", r"\.xyz"), ("a", "no suffix"), (".npy", "no suffix")):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"unknown file format.*{got}.*expected .npy, .png"):
            open_source(tmp_path / name)


def test_the_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "a.npy").rename(tmp_path / "A.NPY")
    assert read(tmp_path / "A.NPY").tolist() == [0, 1, 2]


unprivileged = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")


@unprivileged
def test_files_without_permission(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "a.npy").chmod(0)
    with pytest.raises(UserError, match="Permission denied"):
        open_source(tmp_path / "a.npy")


# Outputs


def test_outputs_that_could_not_be_written_are_refused_first(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        check_output(tmp_path / "folder.npy")
    with pytest.raises(UserError, match=r"does not exist.*mkdir -p"):
        check_output(tmp_path / "missing" / "a.npy")
    with pytest.raises(UserError, match="unknown file format"):
        check_output(tmp_path / "a.xyz")
    check_output(tmp_path / "a.npy")
    assert os.listdir(tmp_path) == ["folder.npy"]


@unprivileged
def test_a_folder_without_permission_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written to"):
        check_output(tmp_path / "locked" / "a.npy")


def test_the_unfinished_file_is_beside_the_final_one_and_hidden(tmp_path: Path) -> None:
    partial = partial_path(tmp_path / "a.npy", "n0")
    assert partial.parent == tmp_path
    assert partial.name.startswith(".")
    assert partial != partial_path(tmp_path / "a.npy", "n1"), "two runs do not share it"


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3))
    sink = open_sink(path, (2,), np.dtype("f4"), "nonce")
    sink.create()
    sink.write(whole((2,)), np.ones(2, "f4"))
    assert np.load(path).tolist() == [0, 1, 2]
    commit(sink)
    assert np.load(path).tolist() == [1, 1]
    assert os.listdir(tmp_path) == ["a.npy"]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: what a full disk looks like, on any machine."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_shows_before_the_work(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3))
    sink = open_sink(path, (1000, 1000), np.dtype("f4"), "nonce")
    with file_size_limit(1_000_000), pytest.raises(RunError, match=r"bytes free.*expected 4,000,128 bytes"):
        sink.create()
    assert os.listdir(tmp_path) == ["a.npy"], "no unfinished file is left"
    assert np.load(path).tolist() == [0, 1, 2], "the old file is as it was"


def test_a_disk_that_fills_up_during_the_work(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "a.npy", (1000,), np.dtype("f8"), "nonce")
    sink.create()
    with file_size_limit(4000), pytest.raises(RunError, match=r"cannot write .*a\.npy.*too large"):
        sink.write(whole((1000,)), np.zeros(1000))


def test_a_file_system_that_cannot_reserve_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("meshrun.runner.files.fallocate", unsupported)
    write(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    assert np.load(tmp_path / "a.npy").tolist() == [[0, 1, 2], [3, 4, 5]]


# A process to which the kernel says of fallocate(2) that this file system has none.
WITHOUT_FALLOCATE = """
import ctypes, os, platform, struct, sys
from pathlib import Path
import numpy as np
from meshrun.runner.storage.formats.registry import open_sink

number = {"x86_64": 285, "aarch64": 47}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 95), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
prctl = ctypes.CDLL(None).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
    sys.exit("no filter")
sink = open_sink(Path(sys.argv[1]), (64 << 20,), np.dtype("u1"), "nonce")
sink.create()
found = os.stat(sink.partial)
print(found.st_size - sink.offset, found.st_blocks * 512)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="other numbers of system calls")
def test_without_fallocate_no_block_is_written_before_the_work(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WITHOUT_FALLOCATE, str(tmp_path / "a.npy")]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    if ended.stderr.startswith("no filter"):
        pytest.skip("the kernel has no seccomp filters")
    assert ended.returncode == 0, ended.stderr
    size, room = map(int, ended.stdout.split())
    assert size == 64 << 20
    assert room <= 64 << 10


def test_a_folder_that_disappears(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    sink = open_sink(tmp_path / "gone" / "a.npy", (3,), np.dtype("f4"), "nonce")
    (tmp_path / "gone").rmdir()
    with pytest.raises(RunError, match=r"cannot write .*a\.npy.*No such file"):
        sink.create()


def test_an_unfinished_file_of_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    """It is another run's."""
    sink = open_sink(tmp_path / "a.npy", (3,), np.dtype("f4"), "nonce")
    sink.partial.write_text("another run's")
    with pytest.raises(RunError, match="File exists"):
        sink.create()
    assert sink.partial.read_text() == "another run's"


def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: whole_write(fd, data[:7], position))
    array = sample((5, 9), "f8")
    write(tmp_path / "a.npy", array, (2, 2))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)


def test_rows_are_written_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut along the first axis is one run of bytes; along the last, one run a row."""
    whole_write, sizes = os.pwrite, []

    def count(descriptor: int, data: bytes, position: int) -> int:
        sizes.append(len(data))
        return whole_write(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", count)
    sink = NpySink(tmp_path / "a.npy", tmp_path / "p", (4, 6, 2), np.dtype("u1"))
    sink.create()
    for region, expected in [
        (Region((1, 0, 0), (3, 6, 2)), [24]),
        (Region((0, 2, 0), (4, 5, 2)), [6] * 4),
        (Region((0, 0, 1), (4, 6, 2)), [1] * 24),
    ]:
        sizes.clear()
        sink.write(region, np.zeros(region.shape, "u1"))
        assert sizes == expected


def test_the_header_is_aligned_for_mapping() -> None:
    for shape, dtype in itertools.product([(), (3,), (10**12, 10**6)], DTYPES):
        assert len(NpySink(Path("a"), Path("b"), shape, np.dtype(dtype))._header) % 64 == 0


def test_a_file_that_only_rank_0_has_gets_a_sentence(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones((4, 3)))
    source = open_source(tmp_path / "in.npy")
    sink = open_sink(tmp_path / "out.npy", (4, 3), np.dtype(np.float64), "nonce")
    (tmp_path / "in.npy").unlink()
    region = Region((0, 0), (4, 3))
    with pytest.raises(RunError, match=r"rank 0 has .*in.npy, this rank cannot open it.*all hosts share"):
        source.read(region, np.empty((4, 3)))
    with pytest.raises(RunError, match=r"rank 0 has .*out.npy, this rank cannot open it.*all hosts share"):
        sink.write(region, np.ones((4, 3)))
