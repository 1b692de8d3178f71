"""Fused kernels on a GPU: what NumPy computes, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused import EXAMPLES, cases, example, same, widths_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_cases import SMALL, of_floats, of_integers, of_neighbours, of_sums
from random_programs import programs

import meshrun
from meshrun.runner.compiler.cuda.pass_launch import launch_arguments
from meshrun.runner.compiler.cuda.single_pass import PassKernel, emit
from meshrun.runner.compiler.cuda.steps import tuning as step_tuning
from meshrun.runner.compiler.cuda.steps.layout import Axis, Choice, Tuning
from meshrun.runner.compiler.cuda.steps.tuning import choices
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.compiler.trace.graph import Operand, Program, merge_components
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.run import prepare
from meshrun.runner.steps import kernel_trial

cupy = pytest.importorskip("cupy", reason="needs CuPy")


def launch(kernel: PassKernel, blocks: list[Any], outs: list[Any], widths: Any) -> None:
    from meshrun.runner.device.cuda import kernel_of_text

    compiled = kernel_of_text(kernel.source, kernel.name, ())
    call = launch_arguments(kernel, blocks, outs, widths)
    compiled(call.grid, call.block, call.arguments)


def check(program: Program, kernel: PassKernel, own: tuple[int, ...], odd: int) -> None:
    """Compare all outputs of own cells, and that nothing else is written."""
    blocks, outs = cases(program, own, odd, cupy)
    widths = widths_of(program)
    launch(kernel, blocks, outs, widths)
    for out, expected in zip(outs, evaluate(program, [one.get() for one in blocks], widths), strict=True):
        same(out.get(), expected)
        out[...] = 1
        base = out.base if out.base is not None else out
        assert int((base != 1).sum()) == int((base == 0).sum())


@pytest.mark.parametrize(("name", "dtype", "axes", "trailing"), EXAMPLES)
def test_an_example_gives_the_bits_of_its_function(
    name: str, dtype: str, axes: int, trailing: tuple[int, ...]
) -> None:
    program, _ = merge_components(example(name, dtype, axes, trailing))
    for own in [(1, 2, 3, 5), (3, 1, 9, 17), (2, 3, 5, 301), (2, 2, 67, 5001)]:
        kernel = emit(program, lengths=own[-axes:])
        for odd in (0, 1, 2, 3):
            check(program, kernel, own[-axes:], odd)
    own = (2, 2, 131, 4099)[-axes:]
    check(program, emit(program, lengths=own), own, 0)
    check(program, emit(program, lengths=own), own, 1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(program=programs(), data=st.data())
def test_any_program_gives_the_bits_of_numpy(program: Program, data: st.DataObject) -> None:
    tile = tuple(data.draw(st.sampled_from([1, 2, 4] if axis else [1, 2])) for axis in range(program.axes))
    threads = data.draw(st.sampled_from([(32, 1), (8, 8), (128, 1)]))
    for four in [(1, 1, 4), (3, 2, 7), (2, 5, 70), (3, 40, 611)]:
        own = four[-program.axes :]
        for kernel in (emit(program, lengths=own), emit(program, tile=tile, threads=threads)):
            if all(a <= b for a, b in zip(kernel.tile, own, strict=True)):
                for odd in (0, 1, 3):
                    check(program, kernel, own, odd)


def test_more_cells_than_32_bits_count() -> None:
    program = example("life", "uint8")
    side = 47000  # 2.2e9 cells
    if cupy.cuda.runtime.memGetInfo()[0] < 3 * side**2:
        pytest.skip("needs 7 GB of memory")
    block = cupy.zeros((side + 2, side + 2), cupy.uint8)
    block[-5:, -9:] = cupy.arange(45, dtype=cupy.uint8).reshape(5, 9) % 2
    out = cupy.ones((side, side), cupy.uint8)
    launch(emit(program, wide=True), [block], [out], ((1, 1), (1, 1)))
    (expected,) = evaluate(program, [block[-40:, -40:].get()], ((1, 1), (1, 1)))
    np.testing.assert_array_equal(out[-38:, -38:].get(), expected)
    assert int(out.sum(dtype=cupy.int64)) == int(expected.sum())


def heat(u: Any) -> Any:
    centre = u[1:-1, 1:-1]
    return centre + 0.2 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * centre)


def steps_of(kernel: DeviceKernel, field: Any, steps: int) -> Any:
    """Return the field after so many steps, in one kernel."""
    *others, length = shape = field.shape
    given, out = (cupy.zeros((*others, -(-length // 32) * 32), field.dtype)[..., :length] for _ in "ab")
    given[...] = cupy.asarray(field)
    kernel.bind_steps(steps, [given], [out], [Axis(length, 0, length) for length in shape])()
    return out.get()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("boundary", ["reflect", "wrap"])
def test_choices_take_the_steps_of_numpy(dtype: str, boundary: str) -> None:
    program = trace(heat, [Operand("u", np.dtype(dtype))], ((1, 1),) * 2, {}, frozenset(), ["v"])
    kind = np.finfo(dtype)
    rng = np.random.default_rng(3)
    field = rng.normal(size=(333, 1025)).astype(dtype)
    large = field.copy()  # four times some of its cells is infinite
    large[200:205, 500:510] = kind.max / 3
    large[20, 30], large[250, 600] = np.inf, -kind.max
    for choice in choices(program, [0])[:3]:
        taken = step_tuning.ChosenKernel(choice, "predicted")
        kernel = DeviceKernel(program, ((1, 1),) * 2, feeds=(0,), boundary=boundary, choice=taken)
        for start in (field, large):
            wanted = start
            for _ in range(choice.steps):
                with np.errstate(all="ignore"):
                    wanted = heat(np.pad(wanted, 1, "symmetric" if boundary == "reflect" else "wrap"))
            same(steps_of(kernel, start, choice.steps), wanted)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("boundary", ["reflect", "wrap", "constant"])
def test_tiles_of_a_volume_take_the_steps_of_numpy(dtype: str, boundary: str) -> None:
    """The predicted tile, and another."""

    def cube(u: Any) -> Any:
        inside = (slice(1, -1),) * 3
        total = u[inside] * 0.4
        for axis in range(3):
            for far in (slice(None, -2), slice(2, None)):
                total = total + 0.1 * u[(*inside[:axis], far, *inside[axis + 1 :])]
        return total

    program = trace(cube, [Operand("u", np.dtype(dtype))], ((1, 1),) * 3, {}, frozenset(), ["v"])
    field = np.random.default_rng(4).normal(size=(61, 75, 129)).astype(dtype)
    for choice in (*choices(program, [0]), Choice(3, Tuning(2, 4, 12, vectors=True))):
        taken = step_tuning.ChosenKernel(choice, "predicted")
        kernel = DeviceKernel(program, ((1, 1),) * 3, feeds=(0,), boundary=boundary, choice=taken)
        mode: Any = {"reflect": "symmetric"}.get(boundary, boundary)
        wanted = field
        for _ in range(choice.steps):
            wanted = cube(np.pad(wanted, 1, mode))
        same(steps_of(kernel, field, choice.steps), wanted)


def test_a_long_run_measures_its_kernel_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of choices that take turns are those of the predicted one, also with the kept one."""
    monkeypatch.setattr(kernel_trial, "FIRST_QUESTION", 0.01)
    monkeypatch.setattr(step_tuning, "MEASURED", 2)
    job = meshrun.map_blocks(halo=1, boundary="wrap")(heat)
    start = np.random.default_rng(3).random((8192, 8192), np.float32)
    np.save(tmp_path / "in.npy", start)
    found = []
    for steps, folder in ((400_000, "cache"), (400, "cache"), (400, "empty")):  # to compile takes seconds
        monkeypatch.setattr(prepare, "_PLANNED", {})
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
        monkeypatch.setattr(step_tuning, "WORTH_MEASURING", 0.01 if steps > 400 else 1e9)
        path = tmp_path / f"{len(found)}.npy"
        record = job.run(tmp_path / "in.npy", path, steps=steps, device="cuda")
        found.append((record["steps"]["kernel_choice"]["source"], np.load(path)))
    assert [source for source, _ in found] == ["measured", "kept", "predicted"]
    same(found[1][1], found[2][1])


ROOTS = """
__global__ void roots(unsigned first, unsigned* wrong) {
    const unsigned pattern = first + blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(pattern);
    const float got = numpy::sqrt(x), exact = __fsqrt_rn(x);
    const bool same = __float_as_uint(got) == __float_as_uint(exact) || (got != got && exact != exact);
    if (!same) atomicAdd(wrong, 1u);
}
"""


def test_the_square_root_of_every_float_is_correctly_rounded() -> None:
    from meshrun.runner.compiler.operations import HEADER
    from meshrun.runner.device.cuda import kernel_of_text

    roots = kernel_of_text(HEADER.read_text().replace("#pragma once", "") + ROOTS, "roots")
    wrong = cupy.zeros(1, cupy.uint32)
    for first in range(0, 1 << 32, 1 << 28):
        roots((1 << 20,), (256,), (np.uint32(first), wrong))
    assert int(wrong[0]) == 0


def test_numbers_below_the_normal_range_are_kept() -> None:
    program = example("heat", "float32")
    block = (np.random.default_rng(2).random((70, 90)) * 1e-40).astype(np.float32)
    out = cupy.zeros((68, 88), np.float32)
    launch(emit(program), [cupy.asarray(block)], [out], ((1, 1), (1, 1)))
    (expected,) = evaluate(program, [block], ((1, 1), (1, 1)))
    assert expected.max() < np.finfo(np.float32).tiny
    same(out.get(), expected)


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("made", [of_integers, of_neighbours, of_sums])
def test_small_elements_in_words_give_numpys_bits(made: Any, dtype: str) -> None:
    program, blocks = made(dtype)
    compare(program, blocks)


@pytest.mark.parametrize("trailing", [(), (3,)])
def test_small_integers_become_floats_exactly(trailing: tuple[int, ...]) -> None:
    compare(*of_floats(trailing))


def compare(program: Program, blocks: list[Any]) -> None:
    widths = widths_of(program)
    expected = evaluate(program, blocks, widths)
    outs = [cupy.zeros(one.shape, one.dtype) for one in expected]
    launch(emit(program, tile=(2, 8)), [cupy.asarray(one) for one in blocks], outs, widths)
    for out, one in zip(outs, expected, strict=True):
        same(out.get(), one)


HALVES = """
__global__ void halves(unsigned first, unsigned* wrong) {
    const unsigned a = first + blockIdx.x, b = blockIdx.y * blockDim.x + threadIdx.x;
    const Half x = numpy::bits<Half>(uint16(a)), y = numpy::bits<Half>(uint16(b));
    const uint32 left = a * 0x10001u, right = b * 0x10001u;
    const uint32 sum = packed::add<Half>(left, right), difference = packed::subtract<Half>(left, right);
    const uint32 product = packed::multiply<Half>(left, right);
    const auto differs = [&](uint32 word, Half value) {
        const bool nans = numpy::isnan(value) && numpy::isnan(packed::element<Half, 1>(word));
        return word != packed::all(value) && !nans;
    };
    const bool bad = differs(sum, numpy::add(x, y)) || differs(difference, numpy::subtract(x, y)) ||
                     differs(product, numpy::multiply(x, y));
    if (bad) atomicAdd(wrong, 1u);
}
"""


def test_sums_and_products_of_all_halves_are_those_of_floats() -> None:
    from meshrun.runner.compiler.operations import HEADER, KERNELS
    from meshrun.runner.device.cuda import kernel_of_text

    headers = [path.read_text().replace("#pragma once", "") for path in (HEADER, KERNELS / "packed.cuh")]
    halves = kernel_of_text("\n".join([*headers, HALVES]), "halves")
    wrong = cupy.zeros(1, cupy.uint32)
    for first in range(0, 1 << 16, 1 << 13):
        halves((1 << 13, 256), (256,), (np.uint32(first), wrong))
    assert int(wrong[0]) == 0
