/* Write the records of `meshrun.runner.recorder.ring`: the same words as its Python, in a tenth of the time.
 *
 * A rank may be stopped between any two stores. A record's number is cleared before its other words are written,
 * and written after them, so that a reader never takes a half-written record for a whole one. */
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

enum { ENTERED, LEFT, MOVED, SEQUENCE, NAME, GROUP, THREAD, NUMBER, WORDS };

/* Words of the totals of a name. The first and the last are equal unless the others are being written. */
enum { COMPLETE, TIMES_ENTERED, TIMES_LEFT, NANOSECONDS, BYTES, STEPS, UNUSED, BEGUN };

/* What `enter` returns: the number of the operation, and above it the place of its totals: its name, or NAMES
 * more for an operation of a communicator. */
enum { TOTAL_SHIFT = 48, NAMES = 128 };

/* Places in the file as Python's struct writes them: "5q", in a bytes object that the functions are bound to. */
typedef struct {
  int64_t *counter, *sequences, *records; /* sequences: of each group, the last collective entered */
  int64_t *totals; /* of each name, twice */
  int64_t count; /* of records, a power of two */
} ring;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static const ring *ring_of(PyObject *bound) { return (const ring *)PyBytes_AsString(bound); }

/* Add to the totals of a name. The interpreter's lock keeps other threads out. */
static void add(int64_t *total, int64_t entered, int64_t left, int64_t nanoseconds, int64_t bytes, int64_t steps) {
  int64_t change = total[COMPLETE] + 1;
  __atomic_store_n(&total[BEGUN], change, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  total[TIMES_ENTERED] += entered;
  total[TIMES_LEFT] += left;
  total[NANOSECONDS] += nanoseconds;
  total[BYTES] += bytes;
  total[STEPS] += steps;
  __atomic_store_n(&total[COMPLETE], change, __ATOMIC_RELEASE);
}

PyDoc_STRVAR(enter_doc, "enter(name, moved=0, group=0, sequence=0, /)\n--\n\nRecord that an operation is entered.");

static PyObject *enter(PyObject *bound, PyObject *const *given, Py_ssize_t count) {
  int64_t words[4] = {0, 0, 0, 0}; /* name, moved, group, sequence */
  if (count < 1 || count > 4) return PyErr_Format(PyExc_TypeError, "enter takes 1 to 4 numbers, got %zd", count);
  for (Py_ssize_t i = 0; i < count; i++) {
    words[i] = PyLong_AsLongLong(given[i]);
    if (words[i] == -1 && PyErr_Occurred()) return NULL;
  }
  const ring *r = ring_of(bound);
  int64_t number = __atomic_add_fetch(r->counter, 1, __ATOMIC_RELAXED);
  int64_t *record = r->records + (number & (r->count - 1)) * WORDS;
  __atomic_store_n(&record[NUMBER], 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  int64_t at = now();
  record[ENTERED] = at;
  record[LEFT] = 0;
  record[MOVED] = words[1];
  record[SEQUENCE] = words[3];
  record[NAME] = words[0];
  record[GROUP] = words[2];
  record[THREAD] = (int64_t)pthread_self();
  __atomic_store_n(&record[NUMBER], number, __ATOMIC_RELEASE);
  if (words[3]) r->sequences[words[2]] = words[3];
  int64_t total = words[0] + (words[2] ? NAMES : 0);
  add(r->totals + total * WORDS, 1, 0, -at, words[1], 0);
  return PyLong_FromLongLong(total << TOTAL_SHIFT | number);
}

PyDoc_STRVAR(leave_doc, "leave(entry, steps=0, /)\n--\n\nRecord that an operation is left, with the steps taken in it.");

static PyObject *leave(PyObject *bound, PyObject *const *given, Py_ssize_t count) {
  int64_t words[2] = {0, 0}; /* entry, steps */
  if (count < 1 || count > 2) return PyErr_Format(PyExc_TypeError, "leave takes 1 or 2 numbers, got %zd", count);
  for (Py_ssize_t i = 0; i < count; i++) {
    words[i] = PyLong_AsLongLong(given[i]);
    if (words[i] == -1 && PyErr_Occurred()) return NULL;
  }
  const ring *r = ring_of(bound);
  int64_t number = words[0] & (((int64_t)1 << TOTAL_SHIFT) - 1), at = now();
  int64_t *record = r->records + (number & (r->count - 1)) * WORDS;
  if (record[NUMBER] == number) __atomic_store_n(&record[LEFT], at, __ATOMIC_RELEASE);
  add(r->totals + (words[0] >> TOTAL_SHIFT) * WORDS, 0, 1, at, 0, words[1]);
  Py_RETURN_NONE;
}

static PyMethodDef bound_methods[] = {
    {"enter", (PyCFunction)(void (*)(void))enter, METH_FASTCALL, enter_doc},
    {"leave", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, leave_doc},
};

PyDoc_STRVAR(functions_doc,
             "functions_of(ring, /)\n--\n\n"
             "Return `enter` and `leave` of a ring: the addresses of its counter, sequences, records and totals, and\n"
             "the number of records.");

static PyObject *functions_of(PyObject *module, PyObject *bytes) {
  char *content;
  Py_ssize_t length;
  if (PyBytes_AsStringAndSize(bytes, &content, &length) < 0) return NULL;
  if (length != sizeof(ring)) return PyErr_Format(PyExc_ValueError, "a ring of %zd bytes", length);
  PyObject *in = PyCFunction_NewEx(&bound_methods[0], bytes, NULL);
  PyObject *out = PyCFunction_NewEx(&bound_methods[1], bytes, NULL);
  PyObject *both = in && out ? PyTuple_Pack(2, in, out) : NULL;
  Py_XDECREF(in);
  Py_XDECREF(out);
  return both;
}

static PyMethodDef methods[] = {{"functions_of", functions_of, METH_O, functions_doc}, {NULL}};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_record", NULL, 0, methods, slots};

PyMODINIT_FUNC PyInit__record(void) { return PyModuleDef_Init(&definition); }
