/* SPDX-License-Identifier: MIT */
#include "pg/board.h"

#include "deadline.h"
#include "ipc/futex.h"
#include "order.h"
#include "spin.h"
#include "tutti/tutti.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>

enum {
    /* Readers tell a writer that may wait for room twice a round. */
    TELL_EVERY = LAYOUT_POSTS / 2,
    SPINS = 300, /* looks at the own bell, some us, or, with cores to spare, */
    SPINS_SPARE = 10000,
    YIELDS = 100,  /* then looks with others let run, then sleep: */
    NAP_SHARE = 8, /* naps of an eighth of the time without news, */
    NAP_LEAST_NS = 50000,
    NAP_MOST_NS = 1000000,
    DROWSY_NS = 1000000000, /* until it has been so long */
};

uint32_t pg_board_bell(const struct pg_boards *boards)
{
    return order_load_acquire_u32(&boards->own->bell); /* H8a pairs H8 */
}

void pg_board_stir(struct pg_boards *boards)
{
    boards->quiet_since = 0;
}

static bool has_news(const struct pg_boards *boards, uint32_t bell, const struct pg_watch *watch)
{
    return pg_board_bell(boards) != bell || (watch && watch->news(watch->context));
}

/* Polls for a while. */
static bool comes_soon(const struct pg_boards *boards, uint32_t bell, const struct pg_watch *watch)
{
    const int spins = boards->spare ? SPINS_SPARE : SPINS;
    for (int turn = 0; turn < spins + YIELDS; turn++) {
        if (has_news(boards, bell, watch))
            return true;
        if (turn < spins)
            spin_rest(turn);
        else
            sched_yield();
    }
    return false;
}

/*
 * The sleeper says that it may sleep, then (the kernel does) looks at the bell; who rings advances
 * the bell, then looks for a sleeper. With full fences on both sides one of them sees the other.
 * Between naps it looks at nothing but the bell, and what nobody rings for, so that who submits
 * finds in its own cache what else the two share.
 */
void pg_board_sleep(struct pg_boards *boards, uint32_t bell, int64_t ms,
                    const struct pg_watch *watch)
{
    if (!boards->quiet_since) {
        if (comes_soon(boards, bell, watch))
            return;
        boards->quiet_since = deadline_now();
    }
    int64_t now = deadline_now(), end = now + ms * 1000000;
    do {
        int64_t quiet = now - boards->quiet_since, nap = quiet / NAP_SHARE;
        nap = nap < NAP_LEAST_NS ? NAP_LEAST_NS : nap > NAP_MOST_NS ? NAP_MOST_NS : nap;
        bool naps = (watch || quiet < DROWSY_NS) && nap < end - now;
        order_store_relaxed_u32(&boards->own->asleep, naps ? LAYOUT_NAPS : LAYOUT_SLEEPS);
        order_fence();
        futex_sleep_ns(&boards->own->bell, bell, naps ? nap : end - now);
        now = deadline_now();
    } while (!has_news(boards, bell, watch) && now < end);
    order_store_relaxed_u32(&boards->own->asleep, LAYOUT_AWAKE);
}

/* Of several that find a sleeper one wakes it, even if that has yet to fall asleep: others who ring
 * until then find it awake. */
void pg_board_wake(struct layout_board *board)
{
    if (!order_load_relaxed_u32(&board->asleep) ||
        !order_exchange_u32(&board->asleep, LAYOUT_AWAKE))
        return;
    order_fetch_add_u32(&board->bell, 1); /* H8 */
    futex_wake_all(&board->bell);
}

void pg_board_ring(struct layout_board *board)
{
    order_fetch_add_u32(&board->bell, 1); /* H8 pairs H8a: what the bell rings for */
    order_fence();
    pg_board_wake(board);
}

void pg_board_hint(struct layout_board *board)
{
    order_fetch_add_u32(&board->bell, 1); /* H8, likewise */
    order_fence();
    if (order_load_relaxed_u32(&board->asleep) == LAYOUT_SLEEPS)
        pg_board_wake(board);
}

void pg_board_ring_all(const struct pg_boards *boards)
{
    for (int r = 0; r < boards->size; r++)
        pg_board_ring(boards->of[r]);
}

/* Extents beyond `dims` are nobody's business. */
static void operation_copy(struct layout_operation *to, const struct layout_operation *from)
{
    memcpy(to, from, offsetof(struct layout_operation, sizes));
    size_t dims = from->dims < LAYOUT_DIMS ? from->dims : LAYOUT_DIMS;
    memcpy(to->sizes, from->sizes, dims * sizeof *to->sizes);
}

bool pg_board_announce(struct pg_boards *boards, const struct layout_announcement *announcement)
{
    /* H3a pairs H3 */
    uint32_t taken = order_load_acquire_u32(&boards->of[0]->taken[boards->rank]);
    if (boards->announced - taken >= LAYOUT_POSTS)
        return false;
    uint32_t turn = ++boards->announced;
    struct layout_announcement *post = &boards->own->announcements[turn % LAYOUT_POSTS];
    post->withdrawn = announcement->withdrawn;
    post->tag = announcement->tag;
    post->sequence = announcement->sequence;
    if (announcement->withdrawn != LAYOUT_WITHDRAWN)
        operation_copy(&post->operation, &announcement->operation);
    order_store_release_u32(&post->turn, turn); /* H1 pairs H1a: the announcement */
    pg_board_ring(boards->of[0]);
    return true;
}

const struct layout_announcement *pg_board_next(const struct pg_boards *boards, int rank)
{
    uint32_t turn = boards->taken[rank] + 1;
    const struct layout_announcement *post = &boards->of[rank]->announcements[turn % LAYOUT_POSTS];
    return order_load_acquire_u32(&post->turn) == turn ? post : NULL; /* H1a pairs H1 */
}

void pg_board_took(struct pg_boards *boards, int rank)
{
    uint32_t taken = ++boards->taken[rank];
    /* H3 pairs H3a: the place may be written again */
    order_store_release_u32(&boards->own->taken[rank], taken);
    if (taken % TELL_EVERY == 0)
        pg_board_ring(boards->of[rank]);
}

bool pg_board_rule(struct pg_boards *boards, const struct layout_verdict *verdict)
{
    for (int r = 0; r < boards->size; r++) {
        uint32_t heard = order_load_acquire_u32(&boards->of[r]->heard); /* H3a pairs H3 */
        if (boards->ruled - heard >= LAYOUT_POSTS)
            return false;
    }
    uint32_t turn = ++boards->ruled;
    struct layout_verdict *post = &boards->own->verdicts[turn % LAYOUT_POSTS];
    post->status = verdict->status;
    post->rank = verdict->rank;
    post->peer = verdict->peer;
    post->tag = verdict->tag;
    post->inputs = verdict->inputs;
    post->sequence = verdict->sequence;
    if (verdict->status == TUTTI_ERR_MISMATCH) {
        operation_copy(&post->expected, &verdict->expected);
        operation_copy(&post->seen, &verdict->seen);
    }
    order_store_release_u32(&post->turn, turn); /* H2 pairs H2a: the verdict */
    pg_board_ring_all(boards);
    return true;
}

bool pg_board_hear(struct pg_boards *boards, struct layout_verdict *verdict)
{
    uint32_t turn = boards->heard + 1;
    const struct layout_verdict *post = &boards->of[0]->verdicts[turn % LAYOUT_POSTS];
    if (order_load_acquire_u32(&post->turn) != turn) /* H2a pairs H2 */
        return false;
    memcpy(verdict, post, sizeof *verdict);
    boards->heard = turn;
    order_store_release_u32(&boards->own->heard, turn); /* H3 pairs H3a */
    if (turn % TELL_EVERY == 0)
        pg_board_ring(boards->of[0]);
    return true;
}

int pg_board_silent(const struct pg_boards *boards)
{
    for (int r = 0; r < boards->size; r++) {
        /* Relaxed: the count is all that is read. */
        if (boards->heard - order_load_relaxed_u32(&boards->of[r]->heard) == LAYOUT_POSTS)
            return r;
    }
    return 0;
}

void pg_board_leave(struct pg_boards *boards, int cause)
{
    /* H4 pairs H4a: what it said before */
    order_store_release_u32(&boards->own->left, 1 + (uint32_t)cause);
    pg_board_ring_all(boards);
}

int pg_board_left(const struct pg_boards *boards)
{
    for (int r = 0; r < boards->size; r++) {
        uint32_t left = order_load_acquire_u32(&boards->of[r]->left); /* H4a pairs H4 */
        if (r != boards->rank && left)
            return (int)left - 1;
    }
    return -1;
}
