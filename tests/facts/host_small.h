// The operations of comm/small/kernels/small.cu on the host. A slot's two words are stored one after the other, and
// in either order: hardware promises neither.
#pragma once

#include <unistd.h>

#include "host_flags.h"

#define __launch_bounds__(threads)

template <typename Slot> void store_slot(Slot* slot, const Slot& value) {
    auto* words = reinterpret_cast<unsigned long long*>(slot);
    const unsigned long long both[] = {value.low | (unsigned long long)value.low_flag << 32,
                                       value.high | (unsigned long long)value.high_flag << 32};
    const int first = reinterpret_cast<unsigned long long>(slot) / sizeof(Slot) % 2;
    __atomic_store_n(words + first, both[first], __ATOMIC_RELAXED);
    sched_yield();
    __atomic_store_n(words + 1 - first, both[1 - first], __ATOMIC_RELAXED);
}
template <typename Slot> Slot load_slot(const Slot* slot) {
    sched_yield();  // there may be fewer processors than threads
    auto* words = reinterpret_cast<const unsigned long long*>(slot);
    const auto low = __atomic_load_n(words, __ATOMIC_RELAXED), high = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
    return {unsigned(low), unsigned(low >> 32), unsigned(high), unsigned(high >> 32)};
}
inline void end_context() {}
