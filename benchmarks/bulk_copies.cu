// Copy rows of bytes, also to another GPU's memory, by the bulk copies of Hopper's memory accelerator (TMA).
//
// Limited by the link. One thread of each block has STAGES chunks of CHUNK bytes on their way: from the
// source to shared memory, which an mbarrier counts, and from there to the target, in groups that end in
// order. A few blocks keep as many bytes in flight as a link needs, and leave the other processors to the
// kernels that run at the same time.
//
// Grid: 1-D, any. Block: 32 threads. Dynamic shared memory: STAGES * CHUNK bytes. sm_90 or later.

constexpr int AHEAD = STAGES / 2;  // chunks that are read before the one that is written

__device__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Addresses, pitches and width: multiples of 16 bytes.
extern "C" __global__ void copy_rows(
    char* target, const char* source, long long target_pitch, long long source_pitch, long long width,
    long long rows) {
    extern __shared__ __align__(128) char room[];
    __shared__ unsigned long long arrived[STAGES];
    if (threadIdx.x) return;
    const unsigned parts = (width + CHUNK - 1) / CHUNK, count = parts * rows;  // as few as 32 bits hold
    const unsigned mine = blockIdx.x < count ? (count - 1 - blockIdx.x) / gridDim.x + 1 : 0;
    const unsigned chunks = shared_address(room), marks = shared_address(arrived);

    for (int stage = 0; stage < STAGES; ++stage) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(marks + 8 * stage));
    }
    asm volatile("fence.mbarrier_init.release.cluster;");

    struct Part {
        long long row, column;
        unsigned size;
    };
    auto part = [&](unsigned number) -> Part {
        const unsigned place = blockIdx.x + number * gridDim.x, row = place / parts;
        const long long column = (place - row * parts) * static_cast<long long>(CHUNK), left = width - column;
        return {row, column, static_cast<unsigned>(left < CHUNK ? left : CHUNK)};
    };
    auto read = [&](unsigned number) {
        const Part one = part(number);
        const unsigned stage = number % STAGES, mark = marks + 8 * stage;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mark), "r"(one.size)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                chunks + stage * CHUNK),
            "l"(source + one.row * source_pitch + one.column), "r"(one.size), "r"(mark)
            : "memory");
    };

    for (unsigned number = 0; number < AHEAD && number < mine; ++number) read(number);
    for (unsigned number = 0; number < mine; ++number) {
        if (number + AHEAD < mine) {
            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGES - AHEAD - 1) : "memory");
            read(number + AHEAD);
        }
        const Part one = part(number);
        const unsigned stage = number % STAGES, turn = number / STAGES & 1;
        unsigned done = 0;
        while (!done) {
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(done)
                : "r"(marks + 8 * stage), "r"(turn)
                : "memory");
        }
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         target + one.row * target_pitch + one.column),
                     "r"(chunks + stage * CHUNK), "r"(one.size)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    __threadfence_system();
}
