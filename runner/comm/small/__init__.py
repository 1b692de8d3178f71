"""Collectives of a few KiB between GPUs of one host, by a kernel that stores into the other ranks' memory.

`collectives` has the calls; kernels/small.cu the kernels, and how their messages are numbered.
"""
