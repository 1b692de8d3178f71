// A traced function on a CPU. The last axis is the inner loop, which vectorises; its body is generated.
//
// Arrays are given by the address of their own cell 0 and by strides in bytes; the last axis is contiguous.
// A library may hold several functions: @number tells them apart. operations.cuh comes before.
namespace program@number {

// Cells of a row that are computed together: a vector of the smallest elements.
#ifdef __AVX512BW__
constexpr int64 SEGMENT = 64;
#else
constexpr int64 SEGMENT = 32;
#endif

// A value that a row of cells reads at these offsets, along the axis before the last one and along the last one.
struct KeptValue {
    int64 low_row, high_row, low_column, high_column, bytes;

    constexpr int64 rows() const { return high_row - low_row + 1; }
};

// Values that neighbours have in common: of each, the rows that the next rows of cells read too.
template <int AXES, int INPUTS, int VALUES> struct Kept {
    const char* last[INPUTS];          // addresses of the last row's cell 0
    int64 first = 0, cells = -1;       // of the last row: where its cells begin, and how many they are
    int64 turn = 0;                    // rows until now
    int64 room = 0;                    // bytes of memory
    int64 begin[VALUES], row[VALUES];  // of each value: where it begins in memory, and bytes of a row
    char* memory = nullptr;

    ~Kept() { delete[] memory; }

    // Go to a row of n cells, the first one `begins` cells after the row's cell 0. Return whether it lies one row
    // behind the last one in all inputs: then the values of all its rows but the last one are known.
    bool follows(const KeptValue* values, const char* const* in, const int64 (*strides)[AXES], int64 begins, int64 n) {
        bool known = AXES > 1 && n == cells && begins == first;
        for (int k = 0; k < INPUTS; ++k) {
            known = known && in[k] == last[k] + strides[k][AXES > 1 ? AXES - 2 : 0];
            last[k] = in[k];
        }
        if (n != cells) {
            int64 end = 0;
            for (int k = 0; k < VALUES; ++k) {
                const KeptValue& value = values[k];
                row[k] = ((n + value.high_column - value.low_column) * value.bytes + 63) / 64 * 64;
                begin[k] = end;
                end += value.rows() * row[k];
            }
            if (end > room) {
                delete[] memory;
                memory = new char[room = end];
            }
        }
        first = begins;
        cells = n;
        ++turn;
        return known;
    }

    // Return where a value of the row's first cell is stored. offset: of the row.
    template <class T> T* at(const KeptValue* values, int k, int64 offset) {
        const KeptValue& value = values[k];
        const int64 place = (turn + offset - value.low_row) % value.rows();
        return (T*)(memory + begin[k] + place * row[k]) - value.low_column;
    }
};

struct Sums;
struct Held;

// Where a row lies in the whole array. first: position of cell 0; at: of the row's first cell, along the axes
// that have LENGTHS. scalars: the slots of the step. sums: of the results that are added up.
// held: values that are kept from row to row.
template <int AXES> struct Where {
    const int64* first;
    const uint64* scalars;
    Sums& sums;
    Held& held;
    int64 at[AXES];

    // Go to a cell along an axis of `length` cells. Beyond its ends it wraps around.
    void go(int axis, int64 cell, int64 length) {
        const int64 place = first[axis] + cell;
        at[axis] = uint64(place) < uint64(length) ? place : (place % length + length) % length;
    }
};

@cells

typedef int64 Index[AXES];

// Compute the cells lo .. hi - 1.
template <int AXIS> static void compute(const char* const* in, const Index* in_strides, char* const* out,
                                        const Index* out_strides, const int64* lo, const int64* hi,
                                        Where<AXES>& where) {
    const char* from[INPUTS];
    char* to[OUTPUTS];
    if constexpr (AXIS == AXES - 1) {
        for (int64 at = lo[AXIS], end; at < hi[AXIS]; at = end) {
            end = hi[AXIS];
            if constexpr (LENGTHS[AXIS] > 0) {  // up to the array's end, where positions begin again
                where.go(AXIS, at, LENGTHS[AXIS]);
                if (end - at > LENGTHS[AXIS] - where.at[AXIS]) end = at + LENGTHS[AXIS] - where.at[AXIS];
            }
            if (MOST_CELLS > 0 && end - at > MOST_CELLS) end = at + MOST_CELLS;
            for (int k = 0; k < INPUTS; ++k) from[k] = in[k] + at * in_strides[k][AXIS];
            for (int k = 0; k < OUTPUTS; ++k) to[k] = out[k] + at * out_strides[k][AXIS];
            where.sums.lead(to);
            row(from, in_strides, to, end - at, where);
            where.sums.written(end - at);
        }
    } else {
        for (int64 at = lo[AXIS]; at < hi[AXIS]; ++at) {
            if constexpr (LENGTHS[AXIS] > 0) where.go(AXIS, at, LENGTHS[AXIS]);
            for (int k = 0; k < INPUTS; ++k) from[k] = in[k] + at * in_strides[k][AXIS];
            for (int k = 0; k < OUTPUTS; ++k) to[k] = out[k] + at * out_strides[k][AXIS];
            compute<AXIS + 1>(from, in_strides, to, out_strides, lo, hi, where);
        }
    }
}

// Copy the cells lo .. hi - 1 of a block to those `distance` bytes away.
template <int AXIS> static void copy(char* block, const int64* strides, const int64* lo, const int64* hi, int64 distance) {
    if constexpr (AXIS == AXES - 1) {
        char* const from = block + lo[AXIS] * strides[AXIS];
        std::memcpy(from + distance, from, (hi[AXIS] - lo[AXIS]) * strides[AXIS]);
    } else {
        for (int64 at = lo[AXIS]; at < hi[AXIS]; ++at) copy<AXIS + 1>(block + at * strides[AXIS], strides, lo, hi, distance);
    }
}

extern "C" void run@number(const char* const* in, const Index* in_strides, char* const* out, const Index* out_strides,
                    const int64* shape, const int64* first, const uint64* scalars) {
    const Index lo = {};
    Sums sums(out);
    Held held;
    Where<AXES> where = {first, scalars, sums, held, {}};
    compute<0>(in, in_strides, out, out_strides, lo, shape, where);
    sums.finish();
}

// Copy a box between arrays of different strides.
template <int AXIS> static void put(const char* from, const int64* from_strides, char* to, const int64* to_strides,
                                    const int64* shape) {
    if constexpr (AXIS == AXES - 1) {
        std::memcpy(to, from, shape[AXIS] * to_strides[AXIS]);
    } else {
        for (int64 at = 0; at < shape[AXIS]; ++at)
            put<AXIS + 1>(from + at * from_strides[AXIS], from_strides, to + at * to_strides[AXIS], to_strides, shape);
    }
}

// Compute `count` boxes, each `step` cells along an axis from the one before, and write each over cells that the
// next one may read. in, first: of the first box. out: memory of one box. to: cell 0 of the first box, where it is
// written. scalars: `slots` for each box.
extern "C" void march@number(int64 count, int64 axis, int64 step, int64 slots, const char* const* in,
                      const Index* in_strides, char* const* out, const Index* out_strides, char* const* to,
                      const Index* to_strides, const int64* shape, const int64* first, const uint64* scalars) {
    const char* from[INPUTS];
    int64 place[AXES];
    std::memcpy(place, first, sizeof(place));
    for (int64 k = 0; k < count; ++k, place[axis] += step) {
        for (int i = 0; i < INPUTS; ++i) from[i] = in[i] + k * step * in_strides[i][axis];
        run@number(from, in_strides, out, out_strides, shape, place, scalars + k * slots);
        for (int o = 0; o < OUTPUTS; ++o)
            put<0>(out[o], out_strides[o], to[o] + k * step * to_strides[o][axis], to_strides[o], shape);
    }
}

struct Box { Index lo, hi; };
struct Copy { int64 axis, target, source; };

// Cells that are computed after the rows that they are in: those near points, and those of series. rows: of
// each cell along axis 0, in order. compute: the cells begin .. end - 1 of a table. to: the first step's row of
// a series, of row_bytes.
struct Points {
    void (*compute)(const uint64* in, const uint64* out, const uint64* scalars, const int64* table, int64 count,
                    int64 begin, int64 end, uint64 to);
    const int64* rows;
    const int64* table;
    int64 count;
    char* to;
    int64 row_bytes;

    // How many cells are in rows before one.
    int64 before(int64 row) const {
        int64 low = 0, high = count;
        while (low < high) {
            const int64 middle = (low + high) / 2;
            (rows[middle] < row ? low : high) = rows[middle] < row ? middle + 1 : middle;
        }
        return low;
    }
};

// Take `count` steps, which read and write blocks[0] and blocks[1] of each input in turn. Step k computes
// boxes[k], `strip` rows of axis 0 at a time, `skew` rows behind step k - 1, so that what one step has written
// is in the cache when the next one reads it. A row that is overwritten has been read: skew is at least the
// halo. feeds: of each output, the input it feeds, or -1: then it is written to unfed[0], in the last step to
// unfed[1]. copies: cells beyond the array, filled as soon as their sources are computed. position: of
// cell 0 in the whole array. scalars: SCALARS slots for each step. points: sets of cells, computed in order.
//
// ring: axis 0 wraps around, so that the first rows need the last ones of the step before. Step k then leaves
// out k * skew rows on both sides of where the axis closes, which need the copies; they follow step after
// step, when all others are done. What they read is still there: beside them, no step after k + 1 was taken.
extern "C" void steps@number(int64 count, int64 strip, int64 skew, int64 ring, char* const (*blocks)[INPUTS],
                      const Index* strides, const int64* feeds, char* const (*unfed)[OUTPUTS],
                      const Index (*unfed_strides)[OUTPUTS], const Box* boxes, const Box* padded,
                      const int64* copy_counts, const Copy* copies, const int64* position,
                      const uint64* scalars, int64 point_sets, const Points* points) {
    // Compute the rows first .. last - 1 of step k, and the cells beyond the array that equal theirs.
    const auto take = [&](int64 k, int64 first, int64 last) {
        const char* in[INPUTS];
        char* out[OUTPUTS];
        Index out_strides[OUTPUTS];
        for (int i = 0; i < INPUTS; ++i) in[i] = blocks[k % 2][i];
        for (int o = 0; o < OUTPUTS; ++o) {
            const int final = k == count - 1;
            out[o] = feeds[o] < 0 ? unfed[final][o] : blocks[(k + 1) % 2][feeds[o]];
            std::memcpy(out_strides[o], feeds[o] < 0 ? unfed_strides[final][o] : strides[feeds[o]], sizeof(Index));
        }
        Box part = boxes[k];
        part.lo[0] = first;
        part.hi[0] = last;
        Sums sums(out);  // none: a program that adds takes one step in a call
        Held held;
        Where<AXES> where = {position, scalars + k * SCALARS, sums, held, {}};
        compute<0>(in, strides, out, out_strides, part.lo, part.hi, where);
        for (const Points* set = points; set < points + point_sets; ++set) {
            const int64 begin = set->before(first), end = set->before(last);
            if (begin < end)
                set->compute((const uint64*)in, (const uint64*)out, where.scalars, set->table, set->count, begin,
                             end, uint64(set->to + k * set->row_bytes));
        }
        const Copy* next = copies;
        for (int i = 0; i < INPUTS; ++i)
            for (int64 c = 0; c < copy_counts[i]; ++c, ++next) {
                const int axis = int(next->axis);
                if (axis == 0 && (next->source < first || next->source >= last)) continue;
                Box from = padded[i];
                from.lo[0] = first;
                from.hi[0] = last;
                from.lo[axis] = next->source;
                from.hi[axis] = next->source + 1;
                copy<0>(blocks[(k + 1) % 2][i], strides[i], from.lo, from.hi,
                        (next->target - next->source) * strides[i][axis]);
            }
    };
    const int64 open = ring ? skew : 0;
    int64 done[MOST_STEPS], front = boxes[0].lo[0];
    for (int64 k = 0; k < count; ++k) {
        done[k] = boxes[k].lo[0] + k * open;
        if (done[k] + k * skew < front) front = done[k] + k * skew;
    }
    for (bool more = true; more;) {
        more = false;
        front += strip;
        for (int64 k = 0; k < count; ++k) {
            const int64 last = boxes[k].hi[0] - k * open;
            const int64 end = front - k * skew < last ? front - k * skew : last;
            more |= end < last;
            if (end <= done[k]) continue;
            take(k, done[k], end);
            done[k] = end;
        }
    }
    for (int64 k = 1; k < count && ring; ++k) {
        take(k, boxes[k].hi[0] - k * open, boxes[k].hi[0]);
        take(k, boxes[k].lo[0], boxes[k].lo[0] + k * open);
    }
}

}  // namespace
