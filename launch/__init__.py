"""The door: the `meshrun` command, and how ranks get started on this machine.

Importing it needs neither NumPy, MPI nor CuPy, so that it answers at once; it enters `runner`
inside the commands only.
"""
