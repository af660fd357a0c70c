/* SPDX-License-Identifier: MIT */
#include "cuda/comm/engines.h"

#include "base/error.h"
#include "cuda/comm/group_internal.h"

static enum tutti_status event_make(const struct cuda_group *group, CUevent *event)
{
    return *event ? TUTTI_OK
                  : CUDA_CALL(group->driver, event_create, event, CU_EVENT_DISABLE_TIMING);
}

/* Goes on where a former call has failed. */
static enum tutti_status streams_make(struct cuda_group *group, int count)
{
    struct cuda_engines *engines = &group->engines;
    enum tutti_status status = event_make(group, &engines->fork);
    for (int c = engines->count; c < count && status == TUTTI_OK; c++) {
        if (!engines->streams[c])
            status = CUDA_CALL(group->driver, stream_create, &engines->streams[c],
                               CU_STREAM_NON_BLOCKING, 0);
        if (status == TUTTI_OK)
            status = event_make(group, &engines->joins[c]);
        engines->count = status == TUTTI_OK ? c + 1 : c;
    }
    return status;
}

enum tutti_status cuda_engines_ensure(struct cuda_group *group, int copies, CUstream stream)
{
    const int count = copies < CUDA_COPY_CHAINS ? copies - 1 : CUDA_COPY_CHAINS - 1;
    struct cuda_visit visit;
    uint64_t capture = 0;
    if (__builtin_expect(group->engines.count >= count, 1))
        return TUTTI_OK;
    enum tutti_status status = cuda_visit_begin(group->driver, group->resources->context, &visit);
    if (status != TUTTI_OK)
        return status;
    status = cuda_capture_of(group->driver, stream, &capture, NULL);
    if (status == TUTTI_OK && !capture)
        status = streams_make(group, count);
    cuda_visit_end(group->driver, &visit);
    return status;
}

/* ---- copies on streams ----------------------------------------------------------------------- */

static enum tutti_status copy_on(const struct cuda_group *group, const struct cuda_copies *copies,
                                 int i, CUstream stream)
{
    return CUDA_CALL(group->driver, memcpy_async, copies->copies[i].to, copies->copies[i].from,
                     copies->bytes, stream);
}

/* Also after a failure, so that what follows on the stream waits for what was enqueued. */
static enum tutti_status chains_join(const struct cuda_group *group, CUstream stream, int chains,
                                     enum tutti_status status)
{
    const struct cuda_engines *engines = &group->engines;
    for (int c = 0; c < chains - 1; c++) {
        enum tutti_status joined =
            CUDA_CALL(group->driver, event_record, engines->joins[c], engines->streams[c]);
        if (joined == TUTTI_OK)
            joined = CUDA_CALL(group->driver, stream_wait_event, stream, engines->joins[c], 0);
        status = status == TUTTI_OK ? joined : status;
    }
    return status;
}

enum tutti_status cuda_copies_enqueue(const struct cuda_group *group, CUstream stream,
                                      const struct cuda_copies *copies)
{
    const struct cuda_engines *engines = &group->engines;
    const int chains = copies->count < CUDA_COPY_CHAINS ? copies->count : CUDA_COPY_CHAINS;
    enum tutti_status status = TUTTI_OK;
    if (chains > 1)
        status = CUDA_CALL(group->driver, event_record, engines->fork, stream);
    for (int c = 0; c < chains - 1 && status == TUTTI_OK; c++)
        status = CUDA_CALL(group->driver, stream_wait_event, engines->streams[c], engines->fork, 0);
    for (int i = 0; i < copies->count && status == TUTTI_OK; i++)
        status = copy_on(group, copies, i, i % chains ? engines->streams[i % chains - 1] : stream);
    return chains_join(group, stream, chains, status);
}

/* Sets *node to the one node on which the stream's next node depends. */
static enum tutti_status tip_read(const struct cuda_group *group, CUstream stream,
                                  CUgraphNode *node)
{
    CUstreamCaptureStatus state;
    const CUgraphNode *nodes = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t count = 0;
    uint64_t id;
    const enum tutti_status status = CUDA_CALL(group->driver, stream_capture_info, stream, &state,
                                               &id, NULL, &nodes, &edges, &count);
    if (status == TUTTI_OK)
        *node = nodes[0];
    return status;
}

/* Behind the first node, in the same chains. A stream that waits for an event of a capture would
 * stay in the capture until its end, so edges are set instead. */
enum tutti_status cuda_copies_capture(const struct cuda_group *group, CUstream stream,
                                      const struct cuda_copies *copies)
{
    const int chains = copies->count < CUDA_COPY_CHAINS ? copies->count : CUDA_COPY_CHAINS;
    CUgraphNode ends[CUDA_COPY_CHAINS], first = NULL;
    enum tutti_status status = chains > 1 ? tip_read(group, stream, &first) : TUTTI_OK;
    for (int i = 0; i < copies->count && status == TUTTI_OK; i++) {
        const int c = i % chains;
        CUgraphNode *before = i < chains ? &first : &ends[c];
        if (i > 0)
            status = CUDA_CALL(group->driver, stream_capture_depend, stream, before, NULL, 1,
                               CU_STREAM_SET_CAPTURE_DEPENDENCIES);
        if (status == TUTTI_OK)
            status = copy_on(group, copies, i, stream);
        if (status == TUTTI_OK && chains > 1)
            status = tip_read(group, stream, &ends[c]);
    }
    return status == TUTTI_OK && chains > 1
               ? CUDA_CALL(group->driver, stream_capture_depend, stream, ends, NULL, (size_t)chains,
                           CU_STREAM_SET_CAPTURE_DEPENDENCIES)
               : status;
}

void cuda_engines_close(struct cuda_group *group)
{
    struct cuda_engines *engines = &group->engines;
    for (int c = 0; c < CUDA_COPY_CHAINS - 1; c++) {
        if (engines->streams[c])
            group->driver->stream_destroy(engines->streams[c]);
        if (engines->joins[c])
            group->driver->event_destroy(engines->joins[c]);
    }
    if (engines->fork)
        group->driver->event_destroy(engines->fork);
}
