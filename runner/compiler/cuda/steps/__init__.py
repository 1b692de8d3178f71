"""CUDA kernels that take several time steps of a program, with the state between two steps on chip.

kernel          the kernel's text and launch; over one and two axes, with what all have in common
kernel_3d       what is different over three axes
layout          which planes a program steps, what it reads, and the choices of a kernel
text            the kernel's text around the generated statements
tuning          the fastest number of steps of a kernel and its choices: predicted, or measured

How many of them a run takes in one kernel is decided in runner/steps/steps_per_kernel.py.
"""
