r"""Bodies that attract each other, all pairs: blocks of bodies travel around a ring of the ranks (L. Nyland,
M. Harris, J. Prins, "Fast N-Body Simulation with CUDA", GPU Gems 3, 2007, has the sums of one block).

    python3 examples/solvers/inputs.py
    meshrun -n 2 run examples/solvers/nbody.py \
        inputs/bodies_x.npy inputs/bodies_v.npy inputs/masses.npy later_x.npy later_v.npy --steps 100
"""

import meshrun


@meshrun.job(inputs=("x", "v", "mass"), outputs=("x", "v"))
def nbody(world, inputs, create, *, steps: int = 100, dt: float = 0.02, softening: float = 0.05):
    """Move bodies by their gravity, with the constant 1, by the leapfrog scheme.

    x, v: position and velocity of each body, of shape (n, 2) or (n, 3). mass: of each. steps: to take.
    dt: time step. softening: distance below which the force stays finite.
    """
    x, v, mass = (meshrun.load(world, source) for source in inputs)
    pull = acceleration(world, x, mass, softening)
    for _ in range(steps):
        v.interior[...] += dt / 2 * pull
        x.interior[...] += dt * v.interior
        pull = acceleration(world, x, mass, softening)
        v.interior[...] += dt / 2 * pull
    meshrun.save(world, create(x.shape, x.dtype), x)
    meshrun.save(world, create(v.shape, v.dtype), v)


def acceleration(world, x, mass, softening):
    """Return how all bodies accelerate those of this rank. Collective."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    own = x.interior
    total = world.xp.zeros_like(own)
    others, masses = own.copy(), mass.interior.copy()
    for turn in range(world.size):
        away = others[None] - own[:, None]
        distance = (away**2).sum(axis=2) + softening**2
        total += ((masses * distance**-1.5)[..., None] * away).sum(axis=1)
        # The block of the rank before, which has come around so far.
        owner = (world.rank - turn - 1) % world.size
        arriving = [world.backend.empty(part.partition[owner].shape, part.dtype) for part in (x, mass)]
        world.exchange([(after, others), (after, masses)], [(before, arriving[0]), (before, arriving[1])])
        others, masses = arriving
    return total
