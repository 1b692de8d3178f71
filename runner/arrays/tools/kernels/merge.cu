// Two sorted runs become one (merge path: S. Odeh, O. Green, Z. Mwassi, O. Shmueli, Y. Birk, "Merge Path -
// Parallel Merging Made Simple", IPDPS Workshops 2012).
//
// Limited by memory: each key is read once and written once. A tile of the result is a block's; which keys of
// the runs it has is found before, by a thread for each tile, because the search waits for memory at each step.

typedef long long i64;

// Whether a key comes before another one that is not equal to it; NaNs come last.
template <typename Key> __device__ bool before(Key a, Key b) { return a < b || (b != b && a == a); }

// How many of the first `diagonal` keys of the result are of the first run. Of equal keys, those come first.
template <typename Key, typename Int>
__device__ Int share_of_first(const Key* first, Int firsts, const Key* second, Int seconds, Int diagonal) {
    Int low = diagonal > seconds ? diagonal - seconds : 0;
    Int high = diagonal < firsts ? diagonal : firsts;
    while (low < high) {
        const Int middle = low + (high - low) / 2;
        if (before(second[diagonal - 1 - middle], first[middle]))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// cuts: for each tile of the result, and for its end, how many keys before it are of the first run.
template <typename Key>
__global__ void find_tiles(const Key* first, i64 firsts, const Key* second, i64 seconds, i64 tile, i64* cuts) {
    const i64 number = i64(blockIdx.x) * blockDim.x + threadIdx.x, total = firsts + seconds;
    if (number > (total + tile - 1) / tile) return;
    const i64 diagonal = number * tile < total ? number * tile : total;
    cuts[number] = share_of_first(first, firsts, second, seconds, diagonal);
}

// A block of BLOCK threads writes BLOCK * ITEMS keys. ITEMS is odd, so that threads read different banks.
template <typename Key, int BLOCK, int ITEMS>
__global__ void merge_tiles(const Key* first, i64 firsts, const Key* second, i64 seconds, const i64* cuts,
                            Key* result) {
    __shared__ Key keys[BLOCK * ITEMS];
    const i64 begin = i64(blockIdx.x) * (BLOCK * ITEMS), left = firsts + seconds - begin;
    const int count = left < BLOCK * ITEMS ? int(left) : BLOCK * ITEMS;
    const i64 first_begin = cuts[blockIdx.x], second_begin = begin - first_begin;
    const int of_first = int(cuts[blockIdx.x + 1] - first_begin), of_second = count - of_first;

    // The keys of both runs, one after the other.
    for (int n = threadIdx.x; n < count; n += BLOCK)
        keys[n] = n < of_first ? first[first_begin + n] : second[second_begin + n - of_first];
    __syncthreads();

    // Each thread merges its part of the tile.
    const int own = int(threadIdx.x) * ITEMS < count ? int(threadIdx.x) * ITEMS : count;
    const Key* others = keys + of_first;
    int i = share_of_first<Key, int>(keys, of_first, others, of_second, own), j = own - i;
    Key merged[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
        if (own + k < count) {
            const bool take_first = j >= of_second || (i < of_first && !before(others[j], keys[i]));
            merged[k] = take_first ? keys[i++] : others[j++];
        }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
        if (own + k < count) keys[own + k] = merged[k];
    __syncthreads();
    for (int n = threadIdx.x; n < count; n += BLOCK) result[begin + n] = keys[n];
}
