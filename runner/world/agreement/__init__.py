"""Compare what the ranks of a user's own program have called. `operations.Operations`, which a world has,
notes the operations on distributed arrays and finds the first that differ. `waits.Waits` measures how long
this rank waits for values that the program asks for.
"""
