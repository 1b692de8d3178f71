"""What SHAPE means, where the body stands, and every refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import surfaces
import tifffile
from PIL import Image
from tiff_files import few_bits

from meshrun.jobs.airflow.shapes import stl
from meshrun.jobs.airflow.shapes.airfoil import parse
from meshrun.jobs.airflow.shapes.bodies import Body, of_cells
from meshrun.jobs.airflow.shapes.parts import find_parts
from meshrun.jobs.airflow.shapes.shape import Placement, check, read
from meshrun.jobs.airflow.shapes.surface import volume
from meshrun.runner.errors import UserError
from meshrun.runner.region import Region

Array = np.ndarray[Any, Any]
EVERY_WALL = ("top", "bottom", "front", "back")


def whole(body: Body) -> Array:
    return body.solid(Region((0,) * len(body.shape), body.shape))


def blob() -> Array:
    """A body that is the same from no side: True where solid, row 0 at the top."""
    solid = np.zeros((30, 50), bool)
    solid[8:20, 10:18] = solid[17:20, 10:40] = True
    return solid


def save(path: Path, pixels: Array) -> str:
    Image.fromarray(pixels).save(path)
    return str(path)


def body_of(solid: Array) -> Body:
    return of_cells("the shape", solid.shape, lambda region: solid[region.slices])


PICTURES = {
    "gray": lambda s: np.where(s, 0, 255).astype("uint8"),
    "just dark": lambda s: np.where(s, 127, 128).astype("uint8"),
    "gray of 16 bits": lambda s: np.where(s, 32767, 32768).astype("uint16"),
    "blue on yellow": lambda s: np.where(s[..., None], [0, 0, 255], [255, 255, 0]).astype("uint8"),
    "black on transparent black": lambda s: np.stack([0 * s, 0 * s, 0 * s, 255 * s], -1).astype("uint8"),
    "gray with alpha": lambda s: np.stack([0 * s, np.where(s, 200, 100)], -1).astype("uint8"),
    "black and white": lambda s: ~s,
}


@pytest.mark.parametrize("kind", PICTURES)
def test_dark_is_solid_and_the_rows_are_the_pictures(kind: str, tmp_path: Path) -> None:
    body = read(save(tmp_path / "shape.png", PICTURES[kind](blob())))
    np.testing.assert_array_equal(whole(body), blob())
    assert body.shape == (30, 50)
    assert (body.length, body.reference) == (12, 12)  # across the flow
    check(body)


def test_a_picture_of_another_size_keeps_its_proportions(tmp_path: Path) -> None:
    word = save(tmp_path / "shape.png", PICTURES["gray"](blob()))
    large = read(word, Placement(size="150x90"))
    np.testing.assert_array_equal(whole(large), blob().repeat(3, 0).repeat(3, 1))
    assert large.length == 36
    small = read(word, Placement(size="25x15", length=5))
    assert small.shape == (15, 25)
    assert small.length == 5  # what Reynolds numbers refer to; the body is as large as it is
    assert whole(small).sum() == pytest.approx(blob().sum() / 4, rel=0.15)
    with pytest.raises(UserError, match="other proportions") as caught:
        read(word, Placement(size="150x150"))
    assert caught.value.hint == "--size 150x90"
    with pytest.raises(UserError, match="other proportions"):
        read(word, Placement(size="150x90x10"))


def test_arrays_and_folders_of_pictures(tmp_path: Path) -> None:
    solid = np.zeros((7, 30, 50), bool)
    solid[1:5] = blob()
    solid[5, 9, 11] = True
    np.save(tmp_path / "a.npy", solid * np.float32(-0.5))
    (tmp_path / "planes").mkdir()
    for number, plane in enumerate(solid):
        save(tmp_path / "planes" / f"plane-{number:03}.png", PICTURES["gray"](plane))
    np.save(tmp_path / "flat.npy", blob().astype("uint8"))
    for word in ("a.npy", "planes"):
        body = read(str(tmp_path / word))
        np.testing.assert_array_equal(whole(body), solid)
        part = Region((2, 4, 5), (6, 20, 30))
        np.testing.assert_array_equal(body.solid(part), solid[part.slices])
        assert (body.length, body.reference) == (12, blob().any(1).sum() * 4 + 1)
        check(body)
        assert read(str(tmp_path / word), Placement(size="50x30x7")).shape == (7, 30, 50)
        with pytest.raises(UserError, match="another size"):
            read(str(tmp_path / word), Placement(size="50x30x8"))
    np.testing.assert_array_equal(whole(read(str(tmp_path / "flat.npy"))), blob())


def test_places_and_lengths() -> None:
    body = read("cylinder", Placement(size="200x100", place="0.3,0.4", length=20))
    rows, columns = whole(body).nonzero()
    assert (columns.mean() + 0.5, rows.mean() + 0.5) == pytest.approx((60, 40))
    assert (body.length, body.reference) == (20, 20)
    deep = read("cylinder", Placement(size="200x100x30", length=20))
    assert (deep.shape, deep.reference) == ((30, 100, 200), 600)
    np.testing.assert_array_equal(
        whole(deep)[7], whole(read("cylinder", Placement(size="200x100", length=20)))
    )
    ball = read("sphere", Placement(size="60x40x50", place="0.5,0.4,0.3", length=20))
    middle = [one.mean() + 0.5 for one in whole(ball).nonzero()]
    assert middle == pytest.approx([15, 16, 30])
    assert ball.reference == pytest.approx(np.pi * 100)
    wing = read("airfoil:0012", Placement(size="300x100", length=90, place="0.5,0.5"))
    rows, columns = whole(wing).nonzero()
    assert (columns.min() + columns.max() + 1) / 2 == pytest.approx(150, abs=3)
    assert np.ptp(columns) + 1 == pytest.approx(90, abs=5)  # the tail is thinner than a cell
    assert np.ptp(rows) + 1 == pytest.approx(0.12 * 90, abs=1.5)
    assert (wing.length, wing.reference) == (90, 90)
    for word in ("cylinder", "airfoil:2412@8", "none"):
        usual = read(word)
        assert usual.shape == (1024, 2048)
        check(usual)
    check(read("sphere"))


def test_bodies_that_do_not_touch_are_told_apart() -> None:
    labels = np.zeros((40, 60), np.uint8)
    labels[20:30, 5:9], labels[30, 9] = 1, 1  # joined at a corner
    labels[3:8, 10:30] = labels[8:12, 28:30] = 2
    labels[9:11, 12:20] = 3  # between the arms of the second
    found = find_parts(body_of(labels > 0))
    assert found is not None
    rows, columns = np.nonzero(labels)
    order = {1: 0, 3: 1, 2: 2}  # by the middles of their boxes
    np.testing.assert_array_equal(
        found.of(np.stack([rows, columns], 1)), [order[int(one)] for one in labels[rows, columns]]
    )
    assert found.references.tolist() == [11, 2, 9]
    assert found.places.tolist() == [[25, 7], [9.5, 15.5], [7, 19.5]]
    for kept in ((labels == 2), labels * 0 + 1 > 0):
        assert find_parts(body_of(kept)) is None
    specks = np.zeros((40, 60), bool)
    specks[::4, ::4] = True
    assert find_parts(body_of(specks)) is None


@pytest.mark.parametrize("seed", range(4))
def test_parts_are_those_of_scipy(seed: int) -> None:
    label = pytest.importorskip("scipy.ndimage").label
    shape = [(30, 40), (9, 10, 11)][seed % 2]
    solid = np.zeros(shape, bool)
    random = np.random.default_rng(seed)
    for _ in range(5):
        corner = [random.integers(1, n - 4) for n in shape]
        solid[tuple(slice(at, at + random.integers(1, 4)) for at in corner)] = True
    expected, count = label(solid, np.ones((3,) * len(shape)))
    found = find_parts(body_of(solid))
    cells = np.argwhere(solid)
    pairs = (
        {(int(expected[tuple(c)]), int(p)) for c, p in zip(cells, found.of(cells), strict=True)}
        if found
        else {0}
    )
    assert len(pairs) == count


@pytest.mark.parametrize("save_as", [surfaces.save_binary, surfaces.save_text])
def test_an_stl_file_of_a_sphere_and_of_a_box(save_as: Any, tmp_path: Path) -> None:
    made = surfaces.sphere(3) * 3.7 + [100, -20, 5]
    path = save_as(tmp_path / "made.stl", made)
    found = stl.read(path)
    assert found.oriented
    assert found.corners.shape == (1280, 3, 3)
    assert volume(found.corners) == pytest.approx(volume(made), rel=1e-5)
    body = read(str(path), Placement(size="80x60x50", length=30, place="0.5,0.5,0.5"))
    assert np.count_nonzero(whole(body)) == pytest.approx(4 / 3 * np.pi * 15**3, rel=0.02)
    assert body.length == pytest.approx(30)
    a, b, c = np.moveaxis(made[..., 1:] * 30 / np.ptp(made[..., 1]), 1, 0)
    (p, q), (r, s) = (b - a).T, (c - a).T
    frontal = abs(p * s - q * r).sum() / 4  # each line meets the front and the back of it
    assert body.reference == pytest.approx(frontal, rel=1e-3)  # its cells cover 2 % more
    middle = [one.mean() + 0.5 for one in whole(body).nonzero()]
    assert middle == pytest.approx([25, 30, 40], abs=0.05)
    check(body)
    check(read(str(path)))


def test_the_axes_of_an_stl_file(tmp_path: Path) -> None:
    """A box of 4 along x, 2 along y, 1 along z, with a small box on its top at the far right."""
    box = surfaces.cube() * [4, 2, 1]
    knob = surfaces.cube() * [0.5, 0.5, 0.5] + [3.5, 1.5, 1.0]
    path = str(surfaces.save_binary(tmp_path / "box.stl", np.concatenate([box, knob])))
    upright = whole(read(path, Placement(size="64x64x64", length=20)))
    depth, rows, columns = (np.ptp(one) + 1 for one in upright.nonzero())
    assert (depth, rows, columns) == pytest.approx((20, 15, 40), abs=1)
    first_row = upright[:, upright.any((0, 2)).nonzero()[0][0]]  # the highest one: of the knob
    planes, places = first_row.nonzero()
    assert planes.min() > 32  # y points away from who looks at a film
    assert places.min() > 0.35 * 64 + 10
    flat = whole(read(path, Placement(size="64x64x64", length=20, up="y")))
    depth, rows, columns = (np.ptp(one) + 1 for one in flat.nonzero())
    assert (depth, rows, columns) == pytest.approx((15, 20, 40), abs=1)


def test_a_file_whose_triangles_face_both_ways_is_solid_by_parity(tmp_path: Path) -> None:
    made = surfaces.sphere(2)
    made[::3] = made[::3, ::-1]
    path = surfaces.save_binary(tmp_path / "mixed.stl", made, header=b"solid as some binary files begin")
    assert not stl.read(path).oriented
    placement = Placement(size="40x40x40", length=20)
    same = surfaces.save_binary(tmp_path / "same.stl", surfaces.sphere(2))
    np.testing.assert_array_equal(whole(read(str(path), placement)), whole(read(str(same), placement)))


def test_text_with_the_line_ends_of_other_systems_and_capitals(tmp_path: Path) -> None:
    path = surfaces.save_text(tmp_path / "made.stl", surfaces.cube(), end="\r\n")
    path.write_bytes(path.read_bytes().upper())
    assert volume(stl.read(path).corners) == pytest.approx(1)


def test_corners_that_are_nearly_the_same_are_one(tmp_path: Path) -> None:
    made = surfaces.cube() + np.random.default_rng(0).uniform(-1e-9, 1e-9, (12, 3, 3))
    assert stl.read(surfaces.save_text(tmp_path / "made.stl", made)).oriented


def broken(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_repeated_facet_is_told_from_a_hole(tmp_path: Path) -> None:
    """Its edges were said to have "a triangle on one side only"; they have three."""
    made, file = surfaces.cube(), tmp_path / "made.stl"
    twice = np.concatenate([made, made[:1]])
    with pytest.raises(
        UserError, match=r"is not closed: got 3 edges with three or more triangles.*; 1 tri"
    ) as caught:
        stl.read(surfaces.save_binary(file, twice))
    assert "one side only" not in str(caught.value)
    assert "remove the repeated triangles" in str(caught.value)
    with pytest.raises(
        UserError, match=r"got 3 edges with three or more .*; 1 triangle that the file repeats"
    ):
        stl.read(surfaces.save_binary(file, np.concatenate([made, made[:1, ::-1]])))
    far = made + 9
    both = np.concatenate([twice, far[1:]])
    with pytest.raises(
        UserError, match=r"3 edges with a triangle on one side only, .*; 3 edges with three or"
    ):
        stl.read(surfaces.save_binary(file, both))


def test_stl_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "made.stl"
    with pytest.raises(UserError, match="is not closed") as caught:
        stl.read(surfaces.save_binary(file, surfaces.sphere(2)[1:]))
    assert str(caught.value.got).startswith("3 edges")
    assert caught.value.hint
    complete = surfaces.save_binary(file, surfaces.cube()).read_bytes()
    text = surfaces.save_text(file, surfaces.cube()).read_bytes()
    for content, reason in (
        (complete[:-7], "truncated"),
        (b"", "truncated"),
        (b"GIF89a" * 100, "truncated"),
        (text[: len(text) // 2], "truncated"),
        (text.replace(b"vertex", b"vertex x", 1), "broken"),
        (text.replace(b"0.000000000e+00", b"much", 1), "broken"),
        (b"solid nothing\nfacet\nendsolid nothing\n", "no surface"),
        (complete[:84][:80] + bytes(4), "no surface"),
        (text.replace(b"0.000000000e+00", b"nan", 1), "no surface"),
    ):
        with pytest.raises(UserError, match=reason) as caught:
            stl.read(broken(file, content))
        assert str(file) in str(caught.value)
    with pytest.raises(UserError, match="no surface"):
        stl.read(surfaces.save_binary(file, np.zeros((4, 3, 3))))
    with pytest.raises(UserError, match="cannot read"):
        stl.read(tmp_path / "missing.stl")
    flat = np.concatenate([surfaces.cube() * [1, 1, 0]])
    with pytest.raises(UserError, match="no body"):
        read(str(surfaces.save_binary(file, flat)))
    with pytest.raises(UserError, match="three axes"):
        read(str(surfaces.save_binary(file, surfaces.cube())), Placement(size="64x64"))


@pytest.mark.parametrize(
    ("word", "placement", "what"),
    [
        ("cylnider", Placement(), "unknown SHAPE"),
        ("cylinder:3", Placement(), "unknown SHAPE"),
        ("", Placement(), "unknown SHAPE"),
        ("no/such/shape.png", Placement(), "does not exist"),
        ("cylinder", Placement(size="2048"), "size of the domain"),
        ("cylinder", Placement(size="2048x-1"), "size of the domain"),
        ("cylinder", Placement(size="2048x3"), "size of the domain"),
        ("cylinder", Placement(size=""), "size of the domain"),
        ("sphere", Placement(size="64x64"), "three axes"),
        ("cylinder", Placement(place="0.5"), "place of the body"),
        ("cylinder", Placement(place="0.5,1.5"), "place of the body"),
        ("cylinder", Placement(place="0.5,nan"), "place of the body"),
        ("cylinder", Placement(place="left,top"), "place of the body"),
        ("sphere", Placement(place="0.5,0.5"), "place of the body"),
        ("cylinder", Placement(length=0.0), "no length"),
        ("none", Placement(length=float("nan")), "no length"),
    ],
)
def test_words_that_are_refused(word: str, placement: Placement, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        read(word, placement)
    assert caught.value.expected or caught.value.hint or caught.value.got or caught.value.why


@pytest.mark.parametrize(
    "number",
    [
        "",
        "241",
        "24123",
        "24a2",
        "2400",
        "2012",
        "2412@",
        "2412@91",
        "2412@up",
        "2412@nan",
        "²412",
        "2412@8@8",
    ],
)
def test_airfoils_that_are_refused(number: str) -> None:
    with pytest.raises(UserError, match="airfoil"):
        parse(number)
    with pytest.raises(UserError, match="NACA") as failure:
        read("airfoil:[\n[", Placement(size="300x100"))
    assert "\n" not in str(failure.value)
    with pytest.raises(UserError, match="Try: airfoil:2412@8"):
        read(f"airfoil:{number}")


def disc() -> Array:
    """Return brightness from 0, in a disc of radius 9, to 1."""
    rows, columns = np.mgrid[:40, :60]
    return np.where((rows - 20) ** 2 + (columns - 25) ** 2 < 81, 0.1, 0.9)


# bits: in the file, of each sample.
TIFFS: dict[str, tuple[str, int, dict[str, Any]]] = {  # dtype, the value of white, how
    "black is zero": ("u1", 255, {"photometric": "minisblack"}),
    "16 bits": ("u2", 65535, {"photometric": "minisblack"}),
    "12 bits": ("u2", 4095, {"photometric": "minisblack", "bits": 12}),
    "4 bits": ("u1", 15, {"photometric": "minisblack", "bits": 4}),
    "floats": ("f4", 1, {"photometric": "minisblack"}),
    "white is zero": ("u1", -255, {"photometric": "miniswhite"}),
    "white is zero, 16 bits": ("u2", -65535, {"photometric": "miniswhite", "compression": "zlib"}),
    "single bits": ("?", 1, {"photometric": "minisblack"}),
    "white is zero, single bits": ("?", -1, {"photometric": "miniswhite"}),
}


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("kind", TIFFS)
def test_a_tiff_has_the_body_that_a_viewer_shows(tmp_path: Path, kind: str) -> None:
    dtype, white, how = TIFFS[kind]
    light = disc() if white > 0 else 1 - disc()
    pixels = light > 0.5 if dtype == "?" else (light * abs(white)).astype(dtype)
    if "bits" in how:
        few_bits(tmp_path / "a.tif", pixels, how["bits"])
    else:
        tifffile.imwrite(tmp_path / "a.tif", pixels, **how)
    body = read(str(tmp_path / "a.tif"))
    np.testing.assert_array_equal(body.solid(Region((0, 0), body.shape)), disc() < 0.5)


@pytest.mark.parametrize("kind", ["unspecified", "assocalpha", "unassalpha"])
@pytest.mark.parametrize("colors", [1, 3])
def test_the_extra_channel_of_a_tiff_is_opacity_if_it_says_so(tmp_path: Path, kind: str, colors: int) -> None:
    """The body is opaque and dark, the ground transparent and black."""
    inside = disc() < 0.5
    pixels = np.zeros((*inside.shape, colors + 1), "u1")
    pixels[..., :colors] = np.where(inside, 25, 0 if kind != "unspecified" else 230)[..., None]
    pixels[..., colors] = np.where(inside, 255, 0)
    how = {"photometric": "rgb" if colors == 3 else "minisblack", "planarconfig": "contig"}
    tifffile.imwrite(tmp_path / "a.tif", pixels, extrasamples=[kind], **how)
    body = read(str(tmp_path / "a.tif"))
    np.testing.assert_array_equal(body.solid(Region((0, 0), body.shape)), inside)


def test_a_tiff_of_other_samples_is_no_picture(tmp_path: Path) -> None:
    how = {"photometric": "minisblack", "planarconfig": "contig", "extrasamples": ["unspecified"] * 4}
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((20, 30, 5), "u1"), **how)
    with pytest.raises(UserError, match="not a picture of brightness or colours"):
        read(str(tmp_path / "a.tif"))
    tifffile.imwrite(tmp_path / "b.tif", np.zeros((20, 30, 3), "u1"), photometric="cielab")
    with pytest.raises(UserError, match="not a picture of brightness or colours"):
        read(str(tmp_path / "b.tif"))


def test_pictures_and_arrays_that_are_refused(tmp_path: Path) -> None:
    light = save(tmp_path / "light.png", np.full((9, 9), 200, "uint8"))
    with pytest.raises(UserError, match="nothing in it is dark"):
        read(light)
    with pytest.raises(UserError, match="--place does not move a picture"):
        read(light, Placement(place="0.5,0.5"))
    np.save(tmp_path / "zero.npy", np.zeros((4, 4, 4)))
    with pytest.raises(UserError, match="all of its elements are 0"):
        read(str(tmp_path / "zero.npy"))
    np.save(tmp_path / "line.npy", np.ones(4))
    with pytest.raises(UserError, match="is no domain"):
        read(str(tmp_path / "line.npy"))
    (tmp_path / "planes").mkdir()
    with pytest.raises(UserError, match="holds no image"):
        read(str(tmp_path / "planes"))
    np.save(tmp_path / "planes" / "a.npy", np.ones((4, 4)))
    with pytest.raises(UserError, match="holds no picture"):
        read(str(tmp_path / "planes"))
    save(tmp_path / "planes" / "b.png", np.full((9, 9), 200, "uint8"))
    with pytest.raises(UserError, match="nothing in them is dark"):
        read(str(tmp_path / "planes"))
    save(tmp_path / "planes" / "c.png", np.zeros((9, 8), "uint8"))
    with pytest.raises(UserError, match="differ in size") as caught:
        read(str(tmp_path / "planes"))
    assert (caught.value.got, caught.value.expected) == ("c.png of 8x9", "9x9, as b.png")
    (tmp_path / "notes.txt").write_text("cylinder")
    with pytest.raises(UserError, match="unknown SHAPE") as caught:
        read(str(tmp_path / "notes.txt"))
    assert "a file of unknown kind" in str(caught.value)


def test_a_body_that_touches_no_edge_passes() -> None:
    check(body_of(blob()))
    check(body_of(np.pad(np.ones((1, 1, 1), bool), 2)))
    check(read("none"))


@pytest.mark.parametrize(
    ("edge", "part", "what"),
    [
        ("left", np.s_[:, :1], "blocks the inlet"),
        ("right", np.s_[:, -1:], "cut by the frame"),
        ("top", np.s_[:1], "cut by the frame"),
        ("bottom", np.s_[-1:], "cut by the frame"),
    ],
)
def test_a_body_at_the_frame_is_refused(edge: str, part: Any, what: str) -> None:
    solid = blob()
    solid[part][..., len(solid[part][0]) // 2 :][..., :3] = True
    if edge in ("left", "right"):
        solid[part][:] = False
        solid[part][12] = True
    with pytest.raises(UserError, match=what) as caught:
        check(body_of(solid))
    assert edge == "left" or f"{edge} edge" in str(caught.value.got)
    if edge in ("top", "bottom"):
        check(body_of(solid), [edge])
        with pytest.raises(UserError, match=what) as caught:
            check(body_of(solid), ["top" if edge == "bottom" else "bottom"])
        assert "it may rest on" in str(caught.value.expected)
    else:
        with pytest.raises(UserError, match=what):
            check(body_of(solid), EVERY_WALL)


def test_edges_of_three_axes() -> None:
    solid = np.zeros((6, 7, 8), bool)
    solid[:3, 3, 3] = solid[3, 3:, 3] = True
    with pytest.raises(UserError, match="cut") as caught:
        check(body_of(solid))
    assert caught.value.got == "solid cells at the front and bottom edges"
    with pytest.raises(UserError, match="cut") as caught:
        check(body_of(solid), ["bottom"])
    assert caught.value.got == "solid cells at the front edge"
    check(body_of(solid), ["bottom", "front"])


def between_walls(solid: np.ndarray[Any, Any]) -> Any:
    """Return a body with a row (and a plane) more on each side, for walls to stand in."""
    return body_of(np.pad(solid, [(1, 1)] * (solid.ndim - 1) + [(0, 0)]))


def test_a_channel_that_is_blocked_is_refused_but_no_winding_one() -> None:
    solid = np.zeros((20, 30), bool)
    # A slanted wall: links would pass its corners, sides of cells do not.
    solid[np.arange(20), np.arange(5, 25)] = True
    with pytest.raises(UserError, match="blocks the whole channel"):
        check(body_of(solid), EVERY_WALL)
    winding = np.zeros((20, 30), bool)
    winding[:-1, 8] = winding[1:, 12] = winding[:-1, 16] = True
    check(between_walls(winding), EVERY_WALL)
    winding[-1, 16] = True
    with pytest.raises(UserError, match="blocks the whole channel"):
        check(between_walls(winding), EVERY_WALL)
    spiral = np.zeros((21, 40), bool)
    spiral[:20, 5] = spiral[19, 5:30] = spiral[4:20, 30] = spiral[4, 10:30] = spiral[4:15, 10] = True
    spiral[20, 35] = spiral[2, 35] = True
    check(between_walls(spiral), EVERY_WALL)
    deep = np.zeros((6, 7, 8), bool)
    deep[:, :, 4] = True
    with pytest.raises(UserError, match="blocks the whole channel"):
        check(between_walls(deep), EVERY_WALL)
    deep[2, 3, 4], deep[2, 3, 6] = False, True
    check(between_walls(deep), EVERY_WALL)


def test_no_flow_passes_through_the_cells_of_walls() -> None:
    solid = np.zeros((20, 30), bool)
    solid[1:-1, 8] = True
    with pytest.raises(UserError, match="blocks the whole channel"):
        check(body_of(solid), EVERY_WALL)
    check(body_of(solid))  # in a periodic domain, two rows are open
    solid[:] = False
    solid[0, 8] = True
    with pytest.raises(UserError, match="no solid cell"):
        check(body_of(solid), EVERY_WALL)


def test_coefficients_refer_to_what_is_in_the_flow_not_in_walls() -> None:
    deep = read("cylinder", Placement(size="64x32x10", length=6))
    assert deep.reference == 60
    assert check(deep, EVERY_WALL).reference == pytest.approx(48)
    assert check(deep, ["front", "back", "top", "bottom"]).length == 6
    bump = np.zeros((20, 30), bool)
    bump[15:, 10] = True
    assert check(body_of(bump), EVERY_WALL).reference == 4
    ball = read("sphere", Placement(size="64x32x32", length=8))
    assert check(ball, EVERY_WALL).reference == ball.reference


@pytest.mark.parametrize("shape", [(3, 40), (40, 3), (8, 3, 40)])
def test_a_domain_too_thin_for_a_flow_is_refused(shape: tuple[int, ...]) -> None:
    solid = np.zeros(shape, bool)
    solid[(*(n // 2 for n in shape[:-1]), 1)] = True
    with pytest.raises(UserError, match="too thin") as caught:
        check(body_of(solid))
    assert "at least 4" in str(caught.value.expected)


def test_a_body_of_no_cell_is_refused() -> None:
    with pytest.raises(UserError, match="no solid cell") as caught:
        check(read("cylinder", Placement(size="64x64", length=0.5, place="0.5,0.5")))
    assert caught.value.got == "a length of 0.5 cells in 64x64"
