"""What looks at the fields between two steps: frames, checkpoints, steady flows.

An observer is given the fields after a step; it changes none.
"""
