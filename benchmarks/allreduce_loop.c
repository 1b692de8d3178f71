/* MPI_Allreduce in a plain loop: a sum of floats, out of place, for sizes that double.
 *
 *     mpicc -O2 allreduce_loop.c -o allreduce_loop
 *     mpiexec -n 2 ./allreduce_loop -b 1M -e 256M -n 20
 *
 * Prints "size time_us" a line: bytes, and microseconds of one call, averaged over the ranks. Each size gets
 * one untimed call, a barrier and n timed ones. The buffers are as large as the largest size and each call
 * takes the next part of them, as nccl-tests does, so that small sizes do not stay in a cache.
 */
#define _DEFAULT_SOURCE /* madvise */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t bytes(const char *text) {
  char *unit;
  size_t value = strtoull(text, &unit, 10);
  int shift = *unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0;
  if (value == 0 || unit[shift > 0] != '\0' || value > (sizeof(float) * INT_MAX) >> shift) {
    fprintf(stderr, "%s: expected a number from 1 to below 8G, with or without K, M or G\n", text);
    exit(2);
  }
  return value << shift;
}

static float *filled(size_t size) {
  size_t page = 2 << 20; /* of huge pages */
  float *buffer = aligned_alloc(page, (size + page - 1) / page * page);
  if (buffer == NULL) {
    fprintf(stderr, "no memory for %zu bytes\n", size);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  madvise(buffer, size, MADV_HUGEPAGE); /* as NumPy does for its large arrays; a hint */
  for (size_t i = 0; i < size / sizeof(float); i++) buffer[i] = 1.0f;
  return buffer;
}

/* Seconds of one call on this rank. */
static double timed(const float *send, float *recv, size_t count, size_t room, int calls) {
  size_t places = room / count;
  MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  for (int call = 0; call < calls; call++) {
    size_t at = count * (call % places);
    MPI_Allreduce(send + at, recv + at, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  return (MPI_Wtime() - begin) / calls;
}

int main(int argc, char **argv) {
  size_t least = 1 << 20, most = 256 << 20, calls = 20;
  MPI_Init(&argc, &argv);
  for (int i = 1; i < argc; i += 2) {
    size_t *option = !strcmp(argv[i], "-b")   ? &least
                     : !strcmp(argv[i], "-e") ? &most
                     : !strcmp(argv[i], "-n") ? &calls
                                              : NULL;
    if (option == NULL || i + 1 == argc) {
      fprintf(stderr, "usage: %s [-b BYTES] [-e BYTES] [-n CALLS]\n", argv[0]);
      return 2;
    }
    *option = bytes(argv[i + 1]);
  }
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  float *send = filled(most), *recv = filled(most);
  for (size_t size = least; size >= sizeof(float) && size <= most; size *= 2) /* warm-up, as nccl-tests does */
    MPI_Allreduce(send, recv, (int)(size / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (size_t size = least; size >= sizeof(float) && size <= most; size *= 2) {
    double sum, mine = timed(send, recv, size / sizeof(float), most / sizeof(float), (int)calls);
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%zu %.2f\n", size, 1e6 * sum / ranks);
    if (recv[0] != (float)ranks) MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
