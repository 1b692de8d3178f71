"""Functions of whole arrays with Fourier transforms, compared with NumPy on the whole arrays, on ranks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from room_ranks import Ranks

from meshrun.runner.arrays.distributed_array import empty_array
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.compiler.trace.refusal import NotTraceable
from meshrun.runner.compiler.whole.spaces.parts import SpectralProgram
from meshrun.runner.compiler.whole.trace import WholeInput, trace_whole
from meshrun.runner.device.api import poison
from meshrun.runner.programs.spectral import spectral_run
from meshrun.runner.programs.spectral.layouts import plan_layouts
from meshrun.runner.programs.spectral.spectral_run import SpectralRun
from meshrun.runner.report.phases import Phases
from meshrun.runner.world.world import open_world
from tests.facts.program_runs import plain

RANKS = (1, 2, 3)
TAKEN = 5  # steps


def traced(
    function: Callable[..., Any], arrays: Sequence[Any], names: Sequence[str] = ("out",), **parameters: Any
) -> Any:
    inputs = [WholeInput(f"in{number}", one.shape, one.dtype) for number, one in enumerate(arrays)]
    return trace_whole(function, inputs, parameters, names, kind="cpu")


def run_spectral(
    program: SpectralProgram, arrays: Sequence[Any], grid: tuple[int, ...], *, compiled: bool = False
) -> list[Any]:
    """Return the outputs of one run, put together."""

    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        run = SpectralRun(world, program, grid, Phases(world.backend.synchronize), compiled)
        assert run.prepare() == []
        for number, (whole, plan) in enumerate(zip(arrays, run.plans, strict=True)):
            array = empty_array(world, plan, whole.dtype)  # type: ignore[arg-type]
            poison(array.block)
            array.interior[...] = whole[array.region.slices]
            run.arrays[number] = array
        outs = []
        for one in program.outputs:
            outs.append(np.empty(run.region.shape if one.shape else (), one.dtype))
            poison(outs[-1])
        run.take(outs)
        return run.region, outs

    parts = run_ranks(int(np.prod(grid)), rank)
    found = []
    for number, one in enumerate(program.outputs):
        whole = np.empty(program.space if one.shape else (), one.dtype)
        for region, outs in parts:
            whole[region.slices if one.shape else ...] = outs[number]
        found.append(whole[tuple(map(slice, one.shape))])
    return found


def check(function: Callable[..., Any], *arrays: Any, names: Any = ("out",), grids: Any = None) -> Any:
    """Compare the results with NumPy's within rounding, and those of several ranks to the bit."""
    wanted = plain(function, arrays)
    program = traced(function, arrays, names)
    assert isinstance(program, SpectralProgram)
    first: list[Any] = []
    rest = (1,) * (len(program.space) - 1)
    for grid in grids or [(ranks, *rest) for ranks in RANKS]:
        found = run_spectral(program, arrays, grid)
        first = first or found
        for one, other, want in zip(found, first, wanted, strict=True):
            assert (one.dtype, one.shape) == (want.dtype, want.shape)
            assert one.tobytes() == other.tobytes(), grid
            eps = np.finfo(want.dtype).eps if want.dtype.kind in "fc" else 0
            tolerance = 64 * eps * max(float(np.abs(want).max()), 1)
            np.testing.assert_allclose(one, want, rtol=0, atol=tolerance)
    return program


def field(*shape: int, dtype: Any = "f8", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return (values if np.dtype(dtype).kind == "c" else values.real).astype(dtype)


CALLS = {
    "fft": np.fft.fft,
    "fft along the split axis": lambda u: np.fft.fft(u, axis=0),
    "ifft": lambda u: np.fft.ifft(u, norm="ortho"),
    "fft2": np.fft.fft2,
    "fft2, axes in order": lambda u: np.fft.fft2(u, axes=(1, 0), norm="forward"),
    "ifft2": np.fft.ifft2,
    "fftn": np.fft.fftn,
    "ifftn": lambda u: np.fft.ifftn(u, axes=(0,)),
    "there and back": lambda u: np.fft.ifft2(np.fft.fft2(u)),
    "three in a row": lambda u: np.fft.fft(np.fft.fft(u, axis=0), axis=0) + np.fft.fft(u),
    "shifted": lambda u: np.fft.ifftshift(np.fft.fftshift(np.fft.fft2(u)), axes=1),
    "conjugated": lambda u: np.conj(np.fft.fft2(np.abs(u))) * np.fft.fft2(u),
    "neighbours": lambda u: np.fft.ifft2(np.roll(np.fft.fft2(u), 3, 0) - np.fft.fft2(u)),
}


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("name", CALLS)
def test_transforms_of_complex_numbers(name: str, dtype: str) -> None:
    check(CALLS[name], field(12, 9, dtype=dtype))


REAL = {
    "rfft": np.fft.rfft,
    "rfft2": np.fft.rfft2,
    "rfftn along the split axis": lambda u: np.fft.rfftn(u, axes=(1, 0)),
    "irfft": lambda u: np.fft.irfft(np.fft.rfft(u), u.shape[1]),
    "irfft2": lambda u: np.fft.irfft2(np.fft.rfft2(u, norm="ortho"), u.shape, norm="ortho"),
    "irfftn": lambda u: np.fft.irfftn(np.fft.rfftn(u, axes=(1, 0)), u.shape[::-1], axes=(1, 0)),
    "one axis": lambda u: np.fft.irfft(np.fft.rfft(u, axis=0) * 2, u.shape[0], axis=0),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(12, 10), (9, 7)])
@pytest.mark.parametrize("name", REAL)
def test_transforms_of_real_numbers(name: str, shape: Any, dtype: str) -> None:
    check(REAL[name], field(*shape, dtype=dtype))


@pytest.mark.parametrize("shape", [(30,), (17,), (4, 6, 5), (3, 2, 9)])
@pytest.mark.parametrize("name", ["fftn", "rfftn", "there and back"])
def test_one_and_three_axes(name: str, shape: Any) -> None:
    calls = {
        "fftn": np.fft.fftn,
        "rfftn": np.fft.rfftn,
        "there and back": lambda u: np.fft.irfftn(np.fft.rfftn(u) * 3, u.shape, axes=range(u.ndim)),
    }
    check(calls[name], field(*shape))


def vorticity(w):
    n, m = w.shape
    kx, ky = np.fft.rfftfreq(m) * m, (np.fft.fftfreq(n) * n)[:, None]
    k2 = kx**2 + ky**2
    inverse = 1 / np.where(k2 == 0, 1, k2)
    kept = (np.abs(kx) < m / 3) & (np.abs(ky) < n / 3)

    def slope(spectrum):
        psi = spectrum * inverse
        u, v = np.fft.irfft2(1j * ky * psi, w.shape), np.fft.irfft2(-1j * kx * psi, w.shape)
        wx, wy = np.fft.irfft2(1j * kx * spectrum, w.shape), np.fft.irfft2(1j * ky * spectrum, w.shape)
        return -(kept * np.fft.rfft2(u * wx + v * wy)) - 0.01 * k2 * spectrum

    h, dt = np.fft.rfft2(w), 0.01
    a = slope(h)
    b = slope(h + dt / 2 * a)
    c = slope(h + dt / 2 * b)
    d = slope(h + dt * c)
    return np.fft.irfft2(h + dt / 6 * (a + 2 * b + 2 * c + d), w.shape)


def test_a_solver_redistributes_once_for_each_transform() -> None:
    """Spectra stay where the transforms leave them until the inverse transforms bring them back."""
    program = check(vorticity, field(16, 12))
    layouts = plan_layouts(program)
    assert layouts.moves(program) == []
    assert {one.exchanges for one in layouts.transforms.values()} == {1}
    assert len(layouts.transforms) == 22
    check(vorticity, field(16, 12), grids=[(1, 1), (2, 2), (1, 3)])


def with_values(u):
    spectrum = np.fft.rfft2(u)
    power = np.sum(np.abs(spectrum) ** 2)
    most = u.max()
    smooth = np.fft.irfft2(spectrum / np.sqrt(power) * most, u.shape)
    smooth[0, 1:] = smooth[1, :-1] + u[3, 4]
    return smooth - u.mean(axis=0), power, np.fft.irfft2(spectrum.sum(axis=1)[:, None] * spectrum, u.shape)


def test_values_go_from_space_to_space() -> None:
    check(with_values, field(12, 10), names=("a", "b", "c"))


def stencils(u):
    lap = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u
    there = np.fft.fft2(lap)
    there[1:-1, 1:] = there[2:, 1:] * 0.5 - there[:-2, :-1]
    there[0] = 0
    return np.fft.ifft2(there) + lap * np.exp(u)


def test_neighbours_between_transforms() -> None:
    check(stencils, field(12, 9, dtype="c16"))


LINES = np.arange(6) * 0.5


def tables(u):
    n, m = u.shape
    spectrum = np.fft.rfft2(u) * LINES
    spectrum = spectrum + np.zeros((n, m // 2 + 1), complex)
    i, j = np.meshgrid(np.arange(n), np.arange(m // 2 + 1), indexing="ij")
    return np.fft.irfft2(np.where((i + j) % 2 == 0, spectrum, 0), u.shape)


def test_lines_and_tables_of_a_spectrum() -> None:
    check(tables, field(12, 10))


def test_compiled_parts_have_the_same_bits() -> None:
    u = field(16, 12)
    program = traced(vorticity, [u])
    one, two = (run_spectral(program, [u], (2, 1), compiled=compiled) for compiled in (False, True))
    np.testing.assert_allclose(one[0], two[0], rtol=0, atol=1e-13)


def test_more_ranks_than_rows_and_long_chains() -> None:
    check(lambda u: np.fft.ifft2(np.fft.fft2(u) * 2), field(2, 3), grids=[(1, 1), (3, 1), (5, 1)])
    check(vorticity, field(4, 3), grids=[(1, 1), (5, 1)])

    def chain(u):
        for _ in range(300):
            u = np.fft.fft(u, norm="ortho")
        return u

    check(chain, field(4, 3, dtype="c8"), grids=[(1, 1), (2, 1)])


def filled(u):
    out = np.zeros_like(u)
    np.add(np.float64(1), 2.0, out=out)
    return np.fft.irfft2(np.fft.rfft2(out * u), u.shape)


def test_a_result_of_numbers_alone_may_be_stored_in_a_field() -> None:
    check(filled, field(6, 8))


def many_shapes(u):
    spectra = [u]
    for _ in range(3):
        spectra += [np.fft.rfft(np.fft.irfft(spectra[-1])[:, :], axis=0), np.fft.irfft(spectra[-1])]
    return sum(np.sum(np.abs(one)) for one in spectra) * u


REFUSED = {
    "cuts or pads": lambda u: np.fft.fft(u, 4),
    "part of a field": lambda u: np.fft.fft(u[1:-1]),
    "another order": lambda u: np.fft.fft(u.T).T,
    "every second cell": lambda u: np.fft.fft(u[::2])[0, 0] + u,
    "one row": lambda u: u + np.fft.fft(u[3]).real,
    "axis twice": lambda u: np.fft.fftn(u, axes=(0, 0)),
    "of shapes": lambda u: np.fft.rfft2(u)[:, :3] + u[:, :3],
    "raises": lambda u: np.fft.fft(u, axis=5),
    "of more than 4 shapes": many_shapes,
    "larger than its inputs": lambda u: np.fft.irfft(u.astype(complex)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_with_the_line(why: str) -> None:
    with pytest.raises(NotTraceable, match=why) as refused:
        traced(REFUSED[why], [field(12, 9)])
    assert refused.value.line


def test_an_axis_of_components_is_refused_and_others_are_transformed() -> None:
    u = field(12, 9, 2, dtype="c16")
    with pytest.raises(NotTraceable, match="an axis of components"):
        trace_whole(np.fft.fft, [WholeInput("u", u.shape, u.dtype)], {}, axes=(0, 1), kind="cpu")


STEPS = ("transform", "multiply", "neighbours", "value", "old")


@settings(max_examples=settings.default.max_examples // 4)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), min_size=1, max_size=6),
    st.tuples(st.integers(3, 9), st.integers(3, 9)),
)
def test_random_programs(steps: Any, shape: Any) -> None:
    axes = [(0,), (1,), (0, 1), (1, 0)]

    def program(u):
        n, m = u.shape
        line = np.fft.fftfreq(m) + np.fft.fftfreq(n)[:, None]
        a, b = np.fft.fftn(u, norm="ortho"), u
        for what, number in steps:
            if what == "transform":
                function = np.fft.ifftn if number % 2 else np.fft.fftn
                a, b = function(a, axes=axes[number], norm="ortho"), a
            elif what == "multiply":
                a = a * (line + number) + b
            elif what == "neighbours":
                a = np.roll(a, number, number % 2) - 0.5 * a
            elif what == "value":
                a = a / (1 + np.sum(np.abs(a)))
            else:
                a = a + 0.25 * u
        return a

    check(program, field(*shape, dtype="c16"))


PRODUCTS = {
    "@": lambda a, b: a @ b,
    "matmul and more": lambda a, b: np.roll(np.matmul(a + 1, b), 1, 0) - a * np.sum(a @ a),
    "dot": lambda a, b: np.dot(a, b.T) + b,
    "gram": lambda a, b: a.T @ a @ b.T,
    "of a spectrum": lambda a, b: np.fft.ifft2(np.fft.fft2(a) @ np.fft.fft2(b)).real,
}


@pytest.mark.parametrize("dtype", ["i4", "f4", "f8", "c16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_fields(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "of a spectrum" and dtype == "i4":
        pytest.skip("rounding is no integer")
    monkeypatch.setattr("meshrun.runner.transforms.product.TILE", 5)
    monkeypatch.setattr("meshrun.runner.transforms.product.CHUNK", 3)
    a, b = field(13, 13, dtype="c16", seed=1) * 3, field(13, 13, dtype="c16", seed=2) * 3
    kind = np.dtype(dtype).kind
    a, b = (one.astype(dtype) if kind == "c" else one.real.astype(dtype) for one in (a, b))
    check(PRODUCTS[name], a, b)


def test_products_of_components_stay_in_the_cell() -> None:
    """They are no products of fields: no program in parts."""
    u, table = field(12, 9, 3), np.arange(9.0).reshape(3, 3)
    program = trace_whole(lambda u: u @ table, [WholeInput("u", u.shape, u.dtype)], {}, axes=(0, 1))
    assert not isinstance(program, SpectralProgram)


def turbulent(w):
    """Some transforms that wait for others, and some that do not."""
    h = np.fft.rfft2(w)
    u, v = np.fft.irfft2(0.5 * h, w.shape), np.fft.irfft2(0.25j * h, w.shape)
    back = np.fft.irfft2(np.fft.rfft2(np.fft.irfft2(h * h, w.shape)), w.shape)
    return w + u * v + 0.01 * back


def turned(w):
    """Transforms along some axes, whose results lie where others do not."""
    return w + np.fft.ifft(np.fft.fft(w, axis=1), axis=0).real


@pytest.mark.parametrize("how", ["messages", "early", "late"])
@pytest.mark.parametrize("slow", [None, 0, 1])
@pytest.mark.parametrize("function", [turbulent, turned])
def test_transforms_between_gpus(
    function: Any, how: str, slow: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of a program whose transforms are prepared once: after the first two steps, the host
    allocates nothing, and the ranks agree on nothing."""
    w = np.random.default_rng(3).standard_normal((24, 20))
    program, wanted = traced(function, [w]), w
    for _ in range(TAKEN):
        wanted = function(wanted)
    for grid in ((1, 1), (2, 1), (3, 1), (2, 2)):
        ranks = Ranks(monkeypatch, how, slow)
        monkeypatch.setattr(spectral_run, "open_rooms", ranks.opened)
        monkeypatch.setattr(spectral_run, "peer_copies", ranks.made)

        def case(world: Any, grid: Any = grid) -> Any:
            run = SpectralRun(world, program, grid, Phases(world.backend.synchronize))
            run._on_gpu = True
            assert run.prepare() == []
            pair = [empty_array(world, run.plans[0], w.dtype) for _ in range(2)]  # type: ignore[arg-type]
            pair[0].interior[...] = w[pair[0].region.slices]
            calls = Counter[str]()
            for step in range(TAKEN):
                run.arrays[0], out = pair[step % 2], pair[(step + 1) % 2].interior
                out.fill(np.nan)
                if step == 2:
                    counted(world.backend, "empty", calls)
                    counted(world.control, "allgather", calls)
                    if world.size > 1:
                        counted(world, "exchange", calls)
                pair[step % 2].written()
                run.take([out])
            run.close()
            assert not calls
            assert not run.is_issued_by_host
            return run.region, out

        for region, block in ranks.run(int(np.prod(grid)), case):
            np.testing.assert_allclose(block, wanted[region.slices], rtol=1e-12)


def counted(owner: Any, name: str, calls: Counter[str]) -> None:
    """Count the calls of a method."""
    method = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return method(*arguments, **options)

    setattr(owner, name, call)


def test_what_the_host_issues_between_ranks_is_in_no_graph() -> None:
    w = np.random.default_rng(3).standard_normal((24, 24))

    def case(world: Any, function: Any, array: Any) -> bool:
        program, grid = traced(function, [array]), (world.size, *(1,) * (array.ndim - 1))
        return SpectralRun(world, program, grid, Phases(world.backend.synchronize)).is_issued_by_host

    for function, array, issued in (
        (turbulent, w, False),
        (lambda u: np.fft.ifft(np.fft.fft(u)).real, w[0], True),
        (lambda u: u @ u + np.fft.ifft2(np.fft.fft2(u)).real, w, True),
    ):
        for count in (1, 2):
            case_ = functools.partial(case, function=function, array=array)
            found = run_ranks(count, lambda control, call=case_: call(open_world("cpu", control=control)))
            assert found == [issued and count > 1] * count
