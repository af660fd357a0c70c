/* SPDX-License-Identifier: MIT */
/* C code of the extension module; generate.py puts the public headers before it, and cffi's code
 * after it. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* DLPack's structs, of a capsule "dltensor" and of a capsule "dltensor_versioned". */
struct dl_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};
struct dl_tensor {
    void *data;
    int device_type;
    int device_id;
    int dims;
    struct dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* NULL: row-major */
    uint64_t byte_offset;
};
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *);
};
struct dl_managed_versioned {
    uint32_t version[2];
    void *context;
    void (*deleter)(struct dl_managed_versioned *);
    uint64_t flags; /* bit 0: read-only */
    struct dl_tensor tensor;
};

/* The destructor of a capsule "dltensor". A consumer of the capsule has renamed it, and calls the
 * deleter itself. */
static void tutti_python_capsule_end(void *capsule)
{
    if (!PyCapsule_IsValid(capsule, "dltensor"))
        return;
    struct dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
}

/* The calls of the library that run now, without the GIL, and pass a handle. The GIL protects the
 * list: generate.py makes a call enter it before the GIL is released, and leave it once the call
 * has the GIL again. */
struct tutti_python_call {
    const void *handle;
    unsigned long thread;
    int process;
    struct tutti_python_call *next;
    struct tutti_python_call **link; /* what points to this */
};
static struct tutti_python_call *tutti_python_calls;
static int tutti_python_process; /* advances in a child of fork(), which lacks the other threads */

static inline void tutti_python_enter(struct tutti_python_call *call, const void *handle)
{
    *call = (struct tutti_python_call){.handle = handle,
                                       .thread = PyThread_get_thread_ident(),
                                       .process = tutti_python_process,
                                       .next = tutti_python_calls,
                                       .link = &tutti_python_calls};
    if (call->next)
        call->next->link = &call->next;
    tutti_python_calls = call;
}

static inline void tutti_python_leave(const struct tutti_python_call *call)
{
    if (call->process != tutti_python_process)
        return;
    *call->link = call->next;
    if (call->next)
        call->next->link = call->link;
}

/* Whether a call passes the handle: 0: none, 1: only calls of other threads, 2: one of this thread,
 * which is in a signal handler or a callback. */
static int tutti_python_callers(const void *handle)
{
    int found = 0;
    const PyGILState_STATE state = PyGILState_Ensure();
    for (const struct tutti_python_call *call = tutti_python_calls; call; call = call->next)
        if (call->handle == handle && found < 2)
            found = call->thread == PyThread_get_thread_ident() ? 2 : 1;
    PyGILState_Release(state);
    return found;
}

/* Called in the child of a fork(). */
static void tutti_python_forked(void)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    tutti_python_process++;
    tutti_python_calls = NULL;
    PyGILState_Release(state);
}

/* Runs Python's pending signal handlers with the GIL; returns 1 if one of them raised an exception.
 */
static int tutti_python_signals(void *interrupt);

struct tutti_python_progress {
    void *interrupt; /* gets the exception */
    long thread;     /* Python's main thread; Python runs signal handlers in no other */
    int64_t due_ns;  /* when to look for signals again */
};

/* The progress function of communicators: takes the GIL at most every 10 ms, in the main thread
 * alone. */
static int tutti_python_progress(void *context)
{
    struct tutti_python_progress *progress = context;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t now_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    if (now_ns < progress->due_ns)
        return 0;
    progress->due_ns = now_ns + 10 * 1000 * 1000;
    if (syscall(SYS_gettid) != progress->thread)
        return 0;
    return tutti_python_signals(progress->interrupt);
}
