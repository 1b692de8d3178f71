"""What looks at the fields between two steps: frames, checkpoints, what a solver adds.

An observer is given the fields after a step; it changes none.
"""
