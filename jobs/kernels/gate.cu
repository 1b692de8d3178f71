// Holds a stream back until the host opens the gate, so that what is queued behind it begins at once and the
// time to queue it is not measured. One thread spins on a word of pinned host memory; nothing limits it but
// that word's way over the link, a microsecond or two.

// latch: two words in host memory. The first is 0 while the gate is closed. After so many clock cycles the gate
// opens by itself, so that a host that died does not leave the GPU spinning, and sets the second word: what
// came after was not held back as long as it should have been.
__global__ void gate(volatile unsigned* latch, unsigned long long cycles) {
    const unsigned long long begin = clock64();
    while (latch[0] == 0) {
        if (clock64() - begin > cycles) {
            latch[1] = 1;
            return;
        }
    }
}
