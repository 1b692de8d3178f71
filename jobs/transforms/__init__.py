"""Transforms for which every rank needs something of every other: Fourier transforms and transposes.

Arrays are split over the ranks along one axis (slabs) or two (pencils): `runner.transforms` plans that, and
carries it out. Others use `fourier.fft`, `ifft`, `rfft` and `irfft`, `transpose.transpose`, and the jobs in
`fft_job` and `transpose_job`.

axes            numbers of axes on the command line
fourier         Fourier transforms of arrays, with NumPy's conventions
forecast        their time and memory, for `meshrun plan`
fft_job         the job fft, from a file to a file
projections     its check: sums over the whole output against sums over the input, without any FFT of arrays
transpose       permutes the axes of blocks
direct          transposes by stores into other GPUs' memory, and how that is opened
fourier_plan    Fourier transforms of many arrays of one shape
direct_fourier  those whose finished parts are copied into other GPUs' memory
transpose_job   the job transpose, from a file to a file, in passes if the array does not fit memory
"""
