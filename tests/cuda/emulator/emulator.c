/* SPDX-License-Identifier: MIT */
#include "emulator.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum {
    WARP = 32,
    BARRIERS = 16,
    SHARED_BYTES = 8192, /* of a block */
    SHARED_OBJECTS = 4,
    STACK_BYTES = 64 << 10,
    RECENT = 8, /* a wait polls at most so many places in turn */
    STORES = 8, /* lines that a fiber has stored and nobody sees yet */
    IDLE_YIELDS = 2,
    IDLE_NAPS = 20,
    NAP_NS = 20000,
    NAP_MOST_NS = 200000
};

/* Counts arrivals; `turn` changes when all have come. */
struct meeting {
    unsigned arrived;
    bool all, any;         /* of the votes so far */
    bool was_all, was_any; /* of the last turn */
    uint64_t turn;
};

struct warp {
    struct meeting meeting;
    unsigned lanes; /* that have not ended */
};

struct block {
    struct meeting barriers[BARRIERS];
    _Alignas(16) unsigned char shared[SHARED_BYTES];
    const void *types[SHARED_OBJECTS]; /* of its objects, NULL at the end */
    unsigned long ends[SHARED_OBJECTS];
};

struct line {
    void *to;
    uint64_t low, high;
};

struct fiber {
    void *stack_pointer, *stack; /* NULL: not begun */
    unsigned thread, block;
    struct warp *warp;
    const struct meeting *waits; /* NULL: it can run */
    uint64_t turn;               /* of that meeting */
    const void *recent[RECENT];  /* places that were polled since the fiber began to run */
    unsigned polled;
    struct line stores[STORES];
    unsigned store_count;
    bool ended;
};

struct run {
    const struct emulated_launch *launch;
    struct fiber *fibers, *current;
    struct block *blocks;
    unsigned live;
    uint32_t random;
    bool moved; /* some fiber has got on in this turn */
    void *stack_pointer;
};

__thread struct emulated_indices emulated __attribute__((tls_model("initial-exec")));
static __thread struct run *run __attribute__((tls_model("initial-exec")));

static void fail(const char *what)
{
    fprintf(stderr, "emulator: %s (block %u, thread %u)\n", what, emulated.block.x,
            emulated.thread.x);
    abort();
}

static uint32_t random_next(void)
{
    run->random ^= run->random << 13;
    run->random ^= run->random >> 17;
    run->random ^= run->random << 5;
    return run->random;
}

/* ---- fibers ---------------------------------------------------------------------------------- */

/* Keeps the stack pointer in *from and goes on at `to`, with the registers that a call preserves.
 */
void emulator_switch(void **from, void *to) __attribute__((visibility("hidden")));

#if defined(__x86_64__)
enum { FRAME_WORDS = 7 }; /* six registers, the address to return to */
__asm__(".text\n"
        ".hidden emulator_switch\n"
        ".globl emulator_switch\n"
        ".type emulator_switch, @function\n"
        "emulator_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emulator_switch, . - emulator_switch\n");
#elif defined(__aarch64__)
enum { FRAME_WORDS = 20 }; /* x19 to x30, d8 to d15 */
__asm__(".text\n"
        ".hidden emulator_switch\n"
        ".globl emulator_switch\n"
        ".type emulator_switch, %function\n"
        "emulator_switch:\n"
        "    stp d8, d9, [sp, #-160]!\n"
        "    stp d10, d11, [sp, #16]\n"
        "    stp d12, d13, [sp, #32]\n"
        "    stp d14, d15, [sp, #48]\n"
        "    stp x19, x20, [sp, #64]\n"
        "    stp x21, x22, [sp, #80]\n"
        "    stp x23, x24, [sp, #96]\n"
        "    stp x25, x26, [sp, #112]\n"
        "    stp x27, x28, [sp, #128]\n"
        "    stp x29, x30, [sp, #144]\n"
        "    mov x2, sp\n"
        "    str x2, [x0]\n"
        "    mov sp, x1\n"
        "    ldp d10, d11, [sp, #16]\n"
        "    ldp d12, d13, [sp, #32]\n"
        "    ldp d14, d15, [sp, #48]\n"
        "    ldp x19, x20, [sp, #64]\n"
        "    ldp x21, x22, [sp, #80]\n"
        "    ldp x23, x24, [sp, #96]\n"
        "    ldp x25, x26, [sp, #112]\n"
        "    ldp x27, x28, [sp, #128]\n"
        "    ldp x29, x30, [sp, #144]\n"
        "    ldp d8, d9, [sp], #160\n"
        "    ret\n"
        ".size emulator_switch, . - emulator_switch\n");
#else
#error "emulator_switch() is missing for this processor"
#endif

/* Stacks that no fiber uses; the first word of each is the next one. They stay mapped. */
static pthread_mutex_t stacks_lock = PTHREAD_MUTEX_INITIALIZER;
static void **stacks;

static void *stack_take(void)
{
    pthread_mutex_lock(&stacks_lock);
    void **stack = stacks;
    if (stack)
        stacks = *stack;
    pthread_mutex_unlock(&stacks_lock);
    if (stack)
        return stack;
    stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED)
        fail("no memory for a stack");
    return stack;
}

static void stack_give(void *stack)
{
    pthread_mutex_lock(&stacks_lock);
    *(void **)stack = stacks;
    stacks = stack;
    pthread_mutex_unlock(&stacks_lock);
}

static void pause_fiber(void)
{
    struct fiber *self = run->current;
    memset(self->recent, 0, sizeof self->recent);
    emulator_switch(&self->stack_pointer, run->stack_pointer);
}

/* All have arrived. */
static void meeting_end(struct meeting *meeting)
{
    meeting->was_all = meeting->all;
    meeting->was_any = meeting->any;
    meeting->arrived = 0;
    meeting->turn++;
    run->moved = true;
}

static void fiber_main(void)
{
    struct fiber *self = run->current;
    run->launch->call(run->launch->kernel, run->launch->argument);
    emulator_fence();
    self->ended = true;
    self->warp->lanes--;
    run->live--;
    run->moved = true;
    /* The other lanes do not wait for this one. */
    struct meeting *meeting = &self->warp->meeting;
    if (meeting->arrived && meeting->arrived == self->warp->lanes)
        meeting_end(meeting);
    pause_fiber();
}

static void fiber_begin(struct fiber *fiber)
{
    fiber->stack = stack_take();
    void **top = (void **)((char *)fiber->stack + STACK_BYTES - 64);
#if defined(__x86_64__)
    top--; /* as at the begin of a function: 8 bytes below a multiple of 16 */
    *top = NULL;
#endif
    top -= FRAME_WORDS;
    memset(top, 0, FRAME_WORDS * sizeof *top);
    top[FRAME_WORDS - 1] = (void *)(uintptr_t)fiber_main;
    fiber->stack_pointer = top;
}

static void fiber_resume(struct fiber *fiber)
{
    if (!fiber->stack)
        fiber_begin(fiber);
    run->current = fiber;
    emulated.thread.x = fiber->thread;
    emulated.block.x = fiber->block;
    emulator_switch(&run->stack_pointer, fiber->stack_pointer);
    if (fiber->ended) {
        stack_give(fiber->stack);
        fiber->stack = NULL;
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* 16 bytes in one access. */
#if defined(__x86_64__)
static void line_put(void *to, uint64_t low, uint64_t high)
{
    *(volatile __m128i *)to = _mm_set_epi64x((long long)high, (long long)low);
}

static void line_get(const void *from, uint64_t line[2])
{
    const __m128i both = *(const volatile __m128i *)from;
    memcpy(line, &both, sizeof both);
}
#else
static void line_put(void *to, uint64_t low, uint64_t high)
{
    uint64_t old;
    uint32_t lost;
    __asm__ volatile("1: ldxp xzr, %0, [%2]\n"
                     "   stxp %w1, %3, %4, [%2]\n"
                     "   cbnz %w1, 1b"
                     : "=&r"(old), "=&r"(lost)
                     : "r"(to), "r"(low), "r"(high)
                     : "memory");
}

static void line_get(const void *from, uint64_t line[2])
{
    uint32_t lost;
    __asm__ volatile("1: ldxp %0, %1, [%3]\n"
                     "   stxp %w2, %0, %1, [%3]\n"
                     "   cbnz %w2, 1b"
                     : "=&r"(line[0]), "=&r"(line[1]), "=&r"(lost)
                     : "r"(from)
                     : "memory");
}
#endif

/* All ones if the memory holds complements, else 0. */
static uint64_t complement(const void *at)
{
    const struct emulated_launch *launch = run->launch;
    for (unsigned i = 0; i < sizeof launch->ones / sizeof *launch->ones && launch->ones[i]; i++)
        if ((uintptr_t)at - (uintptr_t)launch->ones[i] < launch->ones_bytes)
            return UINT64_MAX;
    return 0;
}

static void line_write(const struct line *line)
{
    const struct emulated_launch *launch = run->launch;
    const uint64_t flip = complement(line->to), low = line->low ^ flip, high = line->high ^ flip;
    if (launch->only && (uintptr_t)line->to - (uintptr_t)launch->only >= launch->only_bytes)
        return;
    line_put(line->to, low, high);
}

static void stores_write(struct fiber *self, unsigned keep)
{
    while (self->store_count > keep) {
        const unsigned i = random_next() % self->store_count;
        line_write(&self->stores[i]);
        self->stores[i] = self->stores[--self->store_count];
    }
}

void emulator_store_line(void *to, uint64_t low, uint64_t high)
{
    struct fiber *self = run->current;
    if ((uintptr_t)to % 16)
        fail("a line is stored at an address that is no multiple of 16");
    for (unsigned i = 0; i < self->store_count; i++)
        if (self->stores[i].to == to)
            stores_write(self, 0);
    if (self->store_count == STORES)
        stores_write(self, STORES - 1);
    self->stores[self->store_count++] = (struct line){to, low, high};
    run->moved = true;
}

void emulator_load_line(const void *from, uint64_t line[2])
{
    if ((uintptr_t)from % 16)
        fail("a line is loaded from an address that is no multiple of 16");
    line_get(from, line);
    const uint64_t flip = complement(from);
    line[0] ^= flip;
    line[1] ^= flip;
}

void emulator_store_plain(void *to, uint64_t low, uint64_t high)
{
    const uint64_t flip = complement(to);
    if ((uintptr_t)to % 16)
        fail("a line is stored at an address that is no multiple of 16");
    __atomic_store_n((uint64_t *)to, low ^ flip, __ATOMIC_RELAXED);
    __atomic_store_n((uint64_t *)to + 1, high ^ flip, __ATOMIC_RELAXED);
}

void emulator_fence(void)
{
    stores_write(run->current, 0);
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
}

void emulator_rest(void)
{
    stores_write(run->current, 0);
    pause_fiber();
}

void emulator_poll(const void *at)
{
    struct fiber *self = run->current;
    for (int i = 0; i < RECENT; i++)
        if (self->recent[i] == at) {
            stores_write(self, random_next() % 4 ? 0 : self->store_count / 2);
            pause_fiber();
            break;
        }
    self->recent[self->polled++ % RECENT] = at;
}

/* ---- meetings -------------------------------------------------------------------------------- */

static void meeting_arrive(struct meeting *meeting, unsigned expected, bool vote)
{
    meeting->all = meeting->arrived ? meeting->all && vote : vote;
    meeting->any = meeting->arrived ? meeting->any || vote : vote;
    if (++meeting->arrived == expected)
        meeting_end(meeting);
}

static void meeting_wait(struct meeting *meeting, unsigned expected, bool vote)
{
    struct fiber *self = run->current;
    self->turn = meeting->turn;
    meeting_arrive(meeting, expected, vote);
    if (meeting->turn != self->turn)
        return;
    self->waits = meeting;
    stores_write(self, random_next() % 2 ? 0 : self->store_count);
    pause_fiber();
}

static struct meeting *barrier_of(int barrier)
{
    return &run->blocks[run->current->block].barriers[barrier];
}

void *emulator_shared(const void *type, unsigned long bytes)
{
    struct block *block = &run->blocks[run->current->block];
    unsigned long begin = 0;
    int i = 0;
    for (; i < SHARED_OBJECTS && block->types[i] && block->types[i] != type; i++)
        begin = (block->ends[i] + 15) / 16 * 16;
    if (i == SHARED_OBJECTS || bytes > SHARED_BYTES - begin)
        fail("a block shares more memory than the emulator has");
    block->types[i] = type;
    block->ends[i] = begin + bytes;
    return block->shared + begin;
}

void emulator_arrive(int barrier, unsigned threads)
{
    meeting_arrive(barrier_of(barrier), threads, true);
}

bool emulator_sync(int barrier, unsigned threads, bool well)
{
    struct meeting *meeting = barrier_of(barrier);
    meeting_wait(meeting, threads, well);
    return meeting->was_all;
}

bool emulator_warp_all(bool vote)
{
    struct warp *warp = run->current->warp;
    meeting_wait(&warp->meeting, warp->lanes, vote);
    return warp->meeting.was_all;
}

bool emulator_warp_any(bool vote)
{
    struct warp *warp = run->current->warp;
    meeting_wait(&warp->meeting, warp->lanes, vote);
    return warp->meeting.was_any;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* The clock of a device is not that of the host. */
uint64_t emulator_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec +
           UINT64_C(1700000000000000000);
}

/* Runs every fiber that can run, once, from any one on. */
static void turn_run(void)
{
    const unsigned count = run->launch->grid * run->launch->block;
    const unsigned first = random_next() % count;
    bool any = false;
    for (unsigned i = 0; i < count; i++) {
        struct fiber *fiber = &run->fibers[(first + i) % count];
        if (fiber->ended || (fiber->waits && fiber->waits->turn == fiber->turn)) {
            stores_write(fiber, 0);
            continue;
        }
        fiber->waits = NULL;
        any = true;
        fiber_resume(fiber);
    }
    if (!any)
        fail("all threads of a launch wait in barriers for each other");
}

/* After turns in which no fiber got on. A launch that waits for long leaves the processor to others
 * most of the time. */
static void idle(unsigned turns, uint64_t turn_ns)
{
    uint64_t nap_ns = NAP_NS;
    if (turns <= IDLE_YIELDS) {
        sched_yield();
        return;
    }
    if (turns > IDLE_NAPS)
        nap_ns = 4 * turn_ns < NAP_NS        ? NAP_NS
                 : 4 * turn_ns < NAP_MOST_NS ? 4 * turn_ns
                                             : NAP_MOST_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
}

static void stand_still(const uint32_t *stop)
{
    const unsigned count = run->launch->grid * run->launch->block;
    for (unsigned i = 0; i < count; i++)
        stores_write(&run->fibers[i], 0);
    while (!__atomic_load_n(stop, __ATOMIC_ACQUIRE))
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    for (unsigned i = 0; i < count; i++)
        if (run->fibers[i].stack)
            stack_give(run->fibers[i].stack);
}

bool emulator_run(const struct emulated_launch *launch)
{
    const unsigned warps = (launch->block + WARP - 1) / WARP;
    struct run self = {.launch = launch,
                       .live = launch->grid * launch->block,
                       .random = launch->order ? launch->order : 1};
    struct warp *all_warps = calloc((size_t)launch->grid * warps, sizeof *all_warps);
    self.fibers = calloc(self.live, sizeof *self.fibers);
    self.blocks = calloc(launch->grid, sizeof *self.blocks);
    if (!all_warps || !self.fibers || !self.blocks)
        abort();
    run = &self;
    emulated.block_dim.x = launch->block;
    emulated.grid_dim.x = launch->grid;
    for (unsigned i = 0; i < self.live; i++) {
        struct fiber *fiber = &self.fibers[i];
        fiber->thread = i % launch->block;
        fiber->block = i / launch->block;
        fiber->warp = &all_warps[(size_t)fiber->block * warps + fiber->thread / WARP];
        fiber->warp->lanes++;
    }
    uint64_t begun_ns = 0;
    for (unsigned idles = 0; self.live; idles = self.moved ? 0 : idles + 1) {
        if (idles)
            idle(idles, emulator_time_ns() - begun_ns);
        self.moved = false;
        begun_ns = emulator_time_ns();
        turn_run();
        if (launch->only) {
            stand_still(launch->stop);
            break;
        }
    }
    run = NULL;
    free(self.fibers);
    free(self.blocks);
    free(all_warps);
    return !launch->only;
}
