"""What every format that ranks write in parts has to do, whichever it is."""

from __future__ import annotations

import errno
import importlib.util
import math
import os
import pickle
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshrun
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.files import remove_path
from meshrun.runner.options.form import Form
from meshrun.runner.plan.task import plan_task
from meshrun.runner.region import Region, Shape
from meshrun.runner.run.verify.results import padded
from meshrun.runner.storage.formats.flat import FlatSink, FlatSource
from meshrun.runner.storage.formats.registry import (
    MemorySource,
    Sink,
    Source,
    check_output,
    commit,
    open_sink,
    open_source,
    partial_path,
    read_back,
    reopen,
    split,
)
from meshrun.runner.storage.formats.sliced_array import Unmapped
from meshrun.runner.storage.paths import KEPT, is_kept

PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "wrap": "wrap", "constant": "constant"}
NEEDS = {".zarr": "zarr", ".h5": "h5py", ".tif": "tifffile"}
SUFFIXES = [
    pytest.param(
        suffix,
        marks=pytest.mark.skipif(
            suffix in NEEDS and importlib.util.find_spec(NEEDS[suffix]) is None, reason="not installed"
        ),
    )
    for suffix in (".npy", ".raw", ".zarr", ".h5", ".tif")
]
FLAT = [param for param in SUFFIXES if param.values != (".zarr",)]
DTYPES = ["u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8"]


HINTS = {"nonce": "an output on another disk", KEPT: "make room, then the same command with --resume"}


def unclaimable(*_: int) -> NoReturn:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def whole(shape: Shape) -> Region:
    return Region((0,) * len(shape), shape)


def sample(shape: Shape, dtype: str = "f4") -> np.ndarray:
    values = np.random.default_rng(0).integers(1, 100, shape)
    return np.asarray(values + 1j * values if "c" in dtype else values).astype(dtype)


def form_for(path: Path, array: np.ndarray) -> Form | None:
    return Form(array.shape, array.dtype.str) if path.suffix == ".raw" else None


def read(source: Source, region: Region | None = None) -> np.ndarray:
    region = region or whole(source.shape)
    target = np.empty(region.shape, source.dtype)
    source.read(region, target)
    return target


def cuts(sink: Sink, shape: Shape, rows: int) -> list[Region]:
    """Runs of rows that the sink takes: whole chunks where it has such."""
    step = rows if sink.chunks is None else sink.chunks[0]
    return [whole(shape).rows(a, min(a + step, shape[0])) for a in range(0, shape[0], step)]


def write(path: Path, array: np.ndarray, rows: int = 3) -> Sink:
    sink = open_sink(path, array.shape, array.dtype, "nonce")
    sink.create()
    for region in cuts(sink, array.shape, rows):
        sink.write(region, array[region.slices])
    return sink


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_comes_back(tmp_path: Path, suffix: str, dtype: str) -> None:
    for shape in ((7, 5), (4, 5, 6), (5, 6, 3), (5, 6, 1)):
        path, array = tmp_path / f"a{suffix}", sample(shape, dtype)
        sink = write(path, array)
        assert not path.exists(), "it has no name before it is complete"
        back = read_back(sink)
        assert (back.shape, back.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(read(back), array)
        commit(sink)
        source = open_source(path, form_for(path, array))
        np.testing.assert_array_equal(read(source), array)
        np.testing.assert_array_equal(np.asarray(source.array), array)
        assert [one.name for one in tmp_path.iterdir()] == [path.name]
        remove_path(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
def test_any_region_is_read_into_any_target(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=2, max_size=4)))
    array, path = sample(shape, "i4"), tmp_path_factory.getbasetemp() / f"region{suffix}"
    commit(write(path, array))
    pairs = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    region = Region(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
    source = open_source(path, form_for(path, array))
    layout = data.draw(st.sampled_from(["contiguous", "columns first", "inside", "spread"]))
    if layout == "contiguous":
        target = np.empty(region.shape, "i4")
    elif layout == "columns first":
        target = np.empty(region.shape, "i4", order="F")
    elif layout == "inside":  # as a block lies inside its halo
        target = np.empty([n + 2 for n in region.shape], "i4")[(slice(1, -1),) * len(shape)]
    else:
        target = np.empty([2 * n for n in region.shape], "i4")[(slice(None, None, 2),) * len(shape)]
    source.read(region, target)
    np.testing.assert_array_equal(target, array[region.slices])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_threads_read_and_write_at_once(tmp_path: Path, suffix: str, monkeypatch: Any) -> None:
    if suffix == ".zarr":
        monkeypatch.setattr("meshrun.runner.storage.formats.zarr.CHUNK", 2000)
    array = sample((64, 5, 40))
    sink = open_sink(tmp_path / f"a{suffix}", array.shape, array.dtype, "nonce")
    sink.create()
    regions = cuts(sink, array.shape, 2)
    assert len(regions) > 8
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda region: sink.write(region, array[region.slices]), regions))
        source = read_back(sink)
        parts = list(pool.map(lambda region: read(source, region), regions))
    np.testing.assert_array_equal(np.concatenate(parts), array)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_sink_goes_on_with_what_an_earlier_run_has_left(
    tmp_path: Path, suffix: str, monkeypatch: Any
) -> None:
    if suffix == ".zarr":
        monkeypatch.setattr("meshrun.runner.storage.formats.zarr.CHUNK", 200)
    array, path = sample((12, 10)), tmp_path / f"a{suffix}"
    first = open_sink(path, array.shape, array.dtype, "nonce")
    first.create()
    one, *others = cuts(first, array.shape, 5)
    first.write(one, array[one.slices])
    first.sync()
    later = open_sink(path, array.shape, array.dtype, "nonce")
    np.testing.assert_array_equal(read(read_back(later), one), array[one.slices])
    for region in others:
        later.write(region, array[region.slices])
    later.sync()
    commit(later)
    np.testing.assert_array_equal(read(open_source(path, form_for(path, array))), array)


@pytest.mark.parametrize("suffix", FLAT)
def test_the_offset_is_where_the_bytes_are(tmp_path: Path, suffix: str) -> None:
    array, path = sample((9, 4)), tmp_path / f"a{suffix}"
    sink = open_sink(path, array.shape, array.dtype, "nonce")
    sink.create()
    assert isinstance(sink, FlatSink)
    with sink.partial.open("r+b") as file:
        file.seek(sink.offset)
        file.write(array.tobytes())
    commit(sink)
    source = open_source(path, form_for(path, array))
    np.testing.assert_array_equal(read(source), array)
    assert isinstance(source, FlatSource)
    assert path.read_bytes()[source.offset :][: array.nbytes] == array.tobytes()
    assert isinstance(source.array, np.memmap)


@pytest.mark.parametrize("suffix", FLAT)
def test_room_is_claimed_when_the_file_is_made(tmp_path: Path, suffix: str) -> None:
    sink = open_sink(tmp_path / f"a{suffix}", (1 << 10, 1 << 10), np.dtype("f4"), "nonce")
    sink.create()
    assert sink.partial.stat().st_blocks * 512 >= 4 << 20


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_descriptions_travel(tmp_path: Path, suffix: str) -> None:
    array, path = sample((40, 50)), tmp_path / f"a{suffix}"
    sink = open_sink(path, array.shape, array.dtype, "nonce")
    sink.create()
    far = pickle.loads(pickle.dumps(sink))
    far.write(whole(array.shape), array)
    far.sync()
    sink.sync()
    commit(sink)
    source = open_source(path, form_for(path, array))
    assert source.array[3, 4] == array[3, 4]
    message = pickle.dumps(source)
    assert len(message) < 2000
    np.testing.assert_array_equal(read(pickle.loads(message)), array)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_reopen_sees_what_is_on_the_disk(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    old, new = sample((8, 5)), sample((8, 5)) + 1
    commit(write(path, old))
    source = open_source(path, form_for(path, old))
    np.testing.assert_array_equal(source.array[2:4], old[2:4])
    commit(write(path, new))
    again = reopen(source)
    assert again is not source
    np.testing.assert_array_equal(again.array[2:4], new[2:4])
    np.testing.assert_array_equal(read(again), new)


def test_an_array_in_memory_is_its_own_description() -> None:
    source = MemorySource(np.arange(3))
    assert reopen(source) is source
    assert source.chunks is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shapes_and_dtypes_that_are_not_the_regions_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    sink = write(path, sample((4, 6)))
    for array in (np.zeros((4, 5), "f4"), np.zeros((4, 6), "f8")):
        with pytest.raises(ValueError, match="float32"):
            sink.write(whole((4, 6)), array)
        with pytest.raises(ValueError, match="float32"):
            read_back(sink).read(whole((4, 6)), array)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_only_rank_0_has_gets_a_sentence(tmp_path: Path, suffix: str) -> None:
    path, array = tmp_path / f"a{suffix}", sample((4, 6))
    sink = write(path, array)
    commit(sink)
    source = pickle.loads(pickle.dumps(open_source(path, form_for(path, array))))
    remove_path(path)
    with pytest.raises(RunError, match=r"rank 0 has .*this rank cannot open it.*all hosts share"):
        read(source)
    with pytest.raises(RunError, match=r"rank 0 has .*this rank cannot open it.*all hosts share"):
        open_sink(path, array.shape, array.dtype, "other").write(whole(array.shape), array)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_unfinished_output_of_another_run_is_not_overwritten(tmp_path: Path, suffix: str) -> None:
    sink = write(tmp_path / f"a{suffix}", sample((4, 6)))
    with pytest.raises(RunError, match="File exists"):
        open_sink(sink.path, (4, 6), np.dtype("f4"), "nonce").create()
    np.testing.assert_array_equal(read(read_back(sink)), sample((4, 6)))
    remove_path(sink.partial)
    remove_path(sink.partial)  # nothing is there
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_old_output_stays_until_the_new_one_is_complete(tmp_path: Path, suffix: str) -> None:
    path, old, new = tmp_path / f"a{suffix}", sample((4, 6)), sample((8, 6)) + 1
    commit(write(path, old))
    check_output(path)
    sink = write(path, new)
    np.testing.assert_array_equal(read(open_source(path, form_for(path, old))), old)
    commit(sink)
    np.testing.assert_array_equal(read(open_source(path, form_for(path, new))), new)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_said_of_a_file_must_agree_with_it(tmp_path: Path, suffix: str) -> None:
    path, array = tmp_path / f"a{suffix}", sample((4, 6))
    commit(write(path, array))
    assert open_source(path, Form((4, 6), "float32")).shape == (4, 6)
    for form in (Form((6, 4), "f8"), Form((4, 7), "f4"), Form((4, 6), "f8"), Form((4, 6), "f2")):
        with pytest.raises(UserError, match=r"a\."):
            open_source(path, form)
    with pytest.raises(UserError, match="is not a dtype"):
        open_source(path, Form((4, 6), "zebra"))
    with pytest.raises(UserError, match="is not a dtype") as failure:
        open_source(path, Form((4, 6), "f\n["))
    assert "\n" not in str(failure.value)
    with pytest.raises(UserError, match="is not numeric"):
        open_source(path, Form((4, 6), "U3"))


def test_an_order_that_contradicts_the_header_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", sample((4, 6)))
    np.save(tmp_path / "f.npy", np.asfortranarray(sample((4, 6))))
    for file, order in (("c", "F"), ("f", "C")):
        with pytest.raises(UserError, match="another order"):
            open_source(tmp_path / f"{file}.npy", Form(order=order))
    for file, form in (("c", Form(order="C")), ("f", Form(order="F")), ("f", Form())):
        np.testing.assert_array_equal(read(open_source(tmp_path / f"{file}.npy", form)), sample((4, 6)))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_is_in_c_order_unless_it_says_otherwise(tmp_path: Path, suffix: str) -> None:
    path, array = tmp_path / f"a{suffix}", sample((4, 6))
    commit(write(path, array))
    np.testing.assert_array_equal(read(open_source(path, Form((4, 6), "f4", "C"))), array)


def fill_up(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("suffix", FLAT)
@pytest.mark.parametrize("run_id", ["nonce", KEPT])
def test_a_disk_that_is_full_midway_says_what_is_missing(
    tmp_path: Path, suffix: str, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshrun.runner.files.fallocate", unclaimable)
    sink = open_sink(tmp_path / f"a{suffix}", (3 << 10, 1 << 10), np.dtype("f4"), run_id)
    sink.create()
    third = Region((0, 0), (1 << 10, 1 << 10))
    sink.write(third, np.ones(third.shape, "f4"))
    monkeypatch.setattr(os, "pwrite", fill_up)
    with pytest.raises(RunError, match="No space left on device") as caught:
        sink.write(third, np.ones(third.shape, "f4"))
    found = re.search(r"expected ([\d,]+) bytes for the rest\. Try: (.*)", str(caught.value))
    assert found, caught.value
    assert (8 << 20) - (64 << 10) <= int(found[1].replace(",", "")) <= (8 << 20) + (64 << 10)
    assert found[2] == HINTS[run_id]


def test_room_that_was_claimed_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = open_sink(tmp_path / "a.raw", (1 << 20,), np.dtype("u1"), "nonce")
    sink.create()
    monkeypatch.setattr(os, "pwrite", fill_up)
    with pytest.raises(RunError, match=r"bytes free there\. Try") as caught:
        sink.write(whole((1 << 20,)), np.ones(1 << 20, "u1"))
    assert caught.value.expected is None


def test_an_output_of_which_nothing_was_made_is_nothing_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike an image of a folder: the others stay."""
    monkeypatch.setattr("meshrun.runner.files.fallocate", fill_up)
    folder = partial_path(tmp_path / "images", KEPT)
    folder.mkdir()
    for path, run_id, hint in (
        (tmp_path / "a.npy", KEPT, HINTS["nonce"]),
        (folder / "a.npy", "nonce", HINTS[KEPT]),
    ):
        with pytest.raises(RunError, match="No space left on device") as caught:
            open_sink(path, (8,), np.dtype("f4"), run_id).create()
        assert caught.value.hint == hint


def test_what_a_run_leaves_for_a_later_one_is_known_by_its_name() -> None:
    assert is_kept(partial_path(Path("a/b.npy"), KEPT))
    assert is_kept(partial_path(Path("a"), KEPT) / "b.png")
    assert not is_kept(partial_path(Path("a.stream.npy"), "nonce"))


@pytest.mark.parametrize("suffix", [".zarr", ".h5", ".hdf5"])
@pytest.mark.parametrize("name", [None, "a", "group/deep/a"])
def test_names_in_containers_are_split_off(suffix: str, name: str | None) -> None:
    for slash in ("", "/"):
        path = Path(f"/some/folder/x{suffix}" + (f":{slash}{name}" if name else ""))
        assert split(path) == (Path(f"/some/folder/x{suffix}"), name)
        assert partial_path(path, "n") == Path(f"/some/folder/.x{suffix}.n.partial")
    assert split(Path("a:b.npy")) == (Path("a:b.npy"), None)
    assert split(Path("a.npy:b")) == (Path("a.npy:b"), None)


@pytest.mark.parametrize(("name", "package", "extra"), [("a.zarr", "zarr", "zarr"), ("a.h5", "h5py", "hdf5")])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    module = {"zarr": "zarr", "h5py": "hdf5"}[package]
    monkeypatch.delitem(sys.modules, f"meshrun.runner.storage.formats.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    for action in (
        lambda: check_output(tmp_path / name),
        lambda: open_sink(tmp_path / name, (3,), np.dtype("f4"), "n"),
    ):
        with pytest.raises(UserError, match=rf"package {package}.*pip install 'meshrun\[{extra}\]'"):
            action()


# Slicing without a map


@given(data=st.data())
def test_unmapped_arrays_are_sliced_as_numpy_slices(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=0, max_size=3)))
    array = np.arange(math.prod(shape)).reshape(shape)
    cells = Unmapped(MemorySource(array))
    steps = st.one_of(st.none(), st.integers(1, 3))
    ends = st.one_of(st.none(), st.integers(-7, 7))
    index = [data.draw(st.one_of(st.integers(-n, n - 1), st.builds(slice, ends, ends, steps))) for n in shape]
    first = data.draw(st.integers(0, len(index)))
    last = data.draw(st.integers(first, len(index)))
    if data.draw(st.booleans()):
        index[first:last] = [Ellipsis]
    else:
        del index[first:]
    np.testing.assert_array_equal(cells[tuple(index)], array[tuple(index)])
    np.testing.assert_array_equal(np.asarray(cells), array)


def test_indices_beyond_an_unmapped_array_are_refused() -> None:
    cells = Unmapped(MemorySource(np.arange(6).reshape(2, 3)))
    for index in (2, (0, 3), (0, 0, 0), slice(None, None, -1)):
        with pytest.raises(IndexError):
            cells[index]


def test_nothing_is_left_open(tmp_path: Path) -> None:
    """Reads and writes of flat files open and close; a rank that reads a thousand chunks has a few files."""
    commit(write(tmp_path / "a.npy", sample((64, 8))))
    source = open_source(tmp_path / "a.npy")
    before = len(list(Path("/proc/self/fd").iterdir()))
    threads = [threading.Thread(target=lambda: [read(source) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@given(data=st.data())
def test_verification_looks_up_padded_boxes_of_arrays_that_are_only_sliced(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    boundary = data.draw(st.sampled_from(sorted(PAD)))
    widest = [n - 1 if boundary == "mirror" and n > 1 else n for n in shape]
    widths = tuple((data.draw(st.integers(0, w)), data.draw(st.integers(0, w))) for w in widest)
    pairs = [sorted((data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1)))) for n in shape]
    box = Region(tuple(a for a, _ in pairs), tuple(b + 1 for _, b in pairs))
    array = np.random.default_rng(0).random(shape)
    job = meshrun.map_blocks(halo=widths, boundary=boundary, cval=7.0)(lambda block: block)
    task = plan_task(job, {}, [(shape, array.dtype)], 1)
    more = {"constant_values": 7} if boundary == "constant" else {}
    whole_padded = np.pad(array, widths, PAD[boundary], **more)
    expected = whole_padded[
        tuple(
            slice(a, b + low + high)
            for (a, b), (low, high) in zip(zip(box.start, box.stop, strict=True), widths, strict=True)
        )
    ]
    np.testing.assert_array_equal(padded(task, 0, Unmapped(MemorySource(array)), box), expected)
