"""The runner on one GPU: the same results as on CPUs, whole runs verified from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import meshrun
from meshrun.runner.job.discover import find
from meshrun.runner.options.choices import BOUNDARIES
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.execute import Options, run

KERNEL = np.arange(1.0, 21.0).reshape(4, 5)


@meshrun.map_blocks(halo=((2, 1), (2, 2)))
def correlate(block: Any, *, out: Any) -> None:
    out[...] = 0
    for i, j in np.ndindex(*KERNEL.shape):
        out[...] += KERNEL[i, j] * block[i : i + out.shape[0], j : j + out.shape[1]]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(57, 43), (2, 300), (5, 5), (2048, 1031)])
def test_a_run_gives_what_scipy_gives(tmp_path: Path, boundary: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(-100, 100, shape).astype(np.float64)
    np.save(tmp_path / "in.npy", array)
    cval = 3.0 if boundary == "constant" else None
    options = Options(device="cuda", boundary=boundary, cval=cval, verify="full")
    record = run(correlate, tmp_path / "in.npy", tmp_path / "out.npy", {}, options)
    assert record["devices"][0]["kind"] == "cuda"
    assert {"to device", "from device"} <= set(record["phases"])
    wanted = ndimage.correlate(array, KERNEL, mode=boundary, cval=3.0)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)


@pytest.mark.parametrize("name", ["laplacian", "grayscale", "convolve", "elementwise"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float16", "float32", "float64"])
def test_built_in_jobs_are_verified_on_the_gpu(tmp_path: Path, name: str, dtype: str) -> None:
    parameters: dict[str, Any] = {
        "convolve": {"kernel": "1 2 1; 2 4 2; 1 2 1", "normalize": True},
        "elementwise": {"expression": "sqrt(abs(x)) + 1"},
    }.get(name, {})
    generator = np.random.default_rng(2)
    shape = (401, 307, 3)
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        array = generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    else:
        array = generator.standard_normal(shape).astype(dtype)
    np.save(tmp_path / "in.npy", array)
    for device in ("cuda", "cpu"):
        options = Options(device=device, verify="full")
        run(find(name), tmp_path / "in.npy", tmp_path / f"{device}.npy", parameters, options)
    gpu, cpu = np.load(tmp_path / "cuda.npy"), np.load(tmp_path / "cpu.npy")
    assert gpu.dtype == cpu.dtype
    if cpu.dtype.kind in "iu" or name in ("laplacian", "grayscale", "convolve"):
        np.testing.assert_array_equal(gpu, cpu)
    else:
        np.testing.assert_allclose(gpu, cpu, rtol=4 * np.finfo(cpu.dtype).eps)


@pytest.mark.parametrize("name", ["upsample", "downsample"])
@pytest.mark.parametrize("chunk_bytes", [None, 100_000])
def test_results_of_another_size_are_the_cpus(tmp_path: Path, name: str, chunk_bytes: int | None) -> None:
    job = find(str(Path(__file__).parents[2] / "examples" / f"{name}.py"))
    np.save(tmp_path / "in.npy", np.random.default_rng(2).integers(0, 256, (402, 306, 3), np.uint8))
    for device in ("cuda", "cpu"):
        stream = StreamOptions(chunk_bytes=chunk_bytes)
        options = Options(device=device, verify="full", stream=stream)
        run(job, tmp_path / "in.npy", tmp_path / f"{device}.npy", {}, options)
    np.testing.assert_array_equal(np.load(tmp_path / "cuda.npy"), np.load(tmp_path / "cpu.npy"))


def test_a_cupy_array_stays_on_its_device_and_the_stream_is_given_back() -> None:
    import cupy

    array = np.random.default_rng(3).random((300, 200))
    before = cupy.cuda.get_current_stream()
    result = correlate(cupy.asarray(array))
    assert isinstance(result, cupy.ndarray)
    assert cupy.cuda.get_current_stream() == before
    np.testing.assert_array_equal(result.get(), correlate(array))


@pytest.mark.parametrize(
    ("offset", "block", "shape"),
    [
        ((3, 0), (50, 40), (100, 40)),
        ((3, 1, 2), (50, 40, 3), (100, 47, 7)),
        ((5,), (9_000_001,), (9_000_009,)),  # several pieces
        ((0, 3), (3000, 2500), (3000, 2600)),
        ((2**31 - 1, 2**30 - 5), (1, 5), (2**31, 2**30)),
        ((0, 0), (0, 40), (100, 40)),
    ],
)
def test_random_numbers_are_the_same_on_both_devices(offset: Any, block: Any, shape: Any) -> None:
    import cupy

    def here(xp: Any) -> meshrun.BlockContext:
        return meshrun.BlockContext(0, 1, "", offset, block, shape, None, xp)

    np.testing.assert_array_equal(here(cupy).uniform(7).get(), here(np).uniform(7))
    np.testing.assert_array_max_ulp(here(cupy).normal(7).get(), here(np).normal(7), maxulp=8)


@meshrun.map_blocks(halo=((2, 1), (1, 1)))
def doubled_sums(block: Any) -> Any:
    """Of three neighbours, after the block was changed in place."""
    block *= 2
    return block[:-3, 1:-1] + 3 * block[2:-1, :-2] + 5 * block[3:, 2:]


@meshrun.map_blocks
def doubled(block: Any) -> Any:
    block *= 2
    return block


@pytest.mark.parametrize("stream", [StreamOptions(), StreamOptions(chunk_bytes=100_000)])
def test_a_function_may_change_its_block_in_place(tmp_path: Path, stream: StreamOptions) -> None:
    array = np.random.default_rng(7).integers(-99, 99, (301, 77))
    padded = np.pad(array, ((2, 1), (1, 1)), mode="symmetric")
    sums = padded[:-3, 1:-1] + 3 * padded[2:-1, :-2] + 5 * padded[3:, 2:]
    np.save(tmp_path / "in.npy", array)
    for job, wanted in ((doubled, 2 * array), (doubled_sums, 2 * sums)):
        options = Options(device="cuda", verify="full", stream=stream)
        run(job, tmp_path / "in.npy", tmp_path / "out.npy", {}, options)
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)


def test_a_cupy_array_that_a_job_is_applied_to_stays_as_it_was() -> None:
    import cupy

    array = cupy.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(doubled(array).get(), 2 * np.arange(12).reshape(4, 3))
    np.testing.assert_array_equal(array.get(), np.arange(12).reshape(4, 3))


def test_statistics_agree_between_devices(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", 1e6 + np.random.default_rng(4).standard_normal((1500, 1700)))
    found = {}
    for device in ("cuda", "cpu"):
        options = Options(device=device, verify="full")
        found[device] = run(find("statistics"), tmp_path / "in.npy", None, {}, options)["result"]
    for name, value in found["cpu"].items():
        np.testing.assert_allclose(found["cuda"][name], value, rtol=1e-12)


def test_a_reduction_takes_device_arrays(tmp_path: Path) -> None:
    @meshrun.reduce_blocks(combine=lambda a, b: a + b)
    def total(block: Any, *, xp: Any) -> Any:
        assert xp.__name__ == "cupy"
        return block.sum(dtype=xp.float64)

    array = np.random.default_rng(5).random((1200, 1100))
    np.save(tmp_path / "in.npy", array)
    record = run(total, tmp_path / "in.npy", None, {}, Options(device="cuda"))
    assert record["result"] == pytest.approx(array.sum(), rel=1e-12)


def test_a_reduction_knows_its_tiles_places_on_a_gpu(tmp_path: Path) -> None:
    import cupy

    @meshrun.reduce_blocks(combine=lambda a, b: a if a[0] >= b[0] else b)
    def argmax(block: Any, *, xp: Any, here: Any) -> Any:
        assert here.xp is xp  # NumPy, where the run is verified
        assert (here.stream is None) if xp is np else (here.stream == cupy.cuda.get_current_stream())
        first = int(np.ravel_multi_index(here.offset, here.shape))
        drawn = here.uniform(3)
        return float(block.max()), first + int(block.argmax()), float(xp.abs(drawn - block).max())

    array = np.random.Generator(np.random.Philox(key=3)).random((1031, 2053))
    wanted = [array.max(), array.argmax(), 0.0]
    np.save(tmp_path / "in.npy", array)
    record = run(argmax, tmp_path / "in.npy", None, {}, Options(device="cuda", verify="full"))
    assert record["result"] == wanted
    assert list(argmax(cupy.asarray(array))) == wanted


def test_out_of_memory_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import cupy

    from meshrun.runner.errors import describe

    with pytest.raises(MemoryError) as caught:
        cupy.empty(1 << 50, np.uint8)
    assert "out of memory" in describe(caught.value)


def test_what_follows_waits_for_what_ran_beside() -> None:
    import cupy

    from meshrun.runner.device.cuda import CudaBackend

    before = cupy.cuda.get_current_stream()
    try:
        backend = CudaBackend(0)
        values = cupy.zeros(1 << 26, cupy.int32)
        with backend.beside(backend.mark()):
            assert cupy.cuda.get_current_stream() != backend.stream
            for _ in range(50):  # long enough to be under way still
                values += 1
        assert cupy.cuda.get_current_stream() == backend.stream
        total = int(values.max())
        assert total == int(values.min()) == 50
    finally:
        before.use()
