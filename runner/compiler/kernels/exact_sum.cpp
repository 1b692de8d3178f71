// The exact sum of an array's cells on a CPU, in the digits of exact.cuh, which comes before with operations.cuh.
//
// Parts of a row are added in LANES numbers at a time, which vectorises: floats as doubles, if their exponents are
// so near that no sum of a part is rounded; else, and doubles, with what each addition loses. Cells for which that
// is rounded too go to the digits one by one.
using namespace numpy;

constexpr int PART = 256;
template <typename T> constexpr int LANES = sizeof(T) == 4 ? 32 : 16;  // the fastest
constexpr int NEAR = 53 - 24 - 8;  // binary places between the exponents of a part's floats, at most

// What is added so far, exactly.
struct Running {
    double high = 0, low = 0;
    uint64* words;

    void flush() {
        add_double(words, high);
        add_double(words, low);
        high = low = 0;
    }
    void add(double value) {
        const double a = high, b = low;
        if (add_two(high, low, value)) return;
        add_double(words, a);
        add_double(words, b);
        high = value;
        low = 0;
    }
};

static bool add_near(const float* cells, Running& sum) {
    constexpr int LANES = ::LANES<float>;
    uint32 top[LANES] = {}, least[LANES];
    double lanes[LANES] = {};
    for (int j = 0; j < LANES; ++j) least[j] = ~0u;
    for (int i = 0; i < PART; i += LANES)
        for (int j = 0; j < LANES; ++j) {
            const uint32 size = bits<uint32>(cells[i + j]) & 0x7fffffffu;
            top[j] = size > top[j] ? size : top[j];
            least[j] = size - 1 < least[j] ? size - 1 : least[j];  // a zero is none
            lanes[j] += cells[i + j];
        }
    uint32 most = 0, fewest = ~0u;
    for (int j = 0; j < LANES; ++j) {
        most = top[j] > most ? top[j] : most;
        fewest = least[j] < fewest ? least[j] : fewest;
    }
    if (most == 0) return true;
    if (most >= 0x7f800000u || int(most >> 23) - int((fewest + 1) >> 23) > NEAR) return false;
    for (int apart = LANES / 2; apart > 0; apart /= 2)
        for (int j = 0; j < apart; ++j) lanes[j] += lanes[j + apart];
    sum.add(lanes[0]);
    return true;
}
static bool add_near(const double*, Running&) { return false; }

template <typename T> static bool add_lanes(const T* cells, Running& sum) {
    constexpr int LANES = ::LANES<T>;
    double high[LANES] = {}, low[LANES] = {};
    int64 rounded[LANES] = {};
    for (int i = 0; i < PART; i += LANES)
        for (int j = 0; j < LANES; ++j) {
            const double other = cells[i + j], total = high[j] + other, part = total - high[j];
            const double lost = (high[j] - (total - part)) + (other - part), rest = low[j] + lost;
            rounded[j] |= -int64((rest - low[j] != lost) | (rest - lost != low[j]));
            high[j] = total;
            low[j] = rest;
        }
    int64 any = 0;
    for (int j = 0; j < LANES; ++j) any |= rounded[j];
    if (any) return false;
    for (int j = 0; j < LANES; ++j) {
        sum.add(high[j]);
        sum.add(low[j]);
    }
    return true;
}

// Add the PART cells of a part.
template <typename T> static void add_part(const T* cells, Running& sum) {
    if (add_near(cells, sum) || add_lanes(cells, sum)) return;
    for (int i = 0; i < PART; ++i) add_double(sum.words, cells[i]);
}

// The sum of a kernel's cells, of which the kernel writes up to ROW at a time to `room()`.
constexpr int64 ROW = 4096;
template <typename T> struct Summed {
    Running sum;
    int64 count = 0, since = 0;
    alignas(64) T cells[ROW + PART];

    explicit Summed(char* words) { sum.words = (uint64*)words; }
    char* room() { return (char*)(cells + count); }
    void written(int64 n) {
        count += n;
        int64 at = 0;
        for (; at + PART <= count; at += PART) add_part(cells + at, sum);
        count -= at;
        std::memmove(cells, cells + at, count * sizeof(T));
        since += n;
        if (since >= int64(1) << 30) carry();
    }
    void finish() {
        for (int64 i = 0; i < count; ++i) sum.add(cells[i]);
        sum.flush();
        carry();
    }
    // Carry, so that words have room for what follows.
    void carry() {
        for (int i = 0; i < DIGITS - 1; ++i) {
            const int64 carried = int64(sum.words[i]) >> 32;
            sum.words[i] &= 0xffffffffu;
            sum.words[i + 1] += uint64(carried);
        }
        since = 0;
    }
};

// Add planes x rows x columns cells. pitches: in elements, of planes and rows.
template <typename T> static void add_box(const T* cells, const int64* lengths, const int64* pitches, uint64* words) {
    Running sum;
    sum.words = words;
    for (int64 plane = 0; plane < lengths[0]; ++plane)
        for (int64 row = 0; row < lengths[1]; ++row) {
            const T* const at = cells + plane * pitches[0] + row * pitches[1];
            int64 column = 0;
            for (; column + PART <= lengths[2]; column += PART) add_part(at + column, sum);
            for (; column < lengths[2]; ++column) sum.add(at[column]);
        }
    sum.flush();
}

extern "C" void add_float32(const float* cells, const int64* lengths, const int64* pitches, uint64* words) {
    add_box(cells, lengths, pitches, words);
}
extern "C" void add_float64(const double* cells, const int64* lengths, const int64* pitches, uint64* words) {
    add_box(cells, lengths, pitches, words);
}
