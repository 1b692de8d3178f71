r"""Two streams of electrons that pass each other are unstable: a particle-in-cell code (C. K. Birdsall,
A. B. Langdon, "Plasma Physics via Computer Simulation", 1985, chapter 5).

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/particle_in_cell.py \
        inputs/streams_x.npy inputs/streams_v.npy inputs/ions.npy x.npy v.npy energy.npy --steps 125
"""

import meshrun


@meshrun.job(inputs=("x", "v", "ions"), outputs=("x", "v", "energy"))
def particle_in_cell(world, inputs, create, *, steps: int = 125, dt: float = 0.2):
    """Move electrons on a ring of cells with fixed ions, whose density is 1.

    x, v: of each electron, in cells, and in cells per time. ions: the charge in each cell. steps: to take.
    dt: time step. The unit of time is 1 / plasma frequency. The energy is that of the field, after each step.
    """
    x, v = (meshrun.load(world, source) for source in inputs[:2])
    ions = meshrun.load(world, inputs[2], halo=1, boundary="wrap")
    charge = x.empty_like()
    charge.interior[...] = -float(ions.sum()) / x.shape[0]
    x, v, charge = meshrun.send_to_owners(meshrun.owners(ions, x), x, v, charge)
    energies = []
    for _ in range(steps):
        # The field, whose derivative is the charge density; its mean is 0.
        rho = meshrun.deposit(ions, [x], charge)
        rho.interior[...] += ions.interior
        field = meshrun.cumsum(rho, axis=0)
        field.interior[...] -= rho.interior / 2
        field.interior[...] -= field.sum() / field.shape[0]
        # The electrons move, to other ranks too.
        v.interior[...] -= dt * meshrun.interpolate(field, [x]).interior
        x.interior[...] = (x.interior + dt * v.interior) % ions.shape[0]
        x, v, charge = meshrun.send_to_owners(meshrun.owners(ions, x), x, v, charge)
        energies.append(float(field.dot(field)) / 2)
    meshrun.save(world, create(x.shape, x.dtype), x)
    meshrun.save(world, create(v.shape, v.dtype), v)
    own = world.xp.asarray(energies)[world.part(steps)]
    meshrun.write_block(world, own, create((steps,), own.dtype))
    return {"energy": energies[-1]}
