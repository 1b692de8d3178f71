"""Draw the results of the solvers, as docs/solvers.md shows them.

    python3 examples/solvers/pictures.py [FOLDER]

FOLDER: of the results; the pictures are written beside them. A result that is not there is left out.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

WARM = [(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)]
WATER = [(8, 29, 88), (34, 94, 168), (65, 182, 196), (199, 233, 180), (255, 255, 217)]
SIGNED = [(59, 76, 192), (141, 176, 254), (242, 242, 242), (244, 154, 123), (180, 4, 38)]


def colored(values, low, high, colors):
    """Return a picture of cells, of colours between those of low and of high."""
    places = np.clip((values - low) / (high - low), 0, 1) * (len(colors) - 1)
    channels = [np.interp(places, np.arange(len(colors)), channel) for channel in zip(*colors, strict=True)]
    return Image.fromarray(np.stack(channels, axis=-1).round().astype(np.uint8))


def shear(populations):
    """Return how fast the flow turns, of lattice Boltzmann populations."""
    cx, cy = (0, 0, 1, 1, 1, 0, -1, -1, -1), (0, 1, 1, 0, -1, -1, -1, 0, 1)
    density = populations.sum(axis=2)
    ux, uy = populations @ cx / density, populations @ cy / density
    return np.gradient(uy, axis=1) - np.gradient(ux, axis=0)


def counted(rows, columns, shape, window):
    """Return how many points are in each cell of a window ((low, high) of rows, and of columns)."""
    return np.histogram2d(rows, columns, shape, window)[0]


def circulation(u, v):
    """Return the stream function of a cavity at the corners of its cells, the lid above."""
    return (np.cumsum(u, axis=0)[:-1] / (len(u) - 2))[::-1]


def curl(u, v):
    """Return how fast a flow on faces turns, at the corners of cells. The inner rows have height 1 in all."""
    return (len(u) - 2) * (np.diff(v, axis=1) - np.diff(u, axis=0))


def behind(values, solid):
    """Return values with 0 in a body."""
    return np.where(solid, 0, values)


# Of each result, or of several: what is drawn, between which values, in which colours.
PICTURES = {
    "plate": ("warm", lambda u: (u, 0, 1, WARM)),
    "burgers": ("u", lambda u: (u, 1, 2, WARM)),
    "life": ("after", lambda board: (board, 0, 1, [(250, 250, 245), (0, 105, 92)])),
    "channel": ("later", lambda f: (behind(shear(f), body()), -0.08, 0.08, SIGNED)),
    "schroedinger": ("later_packet", lambda packet: (np.abs(packet), 0, 0.45, WARM)),
    "obstacle": ("stream_u", "stream_v", lambda u, v: (curl(u, v), -12, 12, SIGNED)),
    "tsunami": ("height", lambda height: (height, -0.08, 0.08, SIGNED)),
    "dam_break": ("water", lambda h: (h, 1, 2.5, WATER)),
    "maxwell": ("ez", lambda ez: (ez, -1.2, 1.2, SIGNED)),
    "multigrid": ("potential", lambda u: (u, -0.5, 0.5, SIGNED)),
    "acoustic": ("now", lambda now: (now, *[-0.4 * np.abs(now).max(), 0.4 * np.abs(now).max()], SIGNED)),
    "cavity": ("cavity_u", "cavity_v", lambda u, v: (circulation(u, v), -0.105, 0.105, SIGNED)),
    "implicit_heat": ("cooled", lambda u: (u, 0, u.max(), WARM)),
    "conjugate_gradients": ("solved", lambda x: (x / np.abs(x).max(), -1, 1, SIGNED)),
    "turbulence": ("vorticity", lambda w: (w, -3, 3, SIGNED)),
    "split_step": ("swung", lambda psi: (psi.real, -0.56, 0.56, SIGNED)),
    "traces": ("traces", lambda rows: (rows, *[-0.2 * np.abs(rows).max(), 0.2 * np.abs(rows).max()], SIGNED)),
    "particle_in_cell": (
        "x",
        "v",
        lambda x, v: (counted(v, x, (128, 192), ((-32, 32), (0, 128))), 0, 12, WARM),
    ),
    "nbody": (
        "later_x",
        lambda x: (counted(*x.T, (96, 96), ((-1.4, 1.4), (-1.4, 1.4))), 0, 2, WARM),
    ),
}


def body():
    """Return the cylinder of the channel."""
    row, column = np.ogrid[:100, :400]
    return (column - 100) ** 2 + (row - 50) ** 2 < 25**2


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for name, (*results, drawn) in PICTURES.items():
        paths = [folder / f"{result}.npy" for result in results]
        if all(path.exists() for path in paths):
            colored(*drawn(*map(np.load, paths))).save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
