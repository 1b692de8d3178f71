"""Time steps: on blocks that stay in memory (`stepper`) or on chunks that pass through (`streamed_steps`),
and observers of the fields between steps (`loop`, `frames`, `checkpoints`). It may not know the command line
or the record. Others use `stepper.Stepper` and `loop.take_steps`.
"""
