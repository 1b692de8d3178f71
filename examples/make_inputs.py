"""Make the start arrays of the examples in the folder `inputs`: python3 examples/make_inputs.py [FOLDER]"""

import sys
from pathlib import Path

import numpy as np


def bump(shape, centre, radius):
    """Return a smooth hill of height 1."""
    grid = np.indices(shape).T - np.array(centre)
    return np.exp(-((grid**2).sum(axis=-1)) / (2 * radius**2)).T.astype(np.float32)


def heat():
    """Return a cold plate with hot discs."""
    random = np.random.default_rng(1)
    plate, (row, column) = np.zeros((128, 128), np.float32), np.indices((128, 128))
    for y, x, radius in zip(*random.uniform(10, 118, (2, 10)), random.uniform(3, 10, 10), strict=True):
        plate[(row - y) ** 2 + (column - x) ** 2 < radius**2] = 1
    return plate


def substance():
    """Return a dish with squares of the second substance."""
    dish = np.zeros((256, 256), np.float32)
    for row, column in np.random.default_rng(5).integers(0, 244, (24, 2)):
        dish[row : row + 12, column : column + 12] = 0.25
    return dish


def board():
    """Return a board whose middle is filled at random."""
    cells = np.zeros((192, 256), np.uint8)
    cells[64:128, 80:176] = np.random.default_rng(3).random((64, 96)) < 0.35
    return cells


def cube():
    """Return temperature and conductivity: a hot rod in a tube of insulation with two openings."""
    plane, row, column = abs(np.indices((64, 64, 64)) - 31.5)
    rod = (row**2 + column**2 < 8**2) & (plane < 24)
    distance = np.maximum(row, column)
    tube = (distance > 13) & (distance < 17) & (row > 4)
    return rod.astype(np.float32), np.where(tube, 0.0002, 0.16).astype(np.float32)


def arrays():
    """Return every array by name."""
    temperature, conductivity = cube()
    drops = bump((112, 112), (40, 31), 4) + bump((112, 112), (70, 83), 4)
    return {
        "heat": heat(),
        "now": drops,
        "before": drops,
        "u": 1 - 2 * substance(),
        "v": substance(),
        "board": board(),
        "cube": temperature,
        "conductivity": conductivity,
    }


def main():
    """Write every array to a file of its name."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "inputs")
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays().items():
        np.save(folder / f"{name}.npy", array)


if __name__ == "__main__":
    main()
