"""Make the solvers' start arrays in the folder `inputs`: python3 examples/solvers/inputs.py [FOLDER]"""

import sys
from pathlib import Path

import numpy as np


def hill(shape, centre, radius):
    """Return a smooth hill of height 1. centre, radius: in cells."""
    row, column = np.ogrid[: shape[0], : shape[1]]
    return np.exp(-((row - centre[0]) ** 2 + (column - centre[1]) ** 2) / (2 * radius**2))


def square():
    """Return velocities of 1, and of 2 in a square, as the course's start has it."""
    field = np.ones((256, 256), np.float32)
    field[64:128, 64:128] = 2
    return field


def soup():
    """Return a board whose middle is filled at random."""
    cells = np.zeros((192, 256), np.int32)
    cells[64:128, 80:176] = np.random.default_rng(3).random((64, 96)) < 0.35
    return cells


def flow():
    """Return populations of a flow to the right with small disturbances, and a cylinder in it."""
    shape = (100, 400)
    populations = 1 + 0.01 * np.random.default_rng(42).standard_normal((*shape, 9))
    populations[:, :, 3] += 2 * (1 + 0.2 * np.cos(2 * np.pi * np.arange(shape[1]) / shape[1] * 4))
    populations *= 100 / populations.sum(axis=2, keepdims=True)
    row, column = np.ogrid[: shape[0], : shape[1]]
    return populations, (column - shape[1] / 4) ** 2 + (row - shape[0] / 2) ** 2 < (shape[0] / 4) ** 2


def waves():
    """Return a packet that moves to the right, the one a step of 0.1 earlier, and a wall with two slits."""
    shape, wavenumber = (160, 240), 0.6
    packet = hill(shape, (80, 50), 14) * np.exp(1j * wavenumber * np.arange(shape[1]))
    wall = np.zeros(shape, np.float32)
    wall[:, 100:104] = 2
    wall[64:72, 100:104] = wall[88:96, 100:104] = 0
    earlier = packet * np.exp(0.1j * (1 - np.cos(wavenumber)))
    return packet.astype(np.complex64), earlier.astype(np.complex64), wall


def basin():
    """Return a wave's height and the depth of a basin with a shoal, in metres."""
    shape = (160, 200)
    return 0.3 * hill(shape, (80, 40), 8), 20 - 17 * hill(shape, (90, 120), 20)


def glass():
    """Return the permittivity of a disc of glass in air, and a pulse of light of 320 steps."""
    row, column = np.ogrid[:160, :240]
    disc = (row - 80) ** 2 + (column - 110) ** 2 < 44**2
    time = np.arange(320) - 60.0
    return np.where(disc, 2.25, 1.0).astype(np.float32), np.exp(-((time / 16) ** 2)) * np.sin(0.3 * time)


def charges():
    """Return a positive and two negative charges on 129 x 129 vertices."""
    shape = (129, 129)
    return 900 * hill(shape, (48, 44), 3) - 500 * (hill(shape, (90, 64), 3) + hill(shape, (56, 92), 3))


def ground():
    """Return the speed of sound in two layers, a sponge at the edges, and Ricker's wavelet for 700 steps."""
    row, column = np.ogrid[:160, :200]
    speed = np.where(row < 90 + column / 8, 0.6, 1.0)
    edge = np.minimum(np.minimum(row, 159 - row), np.minimum(column, 199 - column))
    beyond = np.clip(16 - edge, 0, 16)
    time = (0.09 * (np.arange(700) - 40)) ** 2
    sponge = np.exp(-((0.015 * beyond) ** 2))
    return speed.astype(np.float32), sponge.astype(np.float32), (1 - 2 * time) * np.exp(-time)


def streams():
    """Return positions and velocities of two streams of electrons on a ring of 128 cells, the first wave of
    which grows fastest, and the ions' charge."""
    cells, number = 128, 20_000
    x = (np.arange(number) + 0.5) * cells / number
    v = np.where(np.arange(number) % 2, 1, -1) * np.sqrt(3 / 8) * cells / (2 * np.pi)
    return (x + 0.05 * np.sin(2 * np.pi * x / cells)) % cells, v, np.ones(cells)


def disc():
    """Return positions, velocities and masses of bodies in a disc that turns, too slowly to stay as it is."""
    random, number = np.random.default_rng(5), 500
    radius, angle = np.sqrt(random.random(number)), random.uniform(0, 2 * np.pi, number)
    outward = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    around = outward[:, ::-1] * [-1, 1]
    return radius[:, None] * outward, 0.5 * radius[:, None] * around, np.full(number, 1 / number)


def vortices():
    """Return the vorticity of waves of random phases with wave numbers of about 6, of mean square 1."""
    cells = 128
    kx, ky = np.fft.rfftfreq(cells, 1 / cells), np.fft.fftfreq(cells, 1 / cells)[:, None]
    phases = np.exp(2j * np.pi * np.random.default_rng(5).random((cells, cells // 2 + 1)))
    field = np.fft.irfft2(phases * np.exp(-((np.hypot(kx, ky) - 6) ** 2) / 8), (cells, cells))
    return field / field.std()


def trap():
    """Return a harmonic trap of frequency 1 in a square of side 20, and its ground state, displaced by 4."""
    line = (np.arange(160) - 80) / 8
    x, y = line, line[:, None]
    return np.exp(-((x - 4) ** 2 + y**2) / 2) / np.sqrt(np.pi) + 0j, (x**2 + y**2) / 2


def stream():
    """Return velocities on the faces of a channel of height 1 with a square in it, and where fluid is.

    Their profile is a parabola with a largest velocity of 1. A small disturbance moves the fluid across.
    """
    rows, columns, side = 64, 256, 8
    fluid = np.ones((rows + 2, columns + 2))
    fluid[[0, -1]], fluid[:, 0] = 0, 0
    fluid[29 : 29 + side, 49 : 49 + side] = 0
    y = (np.arange(rows + 2) - 0.5) / rows
    u = (4 * y * (1 - y))[:, None] * fluid[:, 1:] * fluid[:, :-1]
    u[1:-1, 0] = 4 * y[1:-1] * (1 - y[1:-1])
    v = 0.1 * hill((rows + 1, columns + 2), (32, 64), 4) * fluid[1:] * fluid[:-1]
    return u, v, np.zeros_like(fluid), fluid


def coals():
    """Return a ring of warm spots in a cold plate."""
    angles = 2 * np.pi * np.arange(9) / 9
    return sum(hill((128, 160), (64 + 40 * np.sin(a), 80 + 40 * np.cos(a)), 4) for a in angles)


def arrays():
    """Return every array by name."""
    height, depth = basin()
    populations, body = flow()
    packet, earlier, wall = waves()
    permittivity, pulse = glass()
    speed, sponge, ricker = ground()
    streams_x, streams_v, ions = streams()
    bodies_x, bodies_v, masses = disc()
    displaced, harmonic = trap()
    stream_u, stream_v, rest, fluid = stream()
    dam = np.ones((128, 192))
    dam[:64, :72] = 4
    return {
        "plate": np.zeros((128, 128), np.float32),
        "square": square(),
        "soup": soup(),
        "populations": populations,
        "body": body,
        "packet": packet,
        "earlier": earlier,
        "wall": wall,
        "height": height,
        "still": np.zeros_like(height),
        "depth": depth,
        "clock": np.zeros(()),
        "field": np.zeros_like(permittivity),
        "magnetic_x": np.zeros_like(permittivity[1:]),
        "magnetic_y": np.zeros_like(permittivity[:, 1:]),
        "glass": permittivity,
        "pulse": pulse,
        "cavity_u": np.zeros((66, 65)),
        "cavity_v": np.zeros((65, 66)),
        "cavity_p": np.zeros((66, 66)),
        "potential": np.zeros((129, 129)),
        "charges": charges(),
        "silence": np.zeros_like(speed),
        "speed": speed,
        "sponge": sponge,
        "ricker": ricker,
        "streams_x": streams_x,
        "streams_v": streams_v,
        "ions": ions,
        "bodies_x": bodies_x,
        "bodies_v": bodies_v,
        "masses": masses,
        "vortices": vortices(),
        "displaced": displaced,
        "trap": harmonic,
        "stream_u": stream_u,
        "stream_v": stream_v,
        "rest": rest,
        "fluid": fluid,
        "coals": coals(),
        "dam": dam,
        "calm": np.zeros_like(dam),
    }


def main():
    """Write every array to a file of its name."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "inputs")
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays().items():
        np.save(folder / f"{name}.npy", array)


if __name__ == "__main__":
    main()
