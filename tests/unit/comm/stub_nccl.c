/* A libnccl.so.2 that moves nothing and notes every call, for machines without a GPU.
 *
 *     cc -shared -fPIC -O2 -Wl,-soname,libnccl.so.2 stub_nccl.c -o libnccl.so.2
 *
 * Its settings are environment variables, read when it is loaded:
 *
 *     STUB_NCCL_LOG      file that gets a line for each call: the function, and its arguments as numbers
 *     STUB_NCCL_VERSION  what ncclGetVersion tells (22809)
 *     STUB_NCCL_FAIL     function that returns STUB_NCCL_RESULT (3, an internal error)
 *     STUB_NCCL_BLOCK    function that does not return before ncclCommAbort is called
 *     STUB_NCCL_ASYNC    what ncclCommGetAsyncError tells (0)
 *     STUB_NCCL_WORDS    what ncclGetLastError tells (nothing)
 *
 * As NCCL 2.28 does, it reads NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE again after ncclResetDebugInit
 * and with INFO and TUNING writes what it chose for an all-reduce; NCCL_ALGO and NCCL_PROTO are read when a
 * communicator is made, and it has no Tree with LL128.
 *
 * Pointers are numbers here: no memory belongs to the addresses handed out. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef long word; /* as wide as a pointer and a size_t */
typedef struct {
  char bytes[128];
} id;
typedef struct { /* ncclConfig_t from its beginning to the last field that is noted */
  size_t size;
  unsigned magic, version;
  int blocking, cluster, min_ctas, max_ctas;
  char *network;
  int split_share, traffic_class;
  char *name;
  int collnet, cta_policy, shrink_share, nvls_ctas, channels, nvlink_centric, graph_usage, contexts, peers;
} config;

static int notes = -1, version, result, asynchronous, operators, aborted;
static word addresses, handles;
static const char *failing, *blocking, *words;

static const char *setting(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return strdup(value ? value : otherwise);
}

__attribute__((constructor)) static void configure(void) {
  const char *path = setting("STUB_NCCL_LOG", "");
  notes = *path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  version = atoi(setting("STUB_NCCL_VERSION", "22809"));
  result = atoi(setting("STUB_NCCL_RESULT", "3"));
  asynchronous = atoi(setting("STUB_NCCL_ASYNC", "0"));
  failing = setting("STUB_NCCL_FAIL", "");
  blocking = setting("STUB_NCCL_BLOCK", "");
  words = setting("STUB_NCCL_WORDS", "");
  operators = 5; /* after ncclAvg */
  addresses = 0x100000, handles = 1000, aborted = 0;
}

/* Note a call with `count` words of arguments; what it returns. */
static int note(const char *name, int count, ...) {
  if (notes >= 0) {
    char line[512];
    int length = snprintf(line, sizeof line, "%s", name);
    va_list arguments;
    va_start(arguments, count);
    while (count--) length += snprintf(line + length, sizeof line - length, " %ld", va_arg(arguments, word));
    va_end(arguments);
    line[length++] = '\n';
    if (write(notes, line, length) != length) abort();
  }
  if (*blocking && !strcmp(name, blocking)) {
    const struct timespec moment = {0, 1000000};
    while (!__atomic_load_n(&aborted, __ATOMIC_ACQUIRE)) nanosleep(&moment, NULL);
  }
  return *failing && !strcmp(name, failing) ? result : 0;
}

#define NOTE(count, ...) note(__func__, count, __VA_ARGS__)

/* The functions that only get numbers, by the types of those. */
#define REDUCES(function)                                                                    \
  int function(word send, word recv, word count, int type, int op, word comm, word stream) { \
    return NOTE(7, send, recv, count, (word)type, (word)op, comm, stream);                   \
  }
#define MOVES(function)                                                              \
  int function(word send, word recv, word count, int type, word comm, word stream) { \
    return NOTE(6, send, recv, count, (word)type, comm, stream);                     \
  }
#define MESSAGE(function)                                                              \
  int function(word address, word count, int type, int peer, word comm, word stream) { \
    return NOTE(6, address, count, (word)type, (word)peer, comm, stream);              \
  }
#define ONE(function) \
  int function(word a) { return NOTE(1, a); }
#define TWO(function) \
  int function(word a, word b) { return NOTE(2, a, b); }
#define NONE(function) \
  int function(void) { return note(__func__, 0); }

static char algorithm[32] = "RING", protocol[32] = "SIMPLE";
static FILE *debug;

void ncclResetDebugInit(void) {
  const char *level = getenv("NCCL_DEBUG"), *parts = getenv("NCCL_DEBUG_SUBSYS"), *file = getenv("NCCL_DEBUG_FILE");
  if (debug) fclose(debug);
  debug = level && parts && file && !strcmp(level, "INFO") && !strcmp(parts, "TUNING") ? fopen(file, "w") : NULL;
  if (debug) setlinebuf(debug);
}

int ncclAllReduce(word send, word recv, word count, int type, int op, word comm, word stream) {
  if (!strcmp(algorithm, "TREE") && !strcmp(protocol, "LL128")) return 5; /* ncclInvalidUsage */
  if (debug)
    fprintf(debug, "n1:7:8 [0] NCCL INFO AllReduce: %ld Bytes -> Algo %s proto %s channel{Lo..Hi}={0..%ld}\n",
            count * 4, algorithm, protocol, count / 8);
  return NOTE(7, send, recv, count, (word)type, (word)op, comm, stream);
}
REDUCES(ncclReduceScatter)
REDUCES(ncclBroadcast) /* with a root in the operator's place */
REDUCES(ncclGather)
REDUCES(ncclScatter)
MOVES(ncclAllGather)
MOVES(ncclAlltoAll)
MESSAGE(ncclSend)
MESSAGE(ncclRecv)
NONE(ncclGroupStart)
NONE(ncclGroupEnd)
ONE(ncclMemFree)
ONE(ncclCommDestroy)
TWO(ncclCommDeregister)
TWO(ncclCommWindowDeregister)

int ncclReduce(word send, word recv, word count, int type, int op, int root, word comm, word stream) {
  return NOTE(8, send, recv, count, (word)type, (word)op, (word)root, comm, stream);
}
int ncclGetVersion(int *number) { return *number = version, 0; }
const char *ncclGetErrorString(int code) { return code == 1 ? "unhandled cuda error" : "internal error"; }
const char *ncclGetLastError(word comm) { return words; }
int ncclGetUniqueId(id *made) { return memset(made, 7, sizeof *made), note(__func__, 0); }
int ncclCommInitRankConfig(word *comm, int size, id unique, int rank, config *c) {
  *comm = 0xC0;
  strcpy(algorithm, getenv("NCCL_ALGO") ? getenv("NCCL_ALGO") : "RING");
  strcpy(protocol, getenv("NCCL_PROTO") ? getenv("NCCL_PROTO") : "SIMPLE");
  if (c->min_ctas > 0) note("config", 2, (word)c->min_ctas, (word)c->max_ctas);
  word chosen[] = {c->cta_policy, c->nvlink_centric, c->peers};
  return NOTE(6, (word)size, (word)unique.bytes[127], (word)rank, chosen[0], chosen[1], chosen[2]);
}
int ncclCommGetAsyncError(word comm, int *code) { return *code = asynchronous, note(__func__, 1, comm); }
int ncclCommAbort(word comm) {
  __atomic_store_n(&aborted, 1, __ATOMIC_RELEASE);
  return NOTE(1, comm);
}
int ncclMemAlloc(word *address, word size) {
  *address = addresses, addresses += 0x100000;
  return NOTE(1, size);
}
int ncclCommRegister(word comm, word address, word size, word *handle) {
  return *handle = handles++, NOTE(3, comm, address, size);
}
int ncclCommWindowRegister(word comm, word address, word size, word *window, int flags) {
  return *window = handles++, NOTE(4, comm, address, size, (word)flags);
}
int ncclRedOpCreatePreMulSum(int *op, unsigned char *scalar, int type, int residence, word comm) {
  word bits = 0;
  static const char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* bytes, by ncclDataType_t */
  memcpy(&bits, scalar, sizes[type]);
  return *op = operators++, NOTE(5, (word)*op, bits, (word)type, (word)residence, comm);
}
int ncclRedOpDestroy(int op, word comm) { return NOTE(2, (word)op, comm); }
