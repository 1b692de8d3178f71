"""NumPy's functions on traced arrays of both kinds. `basic` has those that need views and reductions of few
elements, `composites` those that other operations make up, `whole_axes` names those that need all cells along
an axis.
"""
