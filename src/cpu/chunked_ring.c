/* SPDX-License-Identifier: MIT */
/*
 * Chunked ring all-reduce, for ranks of which only neighbours are linked: each reads the arena of
 * the one before it alone, and looks at the flags of the one behind it.
 *
 * A piece is a chunk a rank. Chunk c sets out from the rank at place c of the ring as a partial
 * result in the accumulation type, gathers one input a step, and is rounded once by the last rank
 * that adds to it, which sends the result round again. So a rank takes 2 (N - 1) steps a piece; in
 * each it publishes what it has for the next rank (flag P1) and, once it has read what the one
 * before it published, says so (flag Q2). All ranks get the bits of one chain a chunk, which is not
 * the canonical tree: the one exception to it on a node.
 *
 * Nothing in the ring itself tells a rank how far the one behind it has come, so it publishes a
 * step only when the third one before that has been read, and ends when the last but one has. At
 * the start it awaits everybody's announcement: then all have left the operation before, whose
 * flags and places may be used again.
 */
#include "cpu/all_reduce.h"
#include "cpu/chunk.h"
#include "cpu/copy.h"
#include "cpu/ring.h"
#include "cpu/wait.h"
#include "point.h"
#include "ring_cut.h"

enum {
    AHEAD = 3, /* steps that are published and need not have been read */
};

/* A rank's way through an operation. */
struct course {
    struct cpu_group *group;
    const struct request *request;
    size_t first; /* element of the piece */
    size_t count; /* elements of it */
    size_t chunk;
    uint32_t first_step;
    uint32_t next; /* to be published; counted from 0 */
    size_t place;  /* of the last one published, in every rank's ring */
};

/* The chunk that set out from the rank so many places before this one. */
static int chunk_back(const struct cpu_group *group, int places)
{
    return (group->place + 2 * group->size - places) % group->size;
}

/* The rank behind has read step k. */
static enum tutti_status read_await(const struct course *course, uint32_t k)
{
    struct cpu_group *group = course->group;
    uint32_t step = course->first_step + k;
    return wait_header(group, group->after,
                       &group->arenas[group->after]->out_flags[step % LAYOUT_SLOTS].header, step,
                       course->request);
}

/* A place for what is published next. */
static enum tutti_status place_take(struct course *course)
{
    course->place =
        ring_take(course->group, course->chunk * reduce_partial_bytes(course->request->dtype));
    return course->next < AHEAD ? TUTTI_OK : read_await(course, course->next - AHEAD);
}

static void publish(struct course *course)
{
    struct cpu_group *group = course->group;
    uint32_t step = course->first_step + course->next++;
    size_t slot = step % LAYOUT_SLOTS;
    POINT("ring.filled");
    wait_void(&group->own->part_flags[slot].header, step);
    wait_publish(group, &group->own->in_flags[slot].header, step, course->request); /* P1 */
    POINT("ring.published");
}

/* Combines an input of chunk c with what has come of it, if anything, into what goes on. */
static void combine(struct course *course, int c, const void *partial, bool ends)
{
    struct cpu_group *group = course->group;
    const struct request *request = course->request;
    size_t width = request->element_bytes, first;
    size_t count = chunk_of(course->count, course->chunk, c, &first);
    unsigned char *ring = group->own->ring + course->place;
    const void *own = (const unsigned char *)request->send + (course->first + first) * width;
    const void *const in[] = {partial ? partial : own, own};
    request->reduce(&(struct reduce_call){
        .out = ends ? (unsigned char *)request->recv + (course->first + first) * width : ring,
        .copy = ends ? ring : NULL,
        .stream_out = !ends && group->far,
        .stream_copy = ends && group->far,
        .in = in,
        .n = partial ? 2 : 1,
        .partials = partial ? 1 : 0,
        .count = count,
        .scalar = request->scalar,
        .divisor = group->size,
        .out_partial = !ends,
    });
    if (group->far)
        order_drain_streams();
}

/* Takes the result of chunk c, and hands it on unless the next rank has it. */
static void take(struct course *course, int c, const unsigned char *result, bool on)
{
    struct cpu_group *group = course->group;
    size_t width = course->request->element_bytes, first;
    size_t bytes = chunk_of(course->count, course->chunk, c, &first) * width;
    unsigned char *recv = (unsigned char *)course->request->recv + (course->first + first) * width;
    group->isa->copy(recv, result, bytes);
    if (on)
        copy_in(group, group->own->ring + course->place, recv, bytes);
}

/* Reads step s of the piece from the rank before, and publishes the next one. */
static enum tutti_status step_run(struct course *course, int s)
{
    struct cpu_group *group = course->group;
    const struct layout_arena *before = group->arenas[group->before];
    uint32_t step = course->first_step + course->next - 1;
    size_t slot = step % LAYOUT_SLOTS;
    const int last = 2 * group->size - 3, turning = group->size - 2;
    const bool on = s < last;
    enum tutti_status status =
        wait_header(group, group->before, &before->in_flags[slot].header, step, course->request);
    size_t place = course->place;
    if (status == TUTTI_OK && on)
        status = place_take(course);
    if (status != TUTTI_OK)
        return status;
    int c = chunk_back(group, s + 1);
    if (s <= turning)
        combine(course, c, before->ring + place, s == turning);
    else
        take(course, c, before->ring + place, on);
    wait_publish(group, &group->own->out_flags[slot].header, step, course->request); /* Q2 */
    if (on)
        publish(course);
    return TUTTI_OK;
}

static enum tutti_status piece_run(struct course *course)
{
    enum tutti_status status = place_take(course);
    if (status != TUTTI_OK)
        return status;
    combine(course, course->group->place, NULL, false);
    publish(course);
    for (int s = 0; s < 2 * course->group->size - 2; s++) {
        status = step_run(course, s);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

/* One rank: its input, rounded. */
static void alone(const struct request *request)
{
    request->reduce(&(struct reduce_call){
        .out = request->recv,
        .in = &request->send,
        .n = 1,
        .count = request->count,
        .scalar = request->scalar,
        .divisor = 1,
    });
}

enum tutti_status chunked_ring_pieces(struct cpu_group *group, const struct request *request)
{
    static_assert((int)RING_CUT_LINE_BYTES == (int)LAYOUT_LINE, "chunks are whole lines");
    const size_t piece =
        (size_t)ring_cut_make(request->count, (uint64_t)group->size, request->element_bytes,
                              reduce_partial_bytes(request->dtype))
            .piece;
    struct course course = {.group = group, .request = request, .first_step = group->step + 1};
    if (group->size == 1) {
        alone(request);
        return TUTTI_OK;
    }
    enum tutti_status status = wait_all_enter(group, request);
    for (; course.first < request->count && status == TUTTI_OK; course.first += piece) {
        size_t left = request->count - course.first;
        course.count = left < piece ? left : piece;
        course.chunk = chunk_elements(course.count, group->size, request->element_bytes);
        status = piece_run(&course);
    }
    if (status == TUTTI_OK)
        status = read_await(&course, course.next - 2);
    group->step += course.next;
    return status;
}
