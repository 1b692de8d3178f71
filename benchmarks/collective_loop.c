/* The timed loop of nccl-tests 2.19.6 (src/common.cu, BenchTime) for loop_in_c.py: one call that is not timed,
 * MPI_Barrier, n calls between two readings of the clock, waiting by cudaStreamQuery.
 *
 *     cc -O2 -shared -fPIC collective_loop.c -o collective_loop.so
 *
 * It needs no headers of NCCL, CUDA or MPI: Python passes the functions of the libraries that it has loaded. */
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { FLOAT = 7, SUM = 0, NOT_READY = 600, THREAD_LOCAL = 1 };
enum operation { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALLTOALL, BROADCAST, SENDRECV };

typedef struct { /* in the order of loop_in_c.py's FUNCTIONS */
  int (*all_reduce)(void *, void *, size_t, int, int, void *, void *);
  int (*all_gather)(void *, void *, size_t, int, void *, void *);
  int (*reduce_scatter)(void *, void *, size_t, int, int, void *, void *);
  int (*alltoall)(void *, void *, size_t, int, void *, void *);
  int (*broadcast)(void *, void *, size_t, int, int, void *, void *);
  int (*send)(void *, size_t, int, int, void *, void *);
  int (*recv)(void *, size_t, int, int, void *, void *);
  int (*group_start)(void);
  int (*group_end)(void);
  int (*async_error)(void *, int *);
  int (*query)(void *);
  int (*begin_capture)(void *, int);
  int (*end_capture)(void *, void **);
  int (*instantiate)(void **, void *, unsigned long long);
  int (*launch)(void *, void *);
  int (*destroy_executable)(void *);
  int (*destroy_graph)(void *);
  int (*barrier)(uint64_t); /* MPI_Comm is a pointer or an int */
} functions;

typedef struct {
  enum operation operation;
  int rank, ranks, calls, graph;
  char *send, *recv;
  size_t count, step, turns; /* call i works (i % turns) * step bytes further on */
  void *comm, *stream;
  uint64_t everyone;
} measurement;

static int call(const functions *f, const measurement *m, int i) {
  size_t at = m->step * (i % m->turns);
  void *send = m->send + at, *recv = m->recv + at;
  int after = (m->rank + 1) % m->ranks, before = (m->rank + m->ranks - 1) % m->ranks;
  switch (m->operation) {
    case ALL_REDUCE: return f->all_reduce(send, recv, m->count, FLOAT, SUM, m->comm, m->stream);
    case ALL_GATHER: return f->all_gather(send, recv, m->count, FLOAT, m->comm, m->stream);
    case REDUCE_SCATTER: return f->reduce_scatter(send, recv, m->count, FLOAT, SUM, m->comm, m->stream);
    case ALLTOALL: return f->alltoall(send, recv, m->count, FLOAT, m->comm, m->stream);
    case BROADCAST: return f->broadcast(send, recv, m->count, FLOAT, 0, m->comm, m->stream);
    default:
      return f->group_start() || f->send(send, m->count, FLOAT, after, m->comm, m->stream) ||
             f->recv(recv, m->count, FLOAT, before, m->comm, m->stream) || f->group_end();
  }
}

static int finished(const functions *f, const measurement *m) {
  int status, error = 0;
  while ((status = f->query(m->stream)) == NOT_READY) {
    if (f->async_error(m->comm, &error) || error) return 1;
  }
  return status;
}

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + 1e-9 * at.tv_nsec;
}

/* Seconds of one call on this rank; below 0 where something failed. */
double timed(const functions *f, const measurement *m) {
  void *graph = NULL, *executable = NULL;
  int failed = call(f, m, 0) || finished(f, m) || f->barrier(m->everyone);
  if (m->graph) failed = failed || f->begin_capture(m->stream, THREAD_LOCAL);
  double begin = now();
  for (int i = 0; i < m->calls && !failed; i++) failed = call(f, m, i);
  if (m->graph) {
    failed = failed || f->end_capture(m->stream, &graph) || f->instantiate(&executable, graph, 0) ||
             f->barrier(m->everyone);
    begin = now();
    failed = failed || f->launch(executable, m->stream);
  }
  failed = failed || finished(f, m);
  double end = now();
  if (m->graph) failed = failed || f->destroy_executable(executable) || f->destroy_graph(graph);
  return failed ? -1 : (end - begin) / m->calls;
}
