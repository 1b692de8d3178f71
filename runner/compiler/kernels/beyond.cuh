// Rows beyond the first and the last one that equal own ones, written by the threads that make those; for CUDA
// (NVRTC), and for a host.
#pragma once

constexpr int32 NOWHERE = -2147483647 - 1;

// How far from an own row copy number `copy` of it, from 1 on, lies beyond the ends, of which `low` rows before the
// first one and `high` after the last one are read; NOWHERE if there is no such copy. Odd copies lie before the first
// row, even ones after the last: one each, but for `nearest`, where the end is repeated.
template <Ends KIND> INLINE int32 copy_beyond(int32 place, int32 length, int32 low, int32 high, int copy) {
    const int number = (copy + 1) / 2;
    const bool before = copy % 2;
    if (KIND == Ends::nearest) {
        if (before) return place == 0 && number <= low ? -number : NOWHERE;
        return place == length - 1 && number <= high ? number : NOWHERE;
    }
    if (KIND == Ends::wrap) {
        if (before) return place >= length - low ? -length : NOWHERE;
        return place < high ? length : NOWHERE;
    }
    constexpr int32 SKIPPED = KIND == Ends::mirror;  // a mirror does not repeat the end
    if (before) return place >= SKIPPED && place < low + SKIPPED ? -2 * place - 1 + SKIPPED : NOWHERE;
    const int32 left = length - 1 - place;
    return left >= SKIPPED && left < high + SKIPPED ? 2 * left + 1 - SKIPPED : NOWHERE;
}

// Write a row in vectors where these begin at multiples of their size.
template <typename T, int COUNT> INLINE void store_row(T* to, const T (&value)[COUNT]) {
    if (vector_bytes(COUNT * sizeof(T)) > sizeof(T) && misaligned<COUNT * sizeof(T)>(to) == 0) store_vectors(to, value);
    else store_elements(to, value);
}
