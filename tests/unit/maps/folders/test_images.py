"""A folder of images gives, under the same names, the bytes that each image alone gives."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_kernel import NumpyKernel
from pairs import pairs_by_day
from PIL import Image
from queued_device import QueuedBackend
from stream_cases import Case, cases, run_on

import meshrun
from meshrun.jobs.filters.grayscale import grayscale
from meshrun.jobs.filters.laplacian import laplacian
from meshrun.jobs.filters.statistics import statistics
from meshrun.runner.compiler import decide as fusing
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.maps.folders.engine import ImageEngine
from meshrun.runner.maps.streamed.dispatch import report
from meshrun.runner.options.form import Form
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.report.spans import Spans
from meshrun.runner.report.summary import render
from meshrun.runner.storage.formats import image
from meshrun.runner.storage.formats.image_folder import SUFFIXES, open_folder
from meshrun.runner.storage.journal import Journal, Log, Syncer
from meshrun.runner.world.world import identify_host

CALLED: list[tuple[int, ...]] = []


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "copy_rate", lambda self: 1e9)  # which takes longer than all the rest
        patch.setattr("meshrun.runner.world.failure.GRACE", 0.0)
        yield


@meshrun.map_blocks(halo=((1, 0), (0, 0)), boundary="wrap", split_dependent=True)
def counted(block: Any, *, here: meshrun.BlockContext, gain: int = 2) -> Any:
    """Notes the shapes of the images that it is called for; not where types are found before the work."""
    if here.block == here.shape and here.shape[0] < 61:
        CALLED.append(here.shape)
    return (gain * block[:-1] + block[1:]).astype(np.int32)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Pictures of every format, of several shapes and dtypes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number, (name, shape) in enumerate(
        {
            "a.png": (31, 40, 3),
            "b.PNG": (64, 9),
            "c.jpg": (25, 33, 3),
            "d.jpeg": (9, 300),
            "e.bmp": (40, 31, 3),
            "f.tif": (22, 21, 3),
            "g.tiff": (120, 64),
            "h i.png": (3, 3, 4),
        }.items()
    ):
        pixels = random.integers(0, 256, shape, np.uint8)
        Image.fromarray(pixels).save(folder / name)
        np.save(folder / f"{number}.npy", pixels.astype(("f4", "u2", "i4", "f8")[number % 4]))
    Image.fromarray(random.integers(0, 65536, (17, 18), np.uint16)).save(folder / "sixteen.png")
    return folder


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Twelve arrays, each of as many rows as its number says."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(1, 13):
        save(folder, number)
    CALLED.clear()
    return folder


def save(folder: Path, number: int, first: int = 0) -> None:
    np.save(folder / f"{number:02}.npy", np.arange(first, first + 5 * number, dtype=np.int32).reshape(-1, 5))


def alone(job: Any, folder: Path, **options: Any) -> dict[str, bytes]:
    """What the job makes of each image by itself."""
    with tempfile.TemporaryDirectory() as name:
        for path in folder.iterdir():
            if path.suffix.lower() in SUFFIXES:
                run_on(1, job, path, Path(name, path.name), **options)
        return content(Path(name))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def partial_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.stream.partial")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("on_devices", [False, True])
def test_each_picture_is_as_if_it_were_alone(photos: Path, ranks: int, on_devices: bool) -> None:
    devices = [QueuedBackend() for _ in range(ranks)] if on_devices else None
    target = photos.with_name("edges")
    record = run_on(ranks, laplacian, photos, target, devices=devices)
    assert len(content(target)) == 17
    assert content(target) == alone(laplacian, photos)
    assert {path.name for path in photos.parent.iterdir()} == {"photos", "edges"}
    stream = record["stream"]
    assert (record["shape"], record["dtype"], stream["chunks"], stream["resumed"]) == ([17], None, 17, 0)
    assert sum(stream["own"]) + sum(stream["taken_over"]) == 17
    copies = {"to device", "from device"} if on_devices else set()
    assert set(stream["limits"]["stages"]) == {"read", "kernel", "write"} | copies
    sizes = sum(path.stat().st_size for path in photos.iterdir())
    assert stream["limits"]["stages"]["read"]["bytes"] == sizes
    assert f"laplacian on 17 images: {ranks} rank" in render(record)


@given(cases(), st.integers(1, 4), st.booleans())
def test_any_arrays_give_the_bytes_of_each_alone(case: Case, count: int, on_devices: bool) -> None:
    """Whatever the function needs and returns, on arrays of several shapes and dtypes."""
    devices = [QueuedBackend() for _ in range(case.ranks)] if on_devices else None
    with tempfile.TemporaryDirectory() as name:
        folder, target = Path(name, "in"), Path(name, "out")
        folder.mkdir()
        for number in range(count):
            shape = tuple(n + 7 * number * (n > 0) for n in case.shape)
            cells = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) * 37 % 11
            dtype = (case.dtype, "f8", "i2", "c8")[number]
            np.save(folder / f"{number}.npy", np.asarray(cells.astype(dtype), order=case.order))
        options = {key: case.stream[key] for key in ("depth", "static")}
        run_on(case.ranks, case.job, folder, target, devices=devices, **options)
        assert content(target) == alone(case.job, folder)


def test_boundary_and_constant_are_those_of_each_image(photos: Path) -> None:
    target, options = photos.with_name("edges"), {"boundary": "constant", "cval": 7.0}
    record = run_on(2, laplacian, photos, target, **options)
    assert content(target) == alone(laplacian, photos, **options)
    assert record["boundary"] == "constant"


def test_what_is_no_image_is_left_out_and_named(numbered: Path, caplog: pytest.LogCaptureFixture) -> None:
    (numbered / "notes.txt").write_text("of the journey")
    (numbered / "more.png").mkdir()
    (numbered / "gone.png").symlink_to("nowhere")
    (numbered / ".hidden.png").write_text("not a picture")
    record = run_on(2, counted, numbered, numbered.with_name("out"))
    assert len(content(numbered.with_name("out"))) == 12
    sentence = f"{numbered}: skipped, because not read as images: gone.png, more.png, notes.txt"
    assert record["warnings"] == [sentence]
    assert [entry.message for entry in caplog.records] == [sentence]


@pytest.mark.parametrize("boundary", ["nearest", "constant", "wrap", "reflect", "mirror"])
def test_an_empty_array_among_them_gives_an_empty_result(numbered: Path, boundary: str) -> None:
    for name, shape in (("none.npy", (0, 9)), ("nothing.npy", (4, 0))):
        np.save(numbered / name, np.zeros(shape, np.int32))
    counted.run(numbered, numbered.with_name("out"), device="cpu", boundary=boundary, ranks=2)
    assert np.load(numbered.with_name("out") / "none.npy").shape == (0, 9)
    assert np.load(numbered.with_name("out") / "nothing.npy").shape == (4, 0)


def test_an_empty_output_folder_may_be_there(numbered: Path) -> None:
    numbered.with_name("out").mkdir()
    run_on(1, counted, numbered, numbered.with_name("out"))
    assert content(numbered.with_name("out")) == alone(counted, numbered)


def test_a_folder_that_is_a_store_is_none_of_images(tmp_path: Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    np.save(tmp_path / "a.zarr" / "a.npy", np.ones(3))
    assert open_folder(tmp_path / "a.zarr") is None
    assert open_folder(tmp_path / "a.zarr" / "a.npy") is None
    assert open_folder(tmp_path / "missing") is None


def test_the_run_is_drawn_and_watched(numbered: Path) -> None:
    page = numbered.with_name("run.json")
    run_on(2, counted, numbered, numbered.with_name("out"), timeline=str(page))
    events = json.loads(page.read_text())["traceEvents"]
    assert sum(event.get("cat") == "kernel" or event["name"].startswith("kernel") for event in events) >= 12


def test_a_run_that_cannot_be_drawn_is_finished_and_fails(numbered: Path) -> None:
    page, target = numbered.with_name("run.html"), numbered.with_name("out")
    page.symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"out is complete, but cannot write the timeline .*No space left"):
        run_on(2, counted, numbered, target, timeline=str(page))
    assert {path.name for path in target.iterdir()} == {path.name for path in numbered.iterdir()}


@pytest.mark.parametrize("timeline", [None, "run.json"])
def test_only_a_run_that_is_drawn_keeps_its_spans(
    numbered: Path, timeline: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshrun.runner.report.spans.FOLDED", 2)
    monkeypatch.setattr("meshrun.runner.report.spans.NEWEST", 1)
    kept: list[int] = []

    def noted(world: Any, phases: Any, spans: Spans, *more: Any) -> dict[str, Any]:
        kept.append(len(spans.found))
        return report(world, phases, spans, *more)

    monkeypatch.setattr("meshrun.runner.maps.folders.images.report", noted)
    drawn = None if timeline is None else str(numbered.with_name(timeline))
    record = run_on(1, counted, numbered, numbered.with_name("out"), timeline=drawn)
    stages = record["stream"]["limits"]["stages"]
    assert stages["read"]["bytes"] == sum(path.stat().st_size for path in numbered.iterdir())
    assert (kept[0] < 3) == (timeline is None)
    assert (kept[0] >= 3 * 12) == (timeline is not None)


def test_progress_counts_the_bytes_of_the_files(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshrun.runner.run.execute import Options, RunProgress, execute
    from meshrun.runner.storage.transaction import OutputTransaction
    from meshrun.runner.world.world import single_rank_world

    monkeypatch.setattr("meshrun.runner.maps.streamed.dispatch.BETWEEN", 0.0)
    seen: list[tuple[int, int]] = []
    execute(
        single_rank_world(CpuBackend()),
        counted,
        numbered,
        numbered.with_name("out"),
        {},
        Options(),
        transaction=OutputTransaction(),
        progress=RunProgress(stream=lambda done, total, rates: seen.append((done, total))),
    )
    size = sum(path.stat().st_size for path in numbered.iterdir())
    assert {total for _, total in seen} == {size}
    assert seen[0] == (0, size)
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) == 13


# ---- memory


def test_as_many_images_are_under_way_as_the_memory_is_for(numbered: Path) -> None:
    target = numbered.with_name("out")
    takes = taken_by(12)  # the largest one
    for room, depth in ((1, 1), (2, 2), (1000, None)):
        record = run_on(1, counted, numbered, target, host_memory=room * takes, depth=5)
        assert record["stream"]["depth"] == depth or (depth is None and record["stream"]["depth"] > 5)
        shutil.rmtree(target)
    with pytest.raises(UserError, match=r"--host-memory is less than the largest image needs"):
        run_on(1, counted, numbered, target, host_memory=takes - 1)
    assert not partial_of(target).exists()


def test_an_image_that_is_large_only_when_decoded_counts_so(tmp_path: Path) -> None:
    """A picture of one colour is a small file."""
    folder = tmp_path / "photos"
    folder.mkdir()
    noisy = np.random.default_rng(0).integers(0, 256, (100, 100), np.uint8)
    Image.fromarray(noisy).save(folder / "a.png")
    Image.fromarray(np.zeros((2000, 1000), np.uint8)).save(folder / "b.png")
    assert (folder / "b.png").stat().st_size < (folder / "a.png").stat().st_size
    with pytest.raises(UserError, match="--host-memory is less than the largest image needs"):
        run_on(1, laplacian, folder, tmp_path / "out", host_memory=1_000_000)
    record = run_on(1, laplacian, folder, tmp_path / "out", host_memory=100_000_000)
    assert record["stream"]["chunks"] == 2


def test_an_image_beyond_those_that_were_looked_at_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshrun.runner.maps.folders.images.MOST_HEADERS", 1)
    folder = tmp_path / "photos"
    folder.mkdir()
    noisy = np.random.default_rng(0).integers(0, 256, (100, 100), np.uint8)
    Image.fromarray(noisy).save(folder / "a.png")
    Image.fromarray(np.zeros((2000, 1000), np.uint8)).save(folder / "b.png")
    with pytest.raises(RunError, match=r"b\.png: the decoded image needs more memory than .*2,000,000 bytes"):
        run_on(1, laplacian, folder, tmp_path / "out", host_memory=1_000_000)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16"])
def test_the_bytes_of_a_decoded_image_are_those_of_its_array(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    Image.new(mode, (7, 5)).save(path)
    source = image.open_source(path, None, Form())
    array = source.array
    assert source.decoded_bytes in (array.nbytes, 4 * 35 if mode == "P" else -1)


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"grid": "2"}, "--grid does not apply to a folder"),
        ({"overlap": False}, "--overlap does not apply to a folder"),
        ({"chunk_bytes": 1000}, "--chunk-bytes does not apply to a folder"),
        ({"device_memory": 1000}, "--device-memory does not apply to a folder"),
        ({"steps": StepOptions(3)}, "--steps does not apply to a folder"),
        (
            {"form": Form((1, 5))},
            "--input-shape, --input-dtype and --input-order do not apply",
        ),
        ({"timeline": "run.svg"}, "unknown timeline format"),
        ({"boundary": "constant", "cval": 0.5}, "12.npy: --cval does not fit the input's dtype"),
        ({"parameters": {"loss": 1}}, "has no such parameter"),
    ],
)
def test_options_that_do_not_apply_are_refused(
    numbered: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        run_on(2, counted, numbered, numbered.with_name("out"), **options)
    assert {path.name for path in numbered.parent.iterdir()} == {"photos"}
    assert CALLED == []


@pytest.mark.parametrize("verify", ["sample", "full"])
def test_a_lossy_output_is_not_verified(photos: Path, verify: str) -> None:
    with pytest.raises(UserError, match=r"\.jpg does not store it exactly: got .*c\.jpg"):
        run_on(1, laplacian, photos, photos.with_name("out"), verify=verify)


def test_a_folder_is_for_jobs_that_make_an_array_of_each(numbered: Path) -> None:
    with pytest.raises(UserError, match="job statistics takes one array"):
        statistics.run(numbered, device="cpu")


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("out.npy", "the input is a folder of images, the output a file"),
        ("full", r"the output folder .*full is not empty: got kept\.txt"),
        ("file", "the output is a file"),
        ("photos", "photos is not empty"),
        ("gone/out", "the output's folder does not exist"),
    ],
)
def test_outputs_that_cannot_be_are_refused(numbered: Path, output: str, sentence: str) -> None:
    folder = numbered.parent
    (folder / "full").mkdir()
    (folder / "full" / "kept.txt").touch()
    (folder / "file").touch()
    with pytest.raises(UserError, match=sentence):
        run_on(2, counted, numbered, folder / output)
    assert CALLED == []
    assert {path.name for path in folder.iterdir()} == {"photos", "full", "file"}


@pytest.mark.parametrize("others", [[], ["a.txt"]])
def test_a_folder_without_images_is_refused(tmp_path: Path, others: list[str]) -> None:
    (tmp_path / "photos").mkdir()
    for name in others:
        (tmp_path / "photos" / name).touch()
    with pytest.raises(
        UserError, match=rf"holds no image: got {(others or ['nothing'])[0]}, expected .*\.png"
    ):
        run_on(2, counted, tmp_path / "photos", tmp_path / "out")


@pytest.mark.parametrize("declared", [True, False])
def test_a_result_that_no_file_can_hold_is_refused_before_the_work(photos: Path, declared: bool) -> None:
    for path in photos.iterdir():
        if path.suffix != ".png":
            path.unlink()
    job = meshrun.map_blocks(lambda block: block.astype(np.float32))
    given = {"job": laplacian, "parameters": {"dtype": "float32"}} if declared else {"job": job}
    with pytest.raises(UserError, match=r"photos/.*\.png: PNG cannot hold this result.*the images as \.npy"):
        run_on(2, source=photos, target=photos.with_name("out"), **given)
    assert {path.name for path in photos.parent.iterdir()} == {"photos"}


# ---- what fails, and what goes on


def fail(source: Path, error: str, ranks: int = 1, **options: Any) -> set[str]:
    """Run into the failure; the images that are finished by then."""
    target = source.with_name("out")
    with pytest.raises(RunError, match=error):
        run_on(ranks, counted, source, target, **options)
    assert not target.exists()
    keys = Journal(target).finished({identify_host()[1]})
    folder = open_folder(source)
    assert folder is not None
    return {image.name for image in folder.images if image.key in keys}


def rows_of(source: Path) -> list[int]:
    return [int(path.stem) for path in source.iterdir()]


def taken_by(rows: int) -> int:
    """Bytes that an image of so many rows takes: twice padded, and its result."""
    return 2 * (rows + 1) * 5 * 4 + rows * 5 * 4


def fail_in_order(source: Path, number: int) -> set[str]:
    """Break one image; run into it, one image in flight at a time; all images before it are finished.

    With several in flight, those that are finished by then depend on the machine and its load.
    """
    path = broken(source, number)
    finished = fail(source, "is truncated", host_memory=taken_by(max(rows_of(source))), resume=True)
    assert finished == {name for name in content(source) if name < path.name}
    return finished


def go_on(source: Path, finished: set[str], ranks: int = 1, **options: Any) -> None:
    """Resume to the bytes of an undisturbed run; only what is not finished is done."""
    CALLED.clear()
    target = source.with_name("out")
    record = run_on(ranks, counted, source, target, resume=True, **options)
    assert record["stream"]["resumed"] == len(finished)
    rows = {name: int(name.removesuffix(".npy")) for name in content(source)}
    assert sorted({rows for rows, _ in CALLED}) == sorted(rows[name] for name in set(rows) - finished)
    assert content(target) == alone(counted, source, **options)
    assert {path.name for path in source.parent.iterdir()} == {"photos", "out"}


def broken(source: Path, number: int) -> Path:
    path = source / f"{number:02}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    return path


@pairs_by_day(number=[1, 6, 11], ranks=[1, 2, 3], cure=["mended", "taken out"])
def test_a_broken_image_is_named_and_mended(numbered: Path, number: int, ranks: int, cure: str) -> None:
    path = broken(numbered, number)
    finished = fail(numbered, rf"{number:02}\.npy is truncated.*Try: repair it or remove it", ranks)
    assert path.name not in finished
    if cure == "mended":
        save(numbered, number)
    else:
        path.unlink()
    go_on(numbered, finished, 1 + ranks % 3)


def test_images_are_mended_one_after_another(numbered: Path) -> None:
    """What was mended between two runs stays finished in the third."""
    for number in range(13, 41):
        save(numbered, number)
    for number in (3, 30, 37):
        finished = fail_in_order(numbered, number)
        save(numbered, number)
    go_on(numbered, finished)


def test_an_image_that_is_changed_or_added_is_done_anew(numbered: Path) -> None:
    finished = fail_in_order(numbered, 11)
    save(numbered, 1, first=1000)
    (numbered / "02.npy").unlink()
    save(numbered, 11)
    save(numbered, 13)
    go_on(numbered, finished - {"01.npy", "02.npy"}, 2)


def test_a_result_that_is_gone_is_made_anew_and_half_a_file_goes(numbered: Path) -> None:
    finished = fail_in_order(numbered, 11)
    folder = partial_of(numbered.with_name("out"))
    (folder / "01.npy").unlink()
    (folder / ".05.npy.0123.partial").write_bytes(b"half")
    save(numbered, 11)
    go_on(numbered, finished - {"01.npy"})


def test_an_image_that_a_function_fails_at_is_named(numbered: Path) -> None:
    @meshrun.map_blocks
    def failing(block: Any) -> Any:
        if len(block) == 8:
            raise ZeroDivisionError("eight")
        return block

    with pytest.raises(RunError, match=r"photos/08\.npy: ZeroDivisionError: eight \(.*test_images\.py:\d+\)"):
        run_on(2, failing, numbered, numbered.with_name("out"))


def test_an_image_that_the_job_refuses_is_named(photos: Path) -> None:
    for path in photos.iterdir():
        if path.name not in ("a.png", "b.PNG"):
            path.unlink()
    with pytest.raises(RunError, match=r"photos/b\.PNG: grayscale needs a colour image: got shape \(64, 9\)"):
        run_on(2, grayscale, photos, photos.with_name("out"))


def test_a_result_that_one_image_alone_cannot_have_is_named(photos: Path) -> None:
    @meshrun.map_blocks
    def wide(block: Any) -> Any:
        return block.astype(np.float32) if block.shape[1] == 18 else block

    with pytest.raises(RunError, match=r"photos/sixteen\.png: PNG cannot hold this result"):
        run_on(2, wide, photos, photos.with_name("out"))


def test_an_image_that_changes_while_the_others_are_done_is_noticed(numbered: Path) -> None:
    @meshrun.map_blocks
    def touching(block: Any) -> Any:
        os.utime(numbered / "12.npy", ns=(0, time.time_ns()))
        return block

    with pytest.raises(RunError, match=r"12\.npy has changed since the run began"):
        run_on(1, touching, numbered, numbered.with_name("out"), depth=1)


def test_without_resume_an_unfinished_run_is_in_the_way(numbered: Path) -> None:
    broken(numbered, 6)
    finished = fail(numbered, "is truncated")
    target, save_again = numbered.with_name("out"), partial(save, numbered, 6)
    save_again()
    with pytest.raises(UserError) as refusal:
        run_on(2, counted, numbered, target)
    assert str(refusal.value) == (
        f"an earlier run of {target} is unfinished. Try: the same command with --resume, or to start from "
        "the beginning: "
        f"rm -r {target}.journal {partial_of(target)}"
    )
    go_on(numbered, finished)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"parameters": {"gain": 3}}, "parameters.gain 3, expected parameters.gain 2"),
        ({"boundary": "nearest"}, 'boundary "nearest", expected boundary "wrap"'),
        ({"boundary": "constant", "cval": 1.0}, 'cval 1.0, expected boundary "wrap", cval 0.0'),
        ({"devices": [QueuedBackend()]}, 'device "queued", expected device "cpu"'),
    ],
)
def test_another_run_is_refused_with_what_differs(numbered: Path, change: Any, named: str) -> None:
    broken(numbered, 6)
    finished = fail(numbered, "is truncated")
    save(numbered, 6)
    with pytest.raises(UserError, match=f"differs in . value.*{named}"):
        run_on(1, counted, numbered, numbered.with_name("out"), resume=True, **change)
    shutil.copytree(numbered, numbered.with_name("others"))
    with pytest.raises(UserError, match=r"input \".*others\", expected input \".*photos\""):
        run_on(1, counted, numbered.with_name("others"), numbered.with_name("out"), resume=True)
    shutil.rmtree(numbered.with_name("others"))
    go_on(numbered, finished)


def test_an_unfinished_output_that_is_gone_is_told(numbered: Path) -> None:
    broken(numbered, 6)
    fail(numbered, "is truncated")
    shutil.rmtree(partial_of(numbered.with_name("out")))
    save(numbered, 6)
    with pytest.raises(UserError, match=r"the unfinished output .* is gone"):
        run_on(1, counted, numbered, numbered.with_name("out"), resume=True)


def test_what_the_journal_calls_synced_is_on_the_disk(
    numbered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each image noted before is handed to fsync by then, and so is their folder."""
    synced: list[str] = []
    counts: list[tuple[int, int]] = []
    some = threading.Event()
    whole_fsync, whole_synced = os.fsync, Log.synced

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        whole_fsync(descriptor)

    def note(log: Log, count: int) -> None:
        folder = partial_of(numbered.with_name("out"))
        counts.append((count, sum(Path(path).parent == folder for path in synced)))
        assert synced[-1] == str(folder)
        whole_synced(log, count)
        if count > 1:
            some.set()

    @meshrun.map_blocks(split_dependent=True)
    def slow(block: Any) -> Any:
        time.sleep(0.01)
        if 12 <= len(block) < 61 and not some.wait(
            60
        ):  # a disk may be slower than all images before the last
            raise AssertionError("nothing was synced")
        return block

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Log, "synced", note)
    monkeypatch.setattr("meshrun.runner.maps.folders.images.Syncer", partial(Syncer, seconds=0.01))
    run_on(1, slow, numbered, numbered.with_name("out"))
    assert max(count for count, _ in counts) > 1
    assert all(count <= files for count, files in counts)


# ---- the proof


def _reference(block: Any, *, wrong: int) -> Any:
    return block[1:-1, 1:-1] - block[2:, :-2]


@meshrun.map_blocks(halo=1, boundary="mirror", reference=_reference)
def proved(block: Any, *, wrong: int = 0) -> Any:
    result = block[1:-1, 1:-1] - block[2:, :-2]
    if len(result) == wrong:
        result[-1, -1] += 1
    return result


@pytest.mark.parametrize("verify", ["sample", "full"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_image_is_proved(numbered: Path, verify: str, ranks: int) -> None:
    (numbered / "01.npy").unlink()  # too small for a halo that mirrors
    target = numbered.with_name("out")
    record = run_on(ranks, proved, numbered, target, verify=verify)
    cells = 5 * sum(range(2, 13))
    assert record["verify"]["mode"] == verify
    assert record["verify"]["cells"] == cells if verify == "full" else record["verify"]["cells"] >= cells
    for number in (2, 7, 12):
        shutil.rmtree(target, ignore_errors=True)
        Journal(target).remove()
        shutil.rmtree(partial_of(target), ignore_errors=True)
        with pytest.raises(RunError, match=rf"cell \[{number - 1}, 4\] of {number:02}\.npy is wrong on disk"):
            run_on(ranks, proved, numbered, target, verify=verify, parameters={"wrong": number})
        assert not target.exists()


def test_a_result_of_another_shape_on_disk_is_noticed(
    numbered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ImageEngine._write

    def short(engine: ImageEngine, slot: Any) -> None:
        slot.result = slot.result[:-1] if len(slot.result) == 9 else slot.result
        whole(engine, slot)

    monkeypatch.setattr(ImageEngine, "_write", short)
    with pytest.raises(RunError, match=r"09\.npy does not match on disk: got int32 of shape \(8, 5\)"):
        run_on(2, laplacian, numbered, numbered.with_name("out"), verify="sample")


# Kernels in place of the function


@meshrun.map_blocks(halo=((1, 1), (0, 1)), boundary="nearest")
def slope(block: Any, *, gain: float = 2.0) -> Any:
    if block.dtype == np.float64:
        block = np.sort(block[..., None])[..., 0]  # which is not traced
    return gain * (block[2:, :-1].astype(np.float32) - block[:-2, 1:])


class Made(list[NumpyKernel]):
    """The kernels that were made, which count the images that they are called for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.calls = 0
        patch.setattr("meshrun.runner.compiler.compiled.compile_for", self.compile_for)
        patch.setattr(fusing, "WORTH_COMPILING", 0)

    def compile_for(
        self, device: Any, program: Any, widths: Any, arithmetic: str, feeds: Any, boundary: str, *others: Any
    ) -> Any:
        kernel = NumpyKernel(program, widths, feeds, boundary, *others[:1])

        def counted_kernel(blocks: Any, outs: Any, first: Any, scalars: Any = None) -> None:
            self.calls += 1
            kernel(blocks, outs, first, scalars)

        self.append(kernel)
        counted_kernel.most_steps = 1  # type: ignore[attr-defined]
        return counted_kernel, "NumPy"


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("on_devices", [False, True])
def test_images_of_one_kind_have_one_kernel(
    photos: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, on_devices: bool
) -> None:
    """And those of which no kernel can be made are computed as they are."""
    made = Made(monkeypatch)
    devices = [QueuedBackend() for _ in range(ranks)] if on_devices else None
    record = run_on(ranks, slope, rasters(photos), photos.with_name("slopes"), devices=devices, verify="full")
    assert record["fused"]["compiler"] == "NumPy"
    assert "one kernel by NumPy" in render(record)
    plain = [path for path in photos.iterdir() if np.load(path).dtype == np.float64]
    assert made.calls >= len(list(photos.iterdir())) - len(plain) > 0
    assert len(plain) > 0
    kinds = {(array.dtype, array.ndim) for array in map(np.load, photos.iterdir())}
    assert len(made) <= ranks * len(kinds)
    monkeypatch.setattr("meshrun.runner.compiler.compiled.compile_for", None)
    assert content(photos.with_name("slopes")) == alone(slope, photos, fuse="off")


def rasters(photos: Path) -> Path:
    """Leave the arrays only, and add a large one, of which there is a kernel."""
    for path in photos.iterdir():
        if path.suffix != ".npy":
            path.unlink()
    np.save(photos / "large.npy", np.random.default_rng(1).random((300, 90), np.float32))
    return photos


def test_an_image_without_a_kernel_is_named_if_one_is_required(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Made(monkeypatch)
    target = photos.with_name("slopes")
    with pytest.raises(RunError, match=r"\.npy: job slope cannot be one kernel: got .*numpy.sort"):
        run_on(1, slope, rasters(photos), target, fuse="require")
    for path in photos.iterdir():
        if path.suffix == ".npy" and np.load(path).dtype == np.float64:
            path.unlink()
    run_on(1, slope, photos, target, fuse="require", resume=True)
    assert len(content(target)) == len(list(photos.iterdir()))


def test_folders_of_little_work_are_not_compiled(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    monkeypatch.setattr(fusing, "WORTH_COMPILING", 2 << 30)
    record = run_on(1, slope, rasters(photos), photos.with_name("slopes"))
    assert not made
    assert record["fused"]["quiet"]
    record = run_on(1, slope, photos, photos.with_name("others"), fuse="off")
    assert record["fused"] is None
