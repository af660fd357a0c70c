/* SPDX-License-Identifier: MIT */
#include "pg/control_ring.h"

#include "base/deadline.h"
#include "base/order.h"
#include "base/wait.h"
#include "ipc/futex.h"
#include "pg/wire.h"
#include "tutti/tutti.h"

#include <stddef.h>
#include <string.h>

enum {
    /* A reader notifies the writer, which may wait for room, twice per round of the ring. */
    NOTIFY_EVERY = LAYOUT_POSTS / 2,
    SPINS = 64, /* 1. polls of the own bell; or, with idle cores: */
    SPINS_SPARE = 10000,
    YIELDS = 100,  /* 2. polls with wait_yield() between them */
    NAP_SHARE = 8, /* 3. naps of an eighth of the idle time, from 50 us to 1 ms, */
    NAP_LEAST_NS = 50000,
    NAP_MOST_NS = 1000000,
    IDLE_NAP_NS = 10000000, /* of a thread that looks for packets, without operations, after 1 s */
    HELPED_NAP_NS = 200000, /* while waiting threads handle the events */
    NAPS_END_NS = 1000000000, /* until the thread has been idle for 1 s: then it sleeps */
};

uint32_t pg_control_bell(const struct pg_control *control)
{
    return order_load_acquire_u32(&control->own->bell); /* H8a pairs H8 */
}

void pg_control_reset_idle(struct pg_control *control)
{
    control->idle_since = 0;
}

/* What the thread waits for. */
struct event {
    const struct pg_control *control;
    uint32_t bell;
    bool (*poll)(void *context);
    void *context;
};

static bool has_come(void *context)
{
    const struct event *event = context;
    return pg_control_bell(event->control) != event->bell ||
           (event->poll && event->poll(event->context));
}

/* Poll for a while. Return whether there was an event. */
static bool poll_for_event(struct event *event)
{
    bool come = wait_spin(has_come, event, 0, event->control->spare_cores ? SPINS_SPARE : SPINS);
    int64_t now = come ? 0 : deadline_now();
    for (int i = 0; i < YIELDS && !come && wait_yield(&now); i++)
        come = has_come(event);
    return come;
}

/*
 * The sleeper sets `asleep`, then the kernel compares the bell. The notifier advances the bell,
 * then reads `asleep`. A full fence stands between the two steps on both sides, so one of them sees
 * the other's write. Between naps the thread reads only the bell and calls poll(). So the other
 * cache lines that it shares with submitting threads stay in the submitters' caches.
 */
bool pg_control_sleep(struct pg_control *control, uint32_t bell, int64_t ms, bool busy,
                      bool (*poll)(void *context), void *context)
{
    struct event event = {control, bell, poll, context};
    if (!control->idle_since) {
        if (poll_for_event(&event))
            return true;
        control->idle_since = deadline_now();
    }
    int64_t now = deadline_now(), end = now + ms * 1000000;
    bool come;
    do {
        int64_t idle = now - control->idle_since, nap = idle / NAP_SHARE;
        nap = nap < NAP_LEAST_NS ? NAP_LEAST_NS : nap > NAP_MOST_NS ? NAP_MOST_NS : nap;
        const bool rests = control->wire && !busy && idle >= NAPS_END_NS;
        nap = rests ? IDLE_NAP_NS : nap;
        bool naps = (poll || idle < NAPS_END_NS) && nap < end - now;
        order_store_relaxed_u32(&control->own->asleep, !naps || rests ? LAYOUT_SLEEPING
                                                       : busy         ? LAYOUT_NAPPING
                                                                      : LAYOUT_RESTING);
        order_fence();
        futex_sleep_ns(&control->own->bell, bell, naps ? nap : end - now);
        now = deadline_now();
        come = has_come(&event);
    } while (!come && now < end);
    order_store_relaxed_u32(&control->own->asleep, LAYOUT_AWAKE);
    return come;
}

void pg_control_nap(struct pg_control *control)
{
    control->idle_since = deadline_now();
    futex_sleep_ns(&control->own->bell, pg_control_bell(control), HELPED_NAP_NS);
}

/* Advance the bell, too: an owner that has not yet fallen asleep would miss the kernel's call. */
static void wake(struct layout_control_ring *ring)
{
    order_fetch_add_u32(&ring->bell, 1); /* H8 */
    futex_wake_all(&ring->bell);
}

/* If several threads find the owner asleep, one of them wakes it. Threads that notify meanwhile
 * find the owner awake. */
void pg_control_wake(struct layout_control_ring *ring)
{
    if (order_load_relaxed_u32(&ring->asleep) && order_exchange_u32(&ring->asleep, LAYOUT_AWAKE))
        wake(ring);
}

void pg_control_take_over(struct layout_control_ring *ring)
{
    if (order_exchange_u32(&ring->asleep, LAYOUT_AWAKE) == LAYOUT_SLEEPING)
        wake(ring); /* the owner naps from now on */
}

void pg_control_hand_back(struct layout_control_ring *ring, bool busy)
{
    if (!order_compare_exchange_u32(&ring->asleep, LAYOUT_AWAKE, LAYOUT_RESTING) && busy)
        pg_control_wake(ring);
}

void pg_control_notify(struct layout_control_ring *ring)
{
    order_fetch_add_u32(&ring->bell, 1); /* H8 pairs H8a: the event */
    order_fence();
    if (order_load_relaxed_u32(&ring->asleep) > LAYOUT_RESTING)
        pg_control_wake(ring);
}

void pg_control_wake_if_asleep(struct layout_control_ring *ring)
{
    order_fetch_add_u32(&ring->bell, 1); /* H8 pairs H8a */
    order_fence();
    if (order_load_relaxed_u32(&ring->asleep) == LAYOUT_SLEEPING)
        pg_control_wake(ring);
}

static void notify_others(const struct pg_control *control)
{
    for (int r = 0; r < control->size; r++)
        if (r != control->rank)
            pg_control_notify(control->rings[r]);
}

/* Copy the first `bytes` bytes of a post, except for its number. */
static void post_copy(void *to, const void *from, size_t bytes)
{
    const size_t number = sizeof(uint32_t);
    memcpy((char *)to + number, (const char *)from + number, bytes - number);
}

/* The bytes that are used: the sizes behind the last dimension are not. */
static size_t announcement_bytes(const struct layout_announcement *announcement)
{
    return offsetof(struct layout_announcement, operation.sizes) +
           announcement->operation.dims * sizeof(int64_t);
}

static size_t verdict_bytes(const struct layout_verdict *verdict)
{
    return verdict->status == TUTTI_ERR_MISMATCH ? sizeof *verdict
                                                 : offsetof(struct layout_verdict, expected);
}

bool pg_control_announce(struct pg_control *control, const struct layout_announcement *announcement)
{
    if (control->wire && control->rank != 0)
        return pg_wire_announce(control->wire, announcement, announcement_bytes(announcement));
    /* H3a pairs H3 */
    uint32_t taken = order_load_acquire_u32(&control->rings[0]->announcements_taken[control->rank]);
    if (control->announced - taken >= LAYOUT_POSTS)
        return false;
    uint32_t post_number = ++control->announced;
    struct layout_announcement *post = &control->own->announcements[post_number % LAYOUT_POSTS];
    post_copy(post, announcement, announcement_bytes(announcement));
    order_store_release_u32(&post->post_number, post_number); /* H1 pairs H1a: the announcement */
    if (control->rank != 0) /* the leader looks for announcements after its own */
        pg_control_notify(control->rings[0]);
    return true;
}

const struct layout_announcement *pg_control_next_announcement(const struct pg_control *control,
                                                               int rank)
{
    uint32_t post_number = control->announcements_taken[rank] + 1;
    const struct layout_announcement *post =
        &control->rings[rank]->announcements[post_number % LAYOUT_POSTS];
    return order_load_acquire_u32(&post->post_number) == post_number ? post
                                                                     : NULL; /* H1a pairs H1 */
}

void pg_control_announcement_taken(struct pg_control *control, int rank)
{
    uint32_t taken = ++control->announcements_taken[rank];
    if (control->wire && rank != control->rank)
        return; /* pg_wire_poll() reads the count, and takes the next one itself */
    /* H3 pairs H3a: the post may be overwritten */
    order_store_release_u32(&control->own->announcements_taken[rank], taken);
    if (taken % NOTIFY_EVERY == 0)
        pg_control_notify(control->rings[rank]);
}

/* Whether the leader can post another verdict to the rank. */
static bool has_room(const struct pg_control *control, int rank)
{
    if (control->wire && rank != control->rank)
        return pg_wire_has_place(control->wire, rank);
    uint32_t taken =
        order_load_acquire_u32(&control->rings[rank]->verdicts_taken); /* H3a pairs H3 */
    return control->verdicts_posted - taken < LAYOUT_POSTS;
}

bool pg_control_post_verdict(struct pg_control *control, const struct layout_verdict *verdict)
{
    for (int r = 0; r < control->size; r++)
        if (!has_room(control, r))
            return false;
    uint32_t post_number = ++control->verdicts_posted;
    struct layout_verdict *post = &control->own->verdicts[post_number % LAYOUT_POSTS];
    post_copy(post, verdict, verdict_bytes(verdict));
    order_store_release_u32(&post->post_number, post_number); /* H2 pairs H2a: the verdict */
    for (int r = 0; r < control->size && control->wire; r++)
        if (r != control->rank)
            (void)pg_wire_post(control->wire, r, verdict, verdict_bytes(verdict));
    notify_others(control);
    return true;
}

bool pg_control_take_verdict(struct pg_control *control, struct layout_verdict *verdict)
{
    uint32_t post_number = control->verdicts_taken + 1;
    const struct layout_verdict *post = &control->rings[0]->verdicts[post_number % LAYOUT_POSTS];
    if (order_load_acquire_u32(&post->post_number) != post_number) /* H2a pairs H2 */
        return false;
    post_copy(verdict, post, verdict_bytes(post));
    control->verdicts_taken = post_number;
    order_store_release_u32(&control->own->verdicts_taken, post_number); /* H3 pairs H3a */
    if (post_number % NOTIFY_EVERY == 0)
        pg_control_notify(control->rings[0]);
    return true;
}

int pg_control_unresponsive_rank(const struct pg_control *control)
{
    for (int r = 0; r < control->size && !control->wire; r++) {
        /* Relaxed: only the count is read. */
        if (control->verdicts_taken - order_load_relaxed_u32(&control->rings[r]->verdicts_taken) ==
            LAYOUT_POSTS)
            return r;
    }
    return 0;
}

void pg_control_leave(struct pg_control *control, int cause)
{
    /* H4 pairs H4a: what this rank posted before */
    order_store_release_u32(&control->own->left, 1 + (uint32_t)cause);
    notify_others(control);
}

struct rank_set pg_control_left(const struct pg_control *control, int *cause)
{
    struct rank_set ranks = rank_set_none;
    for (int r = 0; r < control->size; r++) {
        uint32_t left = order_load_acquire_u32(&control->rings[r]->left); /* H4a pairs H4 */
        if (r == control->rank || !left)
            continue;
        *cause = rank_set_empty(ranks) ? (int)left - 1 : *cause;
        rank_set_add(&ranks, r);
    }
    return ranks;
}

int pg_control_exit_cause(const struct pg_control *control, int rank)
{
    const uint32_t left = order_load_acquire_u32(&control->rings[rank]->left); /* H4a pairs H4 */
    return left ? (int)left - 1 : rank;
}
