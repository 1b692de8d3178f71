"""Which cells of an array a frame shows, which of them each rank has, and where blocks meet in a picture."""

from __future__ import annotations

from dataclasses import dataclass

from meshrun.runner.compiler.trace.array import MOST_COMPONENTS
from meshrun.runner.plan.halo import Slices
from meshrun.runner.plan.task import Field, Task
from meshrun.runner.region import Region, Shape

PIXELS = 1024  # most rows and columns of a picture


@dataclass(frozen=True)
class Seam:
    """Cells of two blocks at the border between them, from which a few pixels are computed on rank 0: each
    rank has only some of the cells beside these pixels'.

    cells: as slices of the array. axis: across the border. pixels: which of the picture, along `axis`.
    """

    cells: Slices
    axis: int
    pixels: slice


@dataclass(frozen=True)
class FrameView:
    """The cells of an input that a frame shows.

    field: the input. slices: of its array. margin: cells at each edge of a block whose pixels need cells of
    other blocks, along the picture's axes.
    """

    field: Field
    slices: Slices
    margin: int = 0

    @property
    def shape(self) -> Shape:
        """The shape of the cells shown."""
        return shape_of(self.slices, self.field.shape)

    @property
    def axes(self) -> list[int]:
        """The axes along which more than one cell is shown: at most two, the last ones."""
        return [axis for axis, one in enumerate(self.slices) if one.stop - one.start > 1][-2:]

    def of_seam(self, seam: Seam) -> FrameView:
        """Return the view of a seam's cells."""
        return FrameView(self.field, seam.cells)

    def own_slices(self, own: Region) -> Slices:
        """Return the slices of a rank's cells that are shown, without its margin. own: the rank's region."""
        region = self._inside(own)
        found = []
        ends = zip(self.slices, own.start, region.start, region.stop, self.field.shape, strict=True)
        for one, low, start, stop, length in ends:
            first, last, stride = one.indices(length)
            begin = max(first, first + -(-(start - first) // stride) * stride)
            found.append(slice(begin - low, max(min(stop, last), begin) - low, stride))
        return tuple(found)

    def shown(self, rank: int) -> Region:
        """Return the region of the frame that a rank's cells fill, without its margin."""
        region = self._inside(self.field.partition[rank])
        starts, stops = [], []
        ends = zip(self.slices, region.start, region.stop, self.field.shape, strict=True)
        for one, start, stop, length in ends:
            chosen = range(*one.indices(length))
            starts.append(len(range(chosen.start, min(start, chosen.stop), chosen.step)))
            stops.append(len(range(chosen.start, min(max(stop, chosen.start), chosen.stop), chosen.step)))
        return Region(tuple(starts), tuple(max(a, b) for a, b in zip(starts, stops, strict=True)))

    def shifted(self, slices: Slices, shift: tuple[int, int]) -> Slices:
        """Return the cells beside those of some pixels. shift: along the picture's rows and columns."""
        by = dict(zip(self.axes, shift, strict=False))
        return tuple(
            slice(one.start + by.get(axis, 0), one.stop + by.get(axis, 0), one.step)
            for axis, one in enumerate(slices)
        )

    def seams(self) -> list[Seam]:
        """Return the seams at which pixels are, of all borders between blocks; none without a margin."""
        found = []
        for axis in self.axes if self.margin else ():
            length, shown = self.field.shape[axis], self.slices[axis]
            chosen = range(*shown.indices(length))
            starts = {region.start[axis] for region in self.field.partition if region.size}
            for border in sorted(starts - {0}):
                pixels = [chosen.index(cell) for cell in (border - 1, border) if cell in chosen]
                if pixels:
                    cells = [
                        slice(0, n, 1) if at in self.axes else one
                        for at, (one, n) in enumerate(zip(self.slices, self.field.shape, strict=True))
                    ]
                    cells[axis] = slice(max(border - 2, 0), min(border + 2, length), 1)
                    found.append(Seam(tuple(cells), axis, slice(pixels[0], pixels[-1] + 1)))
        return found

    def at_seam(self, seam: Seam, shift: tuple[int, int]) -> Slices:
        """Return where the cells beside a seam's pixels are among the seam's. shift: as of `shifted`."""
        line = list(self.slices)
        chosen = range(*line[seam.axis].indices(self.field.shape[seam.axis]))[seam.pixels]
        line[seam.axis] = slice(chosen.start, chosen.stop, chosen.step)
        return tuple(
            slice(one.start - origin.start, one.stop - origin.start, one.step)
            for one, origin in zip(self.shifted(tuple(line), shift), seam.cells, strict=True)
        )

    def _inside(self, region: Region) -> Region:
        """Return a region without the margin."""
        less = [self.margin if axis in self.axes else 0 for axis in range(len(region.start))]
        starts = tuple(a + n for a, n in zip(region.start, less, strict=True))
        stops = (b - n for b, n in zip(region.stop, less, strict=True))
        return Region(starts, tuple(max(a, b) for a, b in zip(starts, stops, strict=True)))


def shape_of(view: Slices, shape: Shape) -> Shape:
    """Return the shape of what slices of an array show."""
    return tuple(len(range(*one.indices(n))) for one, n in zip(view, shape, strict=True))


def picture_slices(task: Task, place: int, most: int = PIXELS) -> Slices:
    """Return which cells a picture shows: a plane of the array, every so many cells along its axes.

    Of an array with more than two axes: the first element along axes after those of space, such as a
    vector's, and the middle along others. most: rows and columns.
    """
    shape, space = task.fields[place].stored, _space_axes(task, place)
    axes = picture_axes(task, place)
    stride = max(-(-max((shape[axis] for axis in axes), default=1) // most), 1)
    slices = []
    for axis, (length, own) in enumerate(zip(shape, own_slices(task.fields[place]), strict=True)):
        at = 0 if axis >= space else own.step * (length // 2)
        chosen = slice(0, own.stop, own.step * stride)
        slices.append(chosen if axis in axes else slice(at, min(at + 1, own.stop), 1))
    return tuple(slices)


def own_slices(field: Field) -> Slices:
    """Return where an input's own cells are in memory."""
    if field.subgrid is None:
        return tuple(slice(0, length, 1) for length in field.shape)
    return field.subgrid.places(Region((0,) * len(field.shape), field.shape))


def picture_axes(task: Task, place: int) -> list[int]:
    """Return the axes of an input that are a picture's rows and columns: two, or all of fewer."""
    shape, space = task.fields[place].shape, _space_axes(task, place)
    axes = max(len(shape) - 2, 0)
    fixed = [axis for axis in reversed(range(len(shape))) if axis >= space][:axes]
    fixed += [axis for axis in range(len(shape)) if axis not in fixed][: axes - len(fixed)]
    return [axis for axis in range(len(shape)) if axis not in fixed]


def _space_axes(task: Task, place: int) -> int:
    """Return how many leading axes of an input are those of space; the others hold components of a cell.

    With a halo, they are the axes up to the last one that has one. Without, they are those that all inputs
    have, but for a last one of few elements. The cut does not count: it depends on the number of ranks.
    """
    if any(width != (0, 0) for width in task.widths):
        return max(axis + 1 for axis, width in enumerate(task.widths) if width != (0, 0))
    shape, common = task.fields[place].shape, min(len(field.shape) for field in task.fields)
    has_components = len(shape) == common > 2 and shape[-1] <= MOST_COMPONENTS
    return common - 1 if has_components else common
