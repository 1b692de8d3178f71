"""Flow of air around bodies by the lattice-Boltzmann method: the job `airflow`.

One step is a job of kind "map", in plain array code: the runner makes one kernel of it, splits it over ranks,
exchanges halos and writes checkpoints. Only `shapes` reads files; `coefficients` and `observers` write them.
Arrays are (y, x) or (z, y, x); the flow goes along x, and y counts downwards, as the rows of a picture do.
Quantities are in lattice units: a cell, a step and the density are 1.

lattice       discrete velocities of D2Q9, D3Q19 and D3Q27, their weights, opposites and mirror images
cells         kinds of cells: fluid, walls, inlet, outflow
step          the job of one time step, for a lattice, kinds of cells, a collision and a type of storage
moments       density, momentum, speed and pressure of a stored state
units         Reynolds number, size and speed to viscosity and relaxation rates, with the limits of the method
shapes        the shape: which cells are solid, and where exactly the surface lies
links         links across a body's surface: interpolated bounce-back and the force on the body
coefficients  drag and lift over time, their files, the Strouhal number
tunnel        which kind each cell of the domain is, and the flow before the first step
observers     what looks at the flow between steps: `film`, `snapshots` and their `field_file`, `sampling` of
              the forces, and `steady`, which ends the run
airflow       the job
"""
