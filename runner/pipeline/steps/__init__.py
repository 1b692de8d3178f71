"""Time steps: blocks that stay in memory between them (`stepper`), or pass through in chunks
(`streamed_steps`); what looks at the fields on the way (`loop`, `frames`, `checkpoints`). It knows no command
line and no record. Others use `stepper.Stepper` and `loop.take_steps`.
"""
