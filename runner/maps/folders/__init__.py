"""Folders of images: each image is a whole array, given to the next rank that is free.

`images` is the run; `engine` reads, computes and writes one image.
"""
