"""Read SHAPE, the first word of the command, into a body; refuse those that no flow gets around.

Sizes are WIDTHxHEIGHT or WIDTHxHEIGHTxDEPTH, as of pictures; places are fractions of the domain from its
left, top and front edge. Arrays are (height, width) or (depth, height, width).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from meshrun.jobs.airflow.shapes import airfoil, stl
from meshrun.jobs.airflow.shapes.bodies import Body, CellBody, Round, ShadedBody, of_cells, silhouette
from meshrun.jobs.airflow.shapes.parts import connected
from meshrun.jobs.airflow.shapes.surface import Surface, frontal_area
from meshrun.runner.arrays.load import open_decoded
from meshrun.runner.errors import UserError
from meshrun.runner.region import HostArray, Region, Shape
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats import registry
from meshrun.runner.storage.formats.image import Appearance
from meshrun.runner.storage.formats.image_folder import open_folder
from meshrun.runner.storage.paths import split, suffix

WORDS = (
    "none, cavity, cylinder, sphere, airfoil:2412@8, a picture, an .stl file, an array file or a folder of "
    "pictures"
)
FILES = tuple(name for name, module in registry.FORMATS.items() if module != "raw")  # raw: has no shape
FLAT, DEEP = (1024, 2048), (128, 128, 256)  # the domain where no size is given
SQUARE = (258, 258)  # that of a cavity, with its walls
PLACE = {"airfoil": 0.3, "surface": 0.35}  # fraction of the width; others: a quarter
ROUND = 1 / 8  # diameter of cylinder and sphere, as a part of the height
CHORD = 1 / 4  # of the width
ACROSS, ALONG = 1 / 4, 1 / 3  # the most that an STL's body takes of height and depth, and of the width
EDGES = (("front", "back"), ("top", "bottom"), ("left", "right"))
LUMA = (0.299, 0.587, 0.114)  # Rec. 601, as the job grayscale
SMOOTH = (
    0.05  # standard deviation, in cells, of where between cells edges are: those drawn smoothly have more
)
ASPECT = 0.02  # by which the sides of a picture may change their proportion
SHORTEST = 4  # cells along an axis
MOST_CELLS = 1 << 48  # of a domain: 10,000 TB, which no machine holds
SIZE_WORD = re.compile(r"(\d+)x(\d+)(?:x(\d+))?", re.ASCII | re.IGNORECASE)

Up = Literal["y", "z"]


@dataclass(frozen=True)
class Placement:
    """What the user says beside SHAPE; None: as is usual for it.

    size: "WIDTHxHEIGHT" or "WIDTHxHEIGHTxDEPTH" in cells. place: "X,Y" or "X,Y,Z", of the middle of the body,
    in fractions of the domain from the left, top and front. length: characteristic length in cells, by which
    a cylinder, a sphere, an airfoil or an STL's body is scaled; the size of pictures and arrays is their own.
    up: the axis of an STL file that points up; its x axis goes along the flow.
    """

    size: str | None = None
    place: str | None = None
    length: float | None = None
    up: Up = "z"


def read(word: str, placement: Placement | None = None) -> Body:
    """Return the body that SHAPE means, in its domain. UserError if it cannot be read or is none.

    It may still be cut or block the flow: `check`.
    """
    placement = placement or Placement()
    if placement.length is not None and not (math.isfinite(placement.length) and placement.length > 0):
        raise UserError("the length is no length", got=placement.length, expected="cells, more than 0")
    name, colon, rest = word.partition(":")
    kind = suffix(split(Path(word))[0])
    if placement.up != "z" and kind != ".stl":
        raise UserError(
            f"{option('up')} does not apply",
            got=f"{option('up', placement.up)} of {word}",
            expected="an STL file",
        )
    if word == "none":
        _fixed("what is not there", placement, f"leave {option('place')} out")
        shape = _domain(placement, FLAT)
        length = placement.length or float(shape[-2])
        return Body("none", shape, length, length * math.prod(shape[:-2]))
    if word == "cavity":
        _fixed("a cavity", placement, f"leave {option('place')} out")
        shape = _domain(placement, SQUARE)
        if placement.length is not None:
            raise UserError(
                f"{option('length')} does not apply to a cavity", got=placement.length, hint=option("size")
            )
        return Body("cavity", shape, float(shape[-1] - 2), 1.0)
    if word in ("cylinder", "sphere"):
        return _round(word, placement)
    if name == "airfoil":
        return _airfoil(word, rest if colon else "", placement)
    path = Path(word)
    if kind == ".stl":
        return _surface(path, placement)
    if word and path.is_dir() and kind not in registry.FOLDERS:
        return _folder(path, placement)
    if kind not in FILES:
        got = f"{word}, a file of unknown kind" if path.is_file() else word
        endings = ", ".join((*FILES, ".stl"))
        raise UserError("unknown SHAPE", got=got, expected=f"{WORDS}; files end in {endings}")
    return _picture(path, placement) if _is_picture(path) else _array(path, placement)


def check(body: Body, walls: Collection[str] = ()) -> Body:
    """Refuse, with a UserError, a body of no cell, one that is cut by the frame and one that blocks the flow.

    Returns the body, whose force coefficients refer only to what is in the flow. walls: edges of the domain
    that are walls, a cell thick, on which a body may rest: top, bottom, front, back.
    """
    if min(body.shape) < SHORTEST:
        raise UserError(
            f"the domain of {body.name} is too thin",
            got=f"{size_text(body.shape)} cells",
            expected=f"at least {SHORTEST} along each axis",
        )
    if type(body) is Body:
        return body
    seen = silhouette(body)
    edges = EDGES[-len(body.shape) :]
    between_walls = tuple(
        slice(int(first in walls), length - (last in walls))
        for (first, last), length in zip(edges, body.shape[:-1], strict=False)
    )
    in_flow = seen.lines[between_walls]
    if not in_flow.any():
        raise UserError(
            f"{body.name} has no solid cell",
            got=f"a length of {body.length:g} cells in {size_text(body.shape)}",
            expected="a body of some cells within the domain",
            hint=f"{option('length')} and {option('place')}, or a larger {option('size')}",
        )
    touched = [
        names[end]
        for names, first, last, length in zip(edges, seen.box.start, seen.box.stop, body.shape, strict=True)
        for end, touches in enumerate((first == 0, last == length))
        if touches
    ]
    hint = f"a margin around the body: a larger picture or {option('size')}, another {option('place')}"
    if "left" in touched:
        raise UserError(
            f"{body.name} blocks the inlet",
            got="solid cells in the first column",
            expected="none there",
            hint=hint,
        )
    if in_flow.all() and not _passes(body, between_walls):
        raise UserError(
            f"{body.name} blocks the whole channel", got="no way for the flow from left to right", hint=hint
        )
    cut = [name for name in touched if name not in walls]
    if cut:
        held = [name for names in edges[:-1] for name in names if name in walls]
        expected = "none there" + (f"; it may rest on a wall: {', '.join(held)}" if held else "")
        raise UserError(
            f"{body.name} is cut by the frame",
            got=f"solid cells at the {' and '.join(cut)} edge{'s' if len(cut) > 1 else ''}",
            expected=expected,
            hint=hint,
        )
    return replace(body, reference=body.reference * (np.count_nonzero(in_flow) / seen.frontal))


def size_text(shape: Shape) -> str:
    """Return the size of a domain as the option size has it: WIDTHxHEIGHT or WIDTHxHEIGHTxDEPTH."""
    return "x".join(str(n) for n in (shape[-1], shape[-2], *shape[:-2]))


def _domain(placement: Placement, usual: Shape) -> Shape:
    return usual if placement.size is None else parse_size(placement.size)


def parse_size(text: str) -> Shape:
    """Return the shape of the domain of the option size; UserError if it is none."""
    found = SIZE_WORD.fullmatch(text.strip())
    numbers = [int(n) for n in found.groups() if n] if found else []
    if not numbers or min(numbers) < SHORTEST:
        expected = f"WIDTHxHEIGHT or WIDTHxHEIGHTxDEPTH in cells, each at least {SHORTEST}"
        raise UserError(
            "the size of the domain cannot be read", got=text, expected=expected, hint="2048x1024"
        )
    if math.prod(numbers) > MOST_CELLS:
        raise UserError(
            "the domain has more cells than any machine holds",
            got=f"{math.prod(numbers):,} cells",
            expected=f"at most {MOST_CELLS:,}",
            hint=f"a smaller {option('size')}",
        )
    return (*numbers[2:], numbers[1], numbers[0])


def _deep(what: str, placement: Placement) -> Shape:
    shape = _domain(placement, DEEP)
    if len(shape) != 3:
        hint = f"{size_text(shape)}x{shape[0]}"
        raise UserError(
            f"{what} needs three axes", got=placement.size, expected="WIDTHxHEIGHTxDEPTH", hint=hint
        )
    return shape


def _middle(placement: Placement, shape: Shape, axes: int, along: float = 1 / 4) -> HostArray:
    """Return the place of the body's middle, in the last `axes` coordinates of cells."""
    text = placement.place
    fractions = [along] + [0.5] * (axes - 1)
    if text is not None:
        try:
            fractions = [float(part) for part in text.split(",")]
        except ValueError:
            fractions = []
        if len(fractions) != axes or not all(0 <= part <= 1 for part in fractions):
            raise UserError(
                "the place of the body cannot be read",
                got=repr(text),
                expected=f"{','.join('XYZ'[:axes])}, fractions of the domain from 0 to 1",
                hint=",".join(["0.25", "0.5", "0.5"][:axes]),
            )
    ordered = [fractions[2], fractions[1], fractions[0]] if axes == 3 else [fractions[1], fractions[0]]
    return np.array(ordered) * shape[-axes:] - 0.5


def _round(word: str, placement: Placement) -> Round:
    if word == "sphere":
        shape, axes = _deep("a sphere", placement), 3
    else:
        shape, axes = _domain(placement, FLAT), 2
    diameter = placement.length or min(shape[-axes:-1]) * ROUND
    area = math.pi / 4 * diameter**2 if axes == 3 else diameter * math.prod(shape[:-2])
    middle = tuple(_middle(placement, shape, axes).tolist())
    return Round(f"the {word}", shape, diameter, area, middle, diameter / 2)


def _airfoil(word: str, number: str, placement: Placement) -> Surface:
    profile = airfoil.parse(number)
    shape = _domain(placement, FLAT)
    chord = placement.length or shape[-1] * CHORD
    # Rows count downwards.
    corners = profile.outline()[:, ::-1] * (-chord, chord) + _middle(placement, shape, 2, PLACE["airfoil"])
    elements = np.stack([corners, np.roll(corners, -1, axis=0)], 1)
    return Surface(word, shape, chord, chord * math.prod(shape[:-2]), elements)


def _surface(path: Path, placement: Placement) -> Surface:
    triangles = stl.read(path)
    shape = _deep(f"the body in {path}", placement)
    x, y, z = np.moveaxis(triangles.corners, -1, 0)
    corners = np.stack([y, -z, x] if placement.up == "z" else [-z, -y, x], -1)
    low, high = corners.min((0, 1)), corners.max((0, 1))
    extent = high - low
    if not extent.all():
        raise UserError(f"{path} holds no body", got="a flat surface", expected="one with a volume")
    across = float(extent[:2].max())
    if placement.length:
        scale = placement.length / across
    else:
        scale = min(ACROSS * min(shape[:2]) / across, ALONG * shape[2] / float(extent[2]))
    middle = _middle(placement, shape, 3, PLACE["surface"])
    placed = (corners - (low + high) / 2) * scale + middle
    return Surface(str(path), shape, across * scale, frontal_area(placed), placed, triangles.oriented)


def _is_picture(path: Path) -> bool:
    return registry.FORMATS[suffix(path)] in ("image", "tiff")


def _fixed(what: str, placement: Placement, hint: str = "draw the body where it shall be") -> None:
    if placement.place is not None:
        raise UserError(f"{option('place')} does not move {what}", got=placement.place, hint=hint)


def _picture(path: Path, placement: Placement) -> CellBody:
    _fixed("a picture", placement)
    light = _brightness(path)
    shape = _domain(placement, light.shape)
    if shape != light.shape:
        light = _resized(path, light, shape)
    solid = light < 0.5
    if not solid.any():
        raise UserError(
            f"{path} holds no body: nothing in it is dark",
            expected="a body drawn dark (luminance below one half) on light or transparent ground",
        )
    body = of_cells(str(path), shape, lambda region: solid[region.slices], placement.length)
    if not _has_smooth_edges(light, solid):
        return body
    return ShadedBody(
        body.name, shape, body.length, _covered_rows(light, solid), body.read, body.extent, light
    )


def _covered_rows(light: HostArray, solid: HostArray) -> float:
    """Return the rows that a body covers, as seen along the flow: a part of the first and of the last one."""
    ground, dark = float(np.median(light[~solid])), float(np.median(light[solid]))
    rows = np.flatnonzero(solid.any(1))
    around = np.unique(np.clip([rows - 1, rows, rows + 1], 0, len(light) - 1))
    return float(np.clip((ground - light[around].min(1)) / (ground - dark), 0, 1).sum())


def _has_smooth_edges(light: HostArray, solid: HostArray) -> bool:
    """Return whether the brightness passes one half at various places between cells."""
    found = []
    for before, after in ((np.s_[:-1, :], np.s_[1:, :]), (np.s_[:, :-1], np.s_[:, 1:])):
        passes = solid[before] != solid[after]
        pair = np.sort(np.stack([light[before][passes], light[after][passes]]), axis=0)
        found.append((0.5 - pair[0]) / (pair[1] - pair[0]))
    places = np.concatenate(found)
    return bool(len(places)) and float(places.std()) > SMOOTH


def _resized(path: Path, light: HostArray, shape: Shape) -> HostArray:
    """Return means of the picture's pixels for each cell of another size of the same proportions."""
    fitting = (max(SHORTEST, round(light.shape[0] * shape[-1] / light.shape[1])), shape[-1])
    if len(shape) != 2 or abs(shape[0] / fitting[0] - 1) > ASPECT:
        raise UserError(
            f"the size has other proportions than {path}",
            got=size_text(shape),
            expected=f"{size_text(light.shape)}, or such as {size_text(fitting)}",
            hint=option("size", size_text(fitting)),
        )
    picture = Image.fromarray(light).resize((shape[1], shape[0]), Image.Resampling.BOX)
    return np.asarray(picture)


def _brightness(path: Path) -> HostArray:
    """Return the luminance of a picture on white ground, 0 to 1: (rows, columns) float32. UserError."""
    (source,) = open_decoded([path])
    shape, dtype = source.shape, source.dtype
    channels = shape[2] if len(shape) == 3 else 1
    look = _appearance(path, dtype, channels)
    if look is None or len(shape) not in (2, 3) or not 0 < look.colors <= channels <= 4:
        raise UserError(
            f"{path} is not a picture of brightness or colours",
            got=f"{dtype} of shape {shape}",
            expected="uint8, uint16 or floats from 0 to 1 of shape (rows, columns[, 1 to 4 channels])",
        )
    read_whole = np.empty(shape, dtype)
    source.read(Region((0,) * len(shape), shape), read_whole)
    values = read_whole.reshape(*shape[:2], channels).astype(np.float32) / np.float32(look.white)
    light = values[..., 0] if look.colors == 1 else values[..., :3] @ np.array(LUMA, np.float32)
    if look.opacity:
        alpha = values[..., look.colors]
        light = (light if look.premultiplied else light * alpha) + (1 - alpha)
    return np.ascontiguousarray(light)


def _appearance(path: Path, dtype: np.dtype[Any], channels: int) -> Appearance | None:
    """Return what the channels of a picture mean; None if they are no brightness and no colours."""
    white = {"uint8": 255, "uint16": 65535, "bool": 1, "float32": 1, "float64": 1}.get(dtype.name)
    if white is None:
        return None
    if registry.is_tiff(path):
        from meshrun.runner.storage.formats import tiff

        return tiff.appearance(path)
    return Appearance(1 if channels < 3 else 3, white, opacity=channels in (2, 4))


def _array(path: Path, placement: Placement) -> CellBody:
    _fixed("an array", placement)
    source = registry.open_source(path)
    shape = source.shape
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise UserError(
            f"{path} is no domain", got=f"shape {shape}", expected="(rows, columns) or (depth, rows, columns)"
        )
    _same_size(path, shape, placement)

    def nonzero(region: Region) -> HostArray:
        block = np.empty(region.shape, source.dtype)
        source.read(region, block)
        found: HostArray = block != 0
        return found

    body = of_cells(str(path), shape, nonzero, placement.length)
    if not body.box.size:
        raise UserError(
            f"{path} holds no body: all of its elements are 0", expected="another value where it is solid"
        )
    return body


def _same_size(path: Path, shape: Shape, placement: Placement) -> None:
    if placement.size is not None and (wanted := _domain(placement, shape)) != shape:
        raise UserError(
            f"{path} has another size",
            got=size_text(shape),
            expected=size_text(wanted),
            hint=f"leave out {option('size')}",
        )


def _folder(path: Path, placement: Placement) -> CellBody:
    """A picture for each plane, in the order of their names, from the front to the back."""
    _fixed("a folder of pictures", placement)
    folder = open_folder(path)
    names = [one.name for one in folder.images if _is_picture(Path(one.name))] if folder else []
    if not names:
        raise UserError(
            f"the folder {path} holds no picture", expected="a picture for each plane of the domain"
        )
    plane = _brightness(path / names[0]).shape
    shape = (len(names), *plane)
    _same_size(path, shape, placement)

    @functools.lru_cache(maxsize=8)
    def dark(name: str) -> HostArray:
        light = _brightness(path / name)
        if light.shape != plane:
            raise UserError(
                f"the pictures in {path} differ in size",
                got=f"{name} of {size_text(light.shape)}",
                expected=f"{size_text(plane)}, as {names[0]}",
            )
        found: HostArray = light < 0.5
        return found

    def planes(region: Region) -> HostArray:
        chosen = names[region.start[0] : region.stop[0]]
        return np.stack([dark(name)[region.slices[1:]] for name in chosen])

    body = of_cells(str(path), shape, planes, placement.length)
    if not body.box.size:
        raise UserError(
            f"the pictures in {path} hold no body: nothing in them is dark", expected="a body drawn dark"
        )
    return body


def _passes(body: Body, between_walls: tuple[slice, ...]) -> bool:
    """Whether there is a way between solid cells, from side to side of cells, from the left to the right
    edge. between_walls: the part of each axis across the flow that is no wall."""
    fluid = ~body.solid(Region((0,) * len(body.shape), body.shape))[between_walls]
    begins = fluid.copy()
    begins[..., 1:] &= ~fluid[..., :-1]
    run = np.cumsum(begins.reshape(-1)).reshape(fluid.shape) - 1  # of fluid cells along the flow
    pairs = [np.zeros((0, 2), np.int64)]
    for axis in range(fluid.ndim - 1):
        one, other = (_without_end(fluid.ndim, axis, end) for end in (0, -1))
        open_both = fluid[one] & fluid[other]
        pairs.append(np.unique(np.stack([run[one][open_both], run[other][open_both]], 1), axis=0))
    reached = connected(np.concatenate(pairs), int(begins.sum()))
    left, right = (reached[run[..., end][fluid[..., end]]] for end in (0, -1))
    return bool(np.isin(left, right).any())


def _without_end(ndim: int, axis: int, end: int) -> tuple[slice, ...]:
    cut = slice(1, None) if end == 0 else slice(None, -1)
    return tuple(cut if at == axis else slice(None) for at in range(ndim))
