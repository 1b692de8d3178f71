"""Which cells are solid and where links cross the surface, against areas, volumes and formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import surfaces
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.jobs.airflow.lattice import D2Q9, D3Q27
from meshrun.jobs.airflow.links import find_links
from meshrun.jobs.airflow.shapes import bodies, surface
from meshrun.jobs.airflow.shapes.airfoil import parse
from meshrun.jobs.airflow.shapes.bodies import Body, Round, of_cells, silhouette
from meshrun.jobs.airflow.shapes.shape import Placement, read
from meshrun.jobs.airflow.shapes.surface import Surface, crossings, volume
from meshrun.runner.region import Region, overlap

Array = np.ndarray[Any, Any]


def whole(body: Body) -> Region:
    return Region((0,) * len(body.shape), body.shape)


def ring(count: int, centre: tuple[float, float], radius: float) -> Array:
    """Segments of a regular polygon."""
    angles = np.arange(count) * 2 * np.pi / count
    points = np.array(centre) + radius * np.stack([np.sin(angles), np.cos(angles)], 1)
    return np.stack([points, np.roll(points, -1, axis=0)], 1)


def samples() -> list[Body]:
    ball = surfaces.sphere(2)[..., ::-1] * 7 + [9.3, 10.2, 12.7]
    return [
        Round("cylinder", (24, 40), 13.0, 13.0, (11.3, 15.8), 6.5),
        Round("cylinder", (5, 24, 40), 13.0, 65.0, (11.3, 15.8), 6.5),
        Round("sphere", (20, 24, 30), 13.0, 1.0, (9.1, 11.3, 13.8), 6.5),
        Round("cut by the frame", (24, 40), 26.0, 24.0, (22.0, 3.0), 13.0),
        Surface("polygon", (24, 40), 10.0, 10.0, ring(37, (11.7, 17.1), 8.2)),
        Surface("prism", (4, 24, 40), 10.0, 10.0, ring(37, (11.7, 17.1), 8.2)),
        Surface("ball", (20, 24, 30), 14.0, 1.0, ball),
        read("airfoil:2412@8", Placement(size="100x50")),
    ]


@pytest.mark.parametrize("body", samples(), ids=lambda body: f"{body.name}-{len(body.shape)}")
def test_every_box_of_cells_is_the_part_of_the_whole(body: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = body.solid(whole(body))
    assert everything.any()
    monkeypatch.setattr(bodies, "CELLS", 50)
    around = np.pad(everything, 3, mode="wrap")
    random = np.random.default_rng(0)
    for _ in range(60):
        start = np.array([random.integers(-3, n) for n in body.shape])
        stop = np.array([random.integers(a, n + 3) for a, n in zip(start, body.shape, strict=True)])
        part = body.solid(Region(tuple(start.tolist()), tuple(stop.tolist())))
        np.testing.assert_array_equal(part, around[tuple(map(slice, start + 3, stop + 3))])


def test_areas_and_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surface, "PAIRS", 1000)  # less than some triangles have
    cases = [
        (Round("", (400, 400), 1.0, 1.0, (199.3, 200.1), 150.0), np.pi * 150**2),
        (Round("", (80, 80, 80), 1.0, 1.0, (39.3, 40.1, 38.9), 35.0), 4 / 3 * np.pi * 35**3),
        (
            Surface("", (400, 400), 1.0, 1.0, ring(9, (199.3, 200.1), 150.0)),
            4.5 * 150**2 * np.sin(2 * np.pi / 9),
        ),
        (
            Surface("", (80, 80, 80), 1.0, 1.0, surfaces.sphere(3) * 35 + 39.77),
            volume(surfaces.sphere(3)) * 35**3,
        ),
    ]
    for body, expected in cases:
        assert np.count_nonzero(body.solid(whole(body))) == pytest.approx(expected, rel=2e-3)
    assert volume(surfaces.cube()) == pytest.approx(1)
    assert volume(surfaces.sphere(4)) == pytest.approx(4 / 3 * np.pi, rel=5e-3)


@pytest.mark.parametrize("low", [3.0, 2.5, 2.999999999999])
def test_a_cube_is_a_cube_wherever_its_faces_are(low: float) -> None:
    """Also where faces, edges and corners are exactly on lattice lines and points."""
    body = Surface("", (12, 12, 12), 1.0, 1.0, surfaces.cube(low, low + 5))
    solid = body.solid(whole(body))
    for axis in range(3):
        count = np.unique(solid.sum(axis))
        assert set(count.tolist()) <= {0, 5, 6}
        assert len(count) == 2
    if low == 2.5:
        assert solid.sum() == 125


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_no_line_leaves_a_closed_surface_more_often_than_it_enters_it(
    seed: int, grid: bool, turned: bool
) -> None:
    """On a random closed surface, with corners on lattice points or not: nothing is solid at the far end."""
    random = np.random.default_rng(seed)
    corners = random.uniform(2, 10, (4, 3)) if not grid else random.integers(2, 11, (4, 3)).astype(float)
    faces = [corners[list(t)] for t in ((0, 1, 2), (0, 3, 1), (1, 3, 2), (2, 3, 0))]
    if turned:
        faces[1] = faces[1][::-1]
    for velocity in D3Q27.velocities[1:]:
        low, high = (-30, -30), (30, 30)
        lines: dict[tuple[int, ...], int] = {}
        for at, _, sign in crossings(np.array(faces), np.array(velocity), low, high):
            for line, one in zip(map(tuple, at.tolist()), sign.tolist(), strict=True):
                lines[line] = lines.get(line, 0) + one
        assert all(total % 2 == 0 if turned else total == 0 for total in lines.values())
    body = Surface("", (14, 14, 14), 1.0, 1.0, np.array(faces), not turned)
    solid = body.solid(whole(body))
    assert not solid[..., 11:].any()
    turns = np.linalg.det(corners[1:] - corners[0])
    if abs(turns) > 60:  # thick enough to compare with half spaces, but for cells next to a face
        inside, outside = np.ones(solid.shape, bool), np.zeros(solid.shape, bool)
        for number in range(4):
            a, b, c, d = corners[[(number + k) % 4 for k in range(4)]]
            normal = np.cross(b - a, c - a)
            place = np.moveaxis(np.indices(solid.shape), 0, -1) - a
            distance = place @ normal / np.linalg.norm(normal) * np.sign((d - a) @ normal)
            inside &= distance > 1e-6
            outside |= distance < -1e-6
        assert solid[inside].all()
        assert not solid[outside].any()


def test_overlapping_parts_are_one_body() -> None:
    both = np.concatenate([surfaces.cube(2.5, 7.5), surfaces.cube(4.5, 9.5)])
    solid = Surface("", (12, 12, 12), 1.0, 1.0, both).solid(Region((0, 0, 0), (12, 12, 12)))
    expected = np.zeros((12, 12, 12), bool)
    expected[3:8, 3:8, 3:8] = expected[5:10, 5:10, 5:10] = True
    np.testing.assert_array_equal(solid, expected)


def links(body: Body, lattice: Any) -> tuple[Array, Array]:
    """Cells and directions of all links."""
    solid = body.solid(whole(body))
    cells, directions = [], []
    for velocity in lattice.velocities[1:]:
        shifted = np.roll(solid, [-e for e in velocity], tuple(range(solid.ndim)))
        found = np.argwhere(~solid & shifted)
        cells.append(found)
        directions.append(np.broadcast_to(velocity, found.shape))
    return np.concatenate(cells), np.concatenate(directions)


@pytest.mark.parametrize("body", samples()[:3], ids=lambda body: f"{body.name}-{len(body.shape)}")
def test_links_end_on_a_circle_or_sphere(body: Any) -> None:
    cells, directions = links(body, D2Q9 if len(body.shape) == 2 else D3Q27)
    q = body.intersect(cells, directions)
    assert len(q) > 100
    assert np.isfinite(q).all()
    ends = (cells + q[:, None] * directions)[:, -len(body.centre) :] - np.array(body.centre)
    np.testing.assert_allclose(np.linalg.norm(ends, axis=1), body.radius, rtol=1e-12)
    assert ((q >= 0) & (q <= 1)).all()


def test_links_end_on_segments_and_triangles_as_on_the_circle_that_they_approach() -> None:
    circle = Round("", (60, 60), 1.0, 1.0, (29.3, 28.7), 20.2)
    polygon = Surface("", (60, 60), 1.0, 1.0, ring(4000, (29.3, 28.7), 20.2))
    np.testing.assert_array_equal(polygon.solid(whole(polygon)), circle.solid(whole(circle)))
    cells, directions = links(circle, D2Q9)
    np.testing.assert_allclose(
        polygon.intersect(cells, directions), circle.intersect(cells, directions), atol=1e-4
    )
    ball = Round("", (30, 30, 30), 1.0, 1.0, (14.3, 14.6, 14.9), 10.2)
    triangles = surfaces.sphere(5)[..., ::-1] * 10.2 + [14.3, 14.6, 14.9]
    mesh = Surface("", (30, 30, 30), 1.0, 1.0, triangles)
    cells, directions = links(mesh, D3Q27)
    q, exact = mesh.intersect(cells, directions), ball.intersect(cells, directions)
    assert np.isfinite(q).all()
    steep = np.isfinite(exact)
    assert steep.mean() > 0.99
    # A ray at a low angle meets the surface elsewhere.
    np.testing.assert_allclose(np.median(np.abs(q - exact)[steep]), 0, atol=3e-3)
    ends = np.linalg.norm(cells + q[:, None] * directions - [14.3, 14.6, 14.9], axis=1)
    np.testing.assert_allclose(ends, 10.2, rtol=2e-3)


@pytest.mark.parametrize("where", [2.5, 3.0])
def test_links_end_on_the_faces_of_a_cube(where: float) -> None:
    body = Surface("", (12, 12, 12), 1.0, 1.0, surfaces.cube(where, where + 5))
    cells, directions = links(body, D3Q27)
    q = body.intersect(cells, directions)
    assert np.isfinite(q).all()
    ends = cells + q[:, None] * directions
    assert (np.abs(ends - (where + 2.5)).max(1) == pytest.approx(2.5, abs=1e-12)) if where == 2.5 else True
    np.testing.assert_allclose(np.abs(ends - (where + 2.5)).max(1), 2.5, atol=1e-9)


def test_the_first_of_several_crossings_counts() -> None:
    """A wall that is thinner than a cell, seen from both sides: rows 5.2 to 5.6 are no cell, 5.2 to 6.1 are
    one."""
    corners = np.array([[5.2, 2.5], [5.2, 8.5], [6.1, 8.5], [6.1, 2.5]])
    body = Surface("", (12, 12), 1.0, 1.0, np.stack([corners, np.roll(corners, -1, axis=0)], 1))
    solid = body.solid(whole(body))
    assert solid.any(1).nonzero()[0].tolist() == [6]
    q = body.intersect(
        np.array([[5, 4], [7, 4], [5, 3], [7, 8]]), np.array([[1, 0], [-1, 0], [1, 1], [-1, -1]])
    )
    np.testing.assert_allclose(q, [0.2, 0.9, 0.2, 0.9])
    assert np.isnan(body.intersect(np.array([[2, 4]]), np.array([[1, 0]]))).all()


@pytest.mark.parametrize("body", samples(), ids=lambda body: f"{body.name}-{len(body.shape)}")
def test_every_link_of_a_body_with_a_surface_has_its_place(body: Body) -> None:
    lattice = D2Q9 if len(body.shape) == 2 else D3Q27
    cells, directions = links(body, lattice)
    # Of the body that rests on the frame, the other side begins beyond it.
    inside = ((cells + directions >= 0) & (cells + directions < body.shape)).all(1)
    sides = inside if "cut" in body.name else np.ones(len(cells), bool)
    assert np.isfinite(body.intersect(cells, directions)[sides]).all()
    assert find_links(body, whole(body), lattice).count == len(cells)


def test_silhouettes() -> None:
    solid = np.zeros((6, 9, 12), bool)
    solid[1:3, 2:7, 4:9] = solid[4, 2, 10] = True
    body = of_cells("made", solid.shape, lambda region: solid[region.slices])
    seen = silhouette(body)
    assert seen.box == Region((1, 2, 4), (5, 7, 11))
    assert (seen.frontal, seen.across) == (11, 5)
    assert (body.length, body.reference) == (5, 11)
    np.testing.assert_array_equal(seen.lines, solid.any(-1))
    np.testing.assert_array_equal(body.solid(whole(body)), solid)
    assert np.isnan(body.intersect(np.zeros((3, 3)), np.ones((3, 3)))).all()
    empty = of_cells("made", (3, 4), lambda region: np.zeros(region.shape, bool))
    assert silhouette(empty).frontal == empty.box.size == 0


def test_nothing_is_solid_without_a_body() -> None:
    body = read("none", Placement(size="30x20"))
    assert not body.solid(Region((-1, -1), (21, 31))).any()
    assert (body.length, body.reference) == (20, 20)


def test_overlaps() -> None:
    one = Region((0, 0), (5, 5))
    assert overlap(one, Region((3, -2), (9, 2))) == Region((3, 0), (5, 2))
    assert overlap(one, Region((6, 0), (9, 2))).size == 0


# Abbott and von Doenhoff, Theory of Wing Sections (1959), appendix III: half thickness of NACA 0012 in per
# cent of the chord. Their trailing edge is open, by 0.126 of a per cent.
THICKNESS = {0.025: 2.615, 0.10: 4.683, 0.30: 6.002, 0.50: 5.294, 0.80: 2.623}


def test_a_symmetric_airfoil_has_the_published_thickness() -> None:
    points = parse("0012").outline()
    np.testing.assert_allclose(points[1:], points[:0:-1] * [1, -1], atol=1e-15)  # mirrored at the chord
    upper = points[len(points) // 2 :]
    for x, half in THICKNESS.items():
        assert np.interp(x, upper[:, 0] + 0.5, upper[:, 1]) == pytest.approx(
            half / 100 - 0.00126 * x**4, abs=2e-5
        )
    assert tuple(points[0]) == pytest.approx((0.5, 0))  # the trailing edge, closed
    assert points[0, 1] == 0


def test_a_cambered_airfoil_has_its_camber_where_the_number_says() -> None:
    points = parse("4415").outline()
    half = len(points) // 2
    x = np.linspace(0.05, 0.95, 181)
    lower = np.interp(x, points[half::-1, 0] + 0.5, points[half::-1, 1])
    upper = np.interp(x, points[half:, 0] + 0.5, points[half:, 1])
    middle = (lower + upper) / 2
    assert x[np.argmax(middle)] == pytest.approx(0.4, abs=0.02)
    assert middle.max() == pytest.approx(0.04, abs=5e-4)
    assert (upper - lower).max() == pytest.approx(0.15, abs=2e-3)


def test_a_positive_angle_lifts_the_nose() -> None:
    points = parse("0012@30").outline()
    nose = points[len(points) // 2]
    np.testing.assert_allclose(nose, [-0.5 * np.cos(np.pi / 6), 0.25], atol=1e-12)
    solid = read("airfoil:0012@30", Placement(size="200x200", length=100)).solid(Region((0, 0), (200, 200)))
    first, last = (solid[:, column].nonzero()[0].mean() for column in solid.any(0).nonzero()[0][[0, -1]])
    assert first < last - 40  # up, in a picture, is where rows are few


def test_the_area_of_an_airfoil() -> None:
    """The integral of the thickness: t * 10 * (0.2969 * 2/3 - 0.1260/2 - 0.3516/3 + 0.2843/4 - 0.1036/5)."""
    area = 1.2 * (0.2969 * 2 / 3 - 0.1260 / 2 - 0.3516 / 3 + 0.2843 / 4 - 0.1036 / 5)
    for word in ("airfoil:0012", "airfoil:0012@8", "airfoil:0012@-90"):
        body = read(word, Placement(size="900x900", length=600, place="0.5,0.5"))
        assert np.count_nonzero(body.solid(whole(body))) == pytest.approx(area * 600**2, rel=2e-3)
