"""The options of a run: what they are called, which values they take, and where they apply.

It knows no job, no device and no ranks. Others read `step_options` and `stream_options`.
"""
