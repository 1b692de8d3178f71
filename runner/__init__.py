"""What every rank runs: the rooms behind `import meshrun`, from the ground up.

    errors, region, files,          errors, boxes of cells, files that appear whole,
    processes, lock                 what /proc says of processes, locks
    options                         the options of a run: names, values, where they apply
    recorder                        what each rank did last, in shared memory
    system, job, storage, report    facts of the hardware; what a job declares; array files; reports
    device, plan                    arrays and kernels on a CPU or GPU; decisions before any work
    comm                            messages between ranks
    world                           who and where the ranks are, and how they end
    compiler                        one kernel from a user's function
    arrays                          arrays that are split over the ranks
    transforms                      Fourier transforms of such arrays
    programs                        functions of whole arrays that take several stages
    maps                            one pass over arrays, in memory or in chunks
    steps                           time steps, and what is written between them
    forecast                        time and memory of a run that is planned
    run                             a job from the first check to its record

A module imports its own room and the rooms above it in this list. A room's MAY_NOT_IMPORT names what else it
may not import. tests/unit/test_architecture.py checks both. Nothing here imports `jobs` or `launch`. Programs
import `meshrun`, not this package.
"""
