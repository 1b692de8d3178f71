"""Transforms for which every rank needs something of every other: Fourier transforms and transposes.

Arrays are split over the ranks along one axis (slabs) or two (pencils). `plan` decides, without arrays, along
which, and when the split changes; it does so for any number of ranks. Others use `fourier.fft`, `ifft`,
`rfft` and `irfft`, `transpose.transpose`, and the jobs in `fft_job` and `transpose_job`.

axes            numbers of axes on the command line
plan            how an array is split at each stage of a transform, by number of ranks and shape
fourier         Fourier transforms of blocks, with NumPy's conventions
forecast        their time and memory, for `meshrun plan`
fft_job         the job fft, from a file to a file
projections     its check: sums over the whole output against sums over the input, without any FFT of arrays
transpose       permutes the axes of blocks
direct          transposes by stores into other GPUs' memory, and how that is opened
fourier_plan    Fourier transforms of many arrays of one shape
direct_fourier  those whose finished parts are copied into other GPUs' memory
transpose_job   the job transpose, from a file to a file, in passes if the array does not fit memory
"""
