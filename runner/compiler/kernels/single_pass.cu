// All outputs of a program in one pass over its inputs. runner/compiler/cuda/single_pass.py writes what the
// @marks@ stand for.
//
// Limited by memory: each element is read once and written once, and the operations on it cost little
// beside that. Each thread makes the cells of a small tile: several rows of a few cells. All loads of a
// thread are under way at once, which hides their latency; what several cells of the tile use is loaded
// and computed once; and up to 16 bytes are stored at a time. Neighbours of other tiles come out of the
// caches. Rows of a block begin at any multiple of the itemsize: elements of 4 bytes and more are loaded
// one by one, which a warp coalesces; smaller ones in aligned words, shifted by the row's alignment, and
// computed four or two in a word where that gives the same bits (packed.cuh): as single elements they would
// take more instructions than memory leaves time for.
//
// A thread may march along the first axis: a loop makes the rows of the tile one after the other. It keeps what
// the next turn reads too, and loads the rest a turn ahead.
//
// The threads of a block may march together, through planes in shared memory (shared_planes.cuh): of a large volume
// whose cells read many neighbours in their plane. Each element then comes through the first cache once.
//
// If small elements are computed in branches, a thread makes the cells of its row in a loop: each turn moves the
// words of all rows by an element, and results come in at their ends. Unrolled, the cells of a thread would need
// more registers, and it would load fewer bytes at once.
//
// If the last axis is whole, cells beyond its ends need not be in memory: a thread at an end reads the own
// cells that they equal, which are in its caches. To write them between the passes takes a write of a sector and
// a read of another for each row.
//
// Along the other axes, the pass of a time step may store the cells beyond the ends that equal own ones, for the next
// pass (beyond.cuh): whole rows, by the threads that made them.
//
// A function of whole arrays has other values near the array's ends. Some blocks of threads make these cells, one
// a thread, and the others those between: no thread takes a branch, or registers, for the few cells that differ,
// and none waits. The former wait for the latency of memory: they are spread among the others, which hide it.
// Lengths and pointers are then of the cells between.
//
// Pointers are those of the first own cell, pitches are elements from one row (plane, ...) to the next,
// lengths are own cells. `tiles`: blocks of threads along an axis. `shift`: the cells by which the last
// axis begins after a multiple of the tile in memory, so that all threads but those at a row's ends store
// whole vectors. Tiles at the end of an axis begin earlier: two threads make some results, with the same bits.

// @headers@

__global__ void __launch_bounds__(/* @threads@ */) single_pass(/* @parameters@ */) {
    // @body@
}
