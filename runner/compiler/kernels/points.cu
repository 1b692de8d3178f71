// The cells near points of a step, and the rows of its series: sets of cells, a thread for each cell.
//
// Each set has a table with a column for each cell (compiler/whole/point_code.py). in, out, to: addresses of
// arrays, and of the rows of each set. rows: how many rows each block of threads has written; null if none.
// operations.cuh comes before.
@cells

extern "C" __global__ void __launch_bounds__(@threads) points(
    const uint64* in, const uint64* out, const uint64* to, const uint64* scalars, const int64* table,
    int64* rows@counts) {
    const int64 row = rows ? rows[blockIdx.x] : 0;
    int64 i = int64(blockIdx.x) * @threads + threadIdx.x;
@sets
    if (!rows) return;
    __syncthreads();  // all have read it
    if (threadIdx.x == @threads - 1) rows[blockIdx.x] = row + 1;
}
