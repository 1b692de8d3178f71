"""Time steps: on blocks that stay in memory (`stepper`) or on chunks that pass through (`streamed_steps`),
and observers of the fields between steps (`loop`, `frames`, `checkpoints`). It knows no records. Others use
`stepper.Stepper` and `loop.take_steps`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.run",)
