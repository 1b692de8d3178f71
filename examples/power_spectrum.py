"""The power spectrum of an array of two axes, which is split over all ranks: along
its rows first, then along its columns.

    meshrun -n 2 run examples/power_spectrum.py inputs/heat.npy power.npy
"""

import meshrun


@meshrun.job
def power_spectrum(world, input, create):
    """Square of the magnitude of the two-dimensional Fourier transform."""
    rows = meshrun.read_block(world, input, split=0)
    half = world.xp.fft.fft(rows, axis=1)  # rows are whole
    columns = world.redistribute(half, 0, 1)  # now columns are
    power = abs(world.xp.fft.fft(columns, axis=0)) ** 2
    meshrun.write_block(world, power, create(input.shape, power.dtype), split=1)
    return {"total": float(world.all_reduce(power.sum().reshape(1))[0])}
