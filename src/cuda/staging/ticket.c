/* SPDX-License-Identifier: MIT */
/*
 * A ticket is a line of words in pinned memory. At submission the caller's stream is told to write
 * the first of them, so that the group's thread sees without a call of CUDA when the stream has
 * come there; nothing else is on a stream of anybody's until then. Who waits for the operation puts
 * a gate (gate.cu) onto its own stream, which spins on a word that the host writes at the end. So
 * there are never more gates than callers' streams that wait, and none on a stream of ours.
 *
 * Streams of callers may come to a word late, after the operation, the group and the work are gone.
 * So a line is used again, and its page freed, only once all its words are written.
 */
#include "base/error.h"
#include "base/order.h"
#include "cuda/staging/stage_internal.h"

#include <stdlib.h>

enum { TRIES = 4 }; /* tickets that are looked at before a page is added */

/* Tickets of this process that are taken and have gates. Relaxed: a stream that begins to wait
 * while another thread frees may wait a little longer, as for any call that frees. */
static uint32_t awaited;

bool cuda_tickets_awaited(void)
{
    return order_load_relaxed_u32(&awaited) > 0;
}

static bool is_quiet(struct cuda_ticket *ticket)
{
    const struct cuda_ticket_words *words = ticket->words;
    for (int i = 0; i < ticket->gates; i++)
        if (order_load_acquire_u32(&words->ended[i]) !=
            ticket->number) /* L3a pairs the gate's L3 */
            return false;
    return cuda_ticket_come(ticket);
}

bool cuda_tickets_quiet(const struct cuda_stage *stage)
{
    for (struct cuda_ticket *ticket = stage->first; ticket; ticket = ticket->next)
        if (!is_quiet(ticket))
            return false;
    return true;
}

void cuda_tickets_free(struct cuda_stage *stage, bool child)
{
    struct cuda_visit visit;
    bool entered = !child && stage->place_count &&
                   cuda_visit_begin(stage->driver, stage->places[0].context, &visit) == TUTTI_OK;
    while (stage->pages) {
        struct cuda_ticket_page *page = stage->pages;
        stage->pages = page->next;
        if (entered)
            stage->driver->mem_host_free(page->words);
        free(page);
    }
    stage->calls = NULL;
    if (entered)
        cuda_visit_end(stage->driver, &visit);
}

static void ticket_idle(struct cuda_stage *stage, struct cuda_ticket *ticket)
{
    ticket->next = NULL;
    if (stage->last)
        stage->last->next = ticket;
    else
        stage->first = ticket;
    stage->last = ticket;
}

static enum tutti_status page_add(struct cuda_stage *stage)
{
    const struct cuda_driver *driver = stage->driver;
    struct cuda_ticket_page *page = calloc(1, sizeof *page);
    struct cuda_visit visit;
    void *words = NULL;
    if (!page)
        return error_errno("calloc of tickets");
    enum tutti_status status = cuda_visit_begin(driver, stage->places[0].context, &visit);
    if (status == TUTTI_OK) {
        status = cuda_pinned_alloc(driver,
                                   CUDA_PAGE_TICKETS * sizeof *page->words + sizeof *stage->calls,
                                   CU_MEMHOSTALLOC_PORTABLE, &words);
        cuda_visit_end(driver, &visit);
    }
    if (status != TUTTI_OK) {
        free(page);
        return status;
    }
    page->words = words;
    page->next = stage->pages;
    stage->pages = page;
    if (!stage->calls) {
        stage->calls = (struct cuda_calls *)(void *)&page->words[CUDA_PAGE_TICKETS];
        *stage->calls = (struct cuda_calls){.begun = 0};
    }
    for (int i = 0; i < CUDA_PAGE_TICKETS; i++) {
        page->words[i] = (struct cuda_ticket_words){.open = 0};
        page->tickets[i] = (struct cuda_ticket){.stage = stage, .words = &page->words[i]};
        ticket_idle(stage, &page->tickets[i]);
    }
    return TUTTI_OK;
}

static struct cuda_ticket *idle_take(struct cuda_stage *stage)
{
    struct cuda_ticket *ticket = stage->first;
    stage->first = ticket->next;
    if (!stage->first)
        stage->last = NULL;
    return ticket;
}

/* Under the lock. */
static enum tutti_status ticket_find(struct cuda_stage *stage, struct cuda_ticket **ticket)
{
    for (int tries = 0; stage->first && tries < TRIES; tries++) {
        *ticket = idle_take(stage);
        if (is_quiet(*ticket))
            return TUTTI_OK;
        ticket_idle(stage, *ticket);
    }
    enum tutti_status status = page_add(stage);
    while (status == TUTTI_OK && !is_quiet(*ticket = idle_take(stage)))
        ticket_idle(stage, *ticket);
    return status;
}

static bool is_each_devices(tutti_stream_t stream)
{
    return stream == TUTTI_STREAM_DEFAULT || stream == TUTTI_STREAM_LEGACY ||
           stream == TUTTI_STREAM_PER_THREAD;
}

/* Within the stream's context. */
static enum tutti_status uncaptured_check(const struct cuda_driver *driver, CUstream stream,
                                          const char *why)
{
    uint64_t capture = 0;
    enum tutti_status status = cuda_capture_of(driver, stream, &capture, NULL);
    if (status != TUTTI_OK || !capture)
        return status;
    return error_set(TUTTI_ERR_DECLINED, "stream %p is being captured, and %s", (void *)stream,
                     why);
}

/* The stream writes the ticket's next word. */
static enum tutti_status come_enqueue(struct cuda_stage *stage, struct cuda_ticket *ticket,
                                      CUcontext context, CUstream stream)
{
    const struct cuda_driver *driver = stage->driver;
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, context, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = uncaptured_check(driver, stream,
                              "a process group's operation is done by a thread of the host, which "
                              "a replay would not reach: submit it on a stream that is not");
    /* L1 pairs L1a: by default the write comes behind a fence for the whole system. */
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, stream_write_64, stream,
                           (CUdeviceptr)(uintptr_t)&ticket->words->come[ticket->comes],
                           ticket->number, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status == TUTTI_OK)
        ticket->comes++;
    cuda_context_leave(driver, pushed);
    return status;
}

static enum tutti_status context_of(const struct cuda_driver *driver, CUstream stream,
                                    CUcontext *context)
{
    return CUDA_CALL(driver, stream_context, stream, context);
}

/* The devices' places, each once. */
static enum tutti_status devices_note(struct cuda_ticket *ticket, const int *devices, int count)
{
    for (int i = 0; i < count; i++) {
        int place = cuda_place_of_device(ticket->stage, devices[i]), known = 0;
        while (known < ticket->devices && ticket->places[known] != place)
            known++;
        if (known == CUDA_TICKET_STREAMS)
            return error_set(TUTTI_ERR_INVALID, "tensors of more than %d devices in one call",
                             CUDA_TICKET_STREAMS);
        ticket->places[known] = (uint8_t)place;
        ticket->devices += known == ticket->devices;
    }
    return TUTTI_OK;
}

static enum tutti_status ticket_begin(struct cuda_stage *stage, struct cuda_ticket *ticket,
                                      const int *devices, int count, tutti_stream_t stream)
{
    CUcontext context;
    enum tutti_status status = devices_note(ticket, devices, count);
    if (status != TUTTI_OK)
        return status;
    if (!is_each_devices(stream)) {
        status = context_of(stage->driver, cuda_stream_of(stream), &context);
        return status == TUTTI_OK ? come_enqueue(stage, ticket, context, cuda_stream_of(stream))
                                  : status;
    }
    for (int i = 0; i < ticket->devices && status == TUTTI_OK; i++)
        status = come_enqueue(stage, ticket, stage->places[ticket->places[i]].context,
                              cuda_stream_of(stream));
    return status;
}

enum tutti_status cuda_ticket_take(struct cuda_stage *stage, const int *devices, int count,
                                   tutti_stream_t stream, struct cuda_ticket **ticket)
{
    pthread_mutex_lock(&stage->lock);
    enum tutti_status status = ticket_find(stage, ticket);
    if (status == TUTTI_OK)
        stage->out++;
    pthread_mutex_unlock(&stage->lock);
    if (status != TUTTI_OK)
        return status;
    (*ticket)->number++;
    (*ticket)->comes = (*ticket)->gates = (*ticket)->devices = 0;
    status = ticket_begin(stage, *ticket, devices, count, stream);
    if (status != TUTTI_OK) {
        (void)cuda_ticket_return(*ticket); /* not the last of a closed group: its owner calls */
        *ticket = NULL;
    }
    return status;
}

bool cuda_ticket_come(struct cuda_ticket *ticket)
{
    for (int i = 0; i < ticket->comes; i++)
        if (order_load_acquire_u64(&ticket->words->come[i]) != ticket->number) /* L1a pairs L1 */
            return false;
    ticket->comes = 0; /* who takes it next need not read what the device wrote */
    return true;
}

static enum tutti_status gate_launch(struct cuda_ticket *ticket,
                                     const struct cuda_stage_place *place, CUstream stream,
                                     const struct cuda_patience *patience)
{
    const struct cuda_driver *driver = ticket->stage->driver;
    struct cuda_gate_launch launch = {.open = &ticket->words->open,
                                      .ended = &ticket->words->ended[ticket->gates],
                                      .forsaken = &ticket->words->forsaken,
                                      .calls = ticket->stage->calls,
                                      .number = ticket->number,
                                      .timeout_ns = cuda_timeout_ns(patience->all_ms),
                                      .patience_ns = cuda_timeout_ns(patience->call_ms)};
    bool pushed;
    enum tutti_status status = cuda_context_enter(driver, place->context, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = uncaptured_check(driver, stream,
                              "the work would be done long before a replay: wait for it before the "
                              "capture begins, or on the stream that the graph is launched on");
    if (status == TUTTI_OK)
        status = cuda_launch_block(driver, place->gate, CUDA_GATE_THREADS, &launch, stream);
    cuda_context_leave(driver, pushed);
    return status;
}

/* Under the lock: gates of one ticket are counted. */
static enum tutti_status gates_launch(struct cuda_ticket *ticket, tutti_stream_t stream,
                                      const struct cuda_patience *patience, bool *full)
{
    struct cuda_stage *stage = ticket->stage;
    const bool each = is_each_devices(stream);
    const int count = each ? ticket->devices : 1;
    enum tutti_status status = TUTTI_OK;
    CUcontext context;
    int place = -1;
    *full = ticket->gates + count > CUDA_TICKET_GATES;
    if (*full)
        return TUTTI_OK;
    if (!each)
        status = context_of(stage->driver, cuda_stream_of(stream), &context);
    if (!each && status == TUTTI_OK)
        status = cuda_context_open(stage, context, &place);
    for (int i = 0; i < count && status == TUTTI_OK; i++) {
        if (each)
            place = ticket->places[i];
        status = gate_launch(ticket, &stage->places[place], cuda_stream_of(stream), patience);
        if (status == TUTTI_OK && ticket->gates++ == 0)
            order_fetch_add_relaxed_u32(&awaited, 1);
    }
    return status;
}

enum tutti_status cuda_ticket_wait(struct cuda_ticket *ticket, tutti_stream_t stream,
                                   const struct cuda_patience *patience, bool *full)
{
    pthread_mutex_lock(&ticket->stage->lock); /* which the group's thread may need */
    cuda_stage_call_begin(ticket->stage);
    enum tutti_status status = gates_launch(ticket, stream, patience, full);
    cuda_stage_call_end(ticket->stage);
    pthread_mutex_unlock(&ticket->stage->lock);
    return status;
}

bool cuda_ticket_forsaken(const struct cuda_ticket *ticket)
{
    return order_load_acquire_u32(&ticket->words->forsaken) == ticket->number; /* L6a pairs L6 */
}

void cuda_ticket_open(struct cuda_ticket *ticket)
{
    order_store_release_u32(&ticket->words->open, ticket->number); /* L2 pairs the gate's L2a */
}

bool cuda_ticket_return(struct cuda_ticket *ticket)
{
    struct cuda_stage *stage = ticket->stage;
    pthread_mutex_lock(&stage->lock);
    if (ticket->gates)
        order_fetch_add_relaxed_u32(&awaited, UINT32_MAX);
    ticket_idle(stage, ticket);
    bool last = --stage->out == 0 && stage->closed;
    pthread_mutex_unlock(&stage->lock);
    return last;
}
