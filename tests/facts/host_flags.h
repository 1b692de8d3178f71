// The operations of runner/device/kernels/flags.cuh on the host, where ranks are threads of a process.
#pragma once

#include <sched.h>

#include <ctime>

#define __device__ static inline

inline unsigned long long atomicAdd(unsigned long long* cell, unsigned long long value) {
    return __atomic_fetch_add(cell, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicCAS(unsigned long long* cell, unsigned long long old, unsigned long long value) {
    __atomic_compare_exchange_n(cell, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}
inline unsigned long long load_acquire(const unsigned long long* flag) {
    sched_yield();  // there may be fewer processors than threads
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
inline void store_release(unsigned long long* flag, unsigned long long value) {
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
inline void store_relaxed(unsigned long long* flag, unsigned long long value) {
    __atomic_store_n(flag, value, __ATOMIC_RELAXED);
}
inline void add_release(unsigned long long* count, unsigned long long value) {
    __atomic_fetch_add(count, value, __ATOMIC_RELEASE);
}
inline unsigned long long nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}
