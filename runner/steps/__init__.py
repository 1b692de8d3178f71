"""Time steps: on blocks that stay in memory (`stepper`) or on chunks that pass through (`streamed_steps`).

`steps_per_kernel` decides how many steps one kernel takes and how many lie between two exchanges; `loop`
takes the steps and lets `observers/` look at the fields between them. It knows no records. Others use
`stepper.Stepper` and `loop.take_steps`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.run",)
