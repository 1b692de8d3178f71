// Keep the 8-byte words of a row, then change some of it: one block.
//
// host, kept: where the row is kept, in memory of the host and of the device; host: or null. moves: from which
// words of the row, then to which.

extern "C++" __global__ void keep_row(unsigned long long* row, int words, unsigned long long* host,
                                      unsigned long long* kept, const long long* moves, int pairs) {
    for (int n = threadIdx.x; n < words; n += blockDim.x) {
        kept[n] = row[n];
        if (host != nullptr) host[n] = row[n];
    }
    __syncthreads();
    for (int n = threadIdx.x; n < pairs; n += blockDim.x) row[moves[pairs + n]] = kept[moves[n]];
}
