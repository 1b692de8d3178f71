// A chain of stages of few cells on a CPU. arrays, numbers: of all boxes, one after the other.
@functions

extern "C" void chain(const uint64* arrays, const int64* numbers, const uint64* scalars) {
@calls
}
