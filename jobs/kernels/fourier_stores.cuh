// Store results of Fourier transforms straight into the memory of the ranks that continue with them.
//
// Not kernels: cuFFT links one of these functions into its own last kernel (cufftXtSetJITCallback), which calls
// it for each element instead of storing it. Therefore constants are macros: divisions by numbers that are read
// would take longer than the transform. Limited by the links, for what other ranks get, while the kernel runs.
//
// An array of (LENGTH, SPLIT, INNER) elements is split over RANKS ranks, as every axis is: of n cells, the first
// n % RANKS ranks have one more. STORE_PLANES follows the transform of planes (SPLIT x INNER), of which this rank
// has those of its part of LENGTH; STORE_LINES follows the transform along LENGTH, of which this rank has the
// lines of its part of SPLIT.

// One device's view: where each rank continues.
struct Places {
    TYPE* target[RANKS];
};

__device__ inline unsigned start_of(unsigned rank, unsigned cells) {
    const unsigned more = cells % RANKS;
    return rank * (cells / RANKS) + (rank < more ? rank : more);
}

__device__ inline unsigned owner_of(unsigned cell, unsigned cells) {
    const unsigned few = cells / RANKS, more = cells % RANKS, first = more * (few + 1);
    return cell < first ? cell / (few + 1) : more + (cell - first) / (few > 0 ? few : 1);
}

#if defined(STORE_PLANES)
// offset: in (this rank's part of LENGTH, SPLIT, INNER). The target is (LENGTH, its part of SPLIT, INNER).
__device__ void STORE_PLANES(void* out, unsigned long long offset, TYPE element, void* info, void* shared) {
    const INDEX plane = (INDEX)offset / (SPLIT * INNER);
    const unsigned rest = (INDEX)offset - plane * (SPLIT * INNER);
    const unsigned owner = owner_of(rest / INNER, SPLIT), first = start_of(owner, SPLIT);
    const unsigned long long row = start_of(RANK, LENGTH) + plane;
    const unsigned wide = (start_of(owner + 1, SPLIT) - first) * INNER;
    TYPE* target = ((const Places*)info)->target[owner];
    target[row * wide + (rest - first * INNER)] = {element.x * (SCALE), element.y * (SCALE)};
}
#endif

#if defined(STORE_LINES)
// offset: in (LENGTH, this rank's part of SPLIT, INNER). The target is (its part of LENGTH, SPLIT, INNER).
__device__ void STORE_LINES(void* out, unsigned long long offset, TYPE element, void* info, void* shared) {
    const unsigned first = start_of(RANK, SPLIT) * INNER;
    const unsigned wide = start_of(RANK + 1, SPLIT) * INNER - first;
    const unsigned row = (INDEX)offset / wide, line = (INDEX)offset - (INDEX)row * wide;
    const unsigned owner = owner_of(row, LENGTH);
    const unsigned long long plane = row - start_of(owner, LENGTH);
    TYPE* target = ((const Places*)info)->target[owner];
    target[plane * (SPLIT * INNER) + (first + line)] = {element.x * (SCALE), element.y * (SCALE)};
}
#endif
