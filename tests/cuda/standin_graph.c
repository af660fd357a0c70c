/* SPDX-License-Identifier: MIT */
/* The stand-in's graphs: captured from streams, run node by node in the order of capture, which
 * never goes against the edges. User objects. */
#include "standin_internal.h"

#include <stdlib.h>
#include <string.h>

enum { OWNED_MAX = 64 };

struct user_object {
    struct object object;
    void *pointer;
    CUhostFn destroy;
    unsigned references;
};

/* References of a graph or an executable one. */
struct owned {
    struct user_object *objects[OWNED_MAX];
    unsigned references[OWNED_MAX];
    size_t count;
};

struct graph {
    struct object object;
    uint64_t id;
    bool capturing, spoiled;
    CUstreamCaptureMode mode;
    pthread_t thread; /* that began the capture */
    struct stream *origin;
    struct node *first, **last;
    struct owned owned;
};

struct exec {
    struct object object;
    struct work *works;
    size_t count;
    struct owned owned;
    unsigned running;
    bool destroyed;
};

static uint64_t last_id;

/* ---- user objects ---------------------------------------------------------------------------- */

struct destruction {
    CUhostFn destroy;
    void *pointer;
};

static void *destroy_user_object(void *argument)
{
    struct destruction destruction = *(struct destruction *)argument;
    free(argument);
    destruction.destroy(destruction.pointer);
    pthread_mutex_lock(&standin_lock);
    standin_destructors--;
    pthread_cond_broadcast(&standin_changed);
    pthread_mutex_unlock(&standin_lock);
    return NULL;
}

/* The destructor runs in a thread of its own, as with a device. */
static void drop(struct user_object *object, unsigned references)
{
    object->references -= references;
    if (object->references)
        return;
    struct destruction *destruction = calloc(1, sizeof *destruction);
    pthread_t thread;
    if (!destruction)
        abort();
    *destruction = (struct destruction){object->destroy, object->pointer};
    standin_object_destroy(object);
    standin_destructors++;
    if (pthread_create(&thread, NULL, destroy_user_object, destruction) != 0)
        abort();
    pthread_detach(thread);
}

static void drop_owned(struct owned *owned)
{
    for (size_t i = 0; i < owned->count; i++)
        drop(owned->objects[i], owned->references[i]);
    owned->count = 0;
}

CUresult cuUserObjectCreate(CUuserObject *created, void *pointer, CUhostFn destroy,
                            unsigned references, unsigned flags)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS &&
        (!destroy || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct user_object *object = standin_object_create(OBJECT_USER_OBJECT, sizeof *object);
    object->pointer = pointer;
    object->destroy = destroy;
    object->references = references;
    pthread_mutex_unlock(&standin_lock);
    *created = (CUuserObject)object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned references)
{
    CUresult result = standin_enter(__func__);
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS && !standin_object_is(handle, OBJECT_USER_OBJECT))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        ((struct user_object *)handle)->references += references;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned references)
{
    CUresult result = standin_enter(__func__);
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS && (!standin_object_is(handle, OBJECT_USER_OBJECT) ||
                                   ((struct user_object *)handle)->references < references))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        drop((struct user_object *)handle, references);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned references,
                                 unsigned flags)
{
    CUresult result = standin_enter(__func__);
    struct graph *graph = (struct graph *)graph_handle;
    struct user_object *object = (struct user_object *)handle;
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS &&
        (!standin_object_is(graph, OBJECT_GRAPH) ||
         !standin_object_is(object, OBJECT_USER_OBJECT) || graph->owned.count == OWNED_MAX))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        graph->owned.objects[graph->owned.count] = object;
        graph->owned.references[graph->owned.count++] = references;
        if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
            object->references += references;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* ---- capture --------------------------------------------------------------------------------- */

static bool add_tip(struct node **tips, size_t *count, struct node *node)
{
    for (size_t i = 0; i < *count; i++)
        if (tips[i] == node)
            return true;
    if (*count == STANDIN_DEPENDENCIES)
        return false;
    tips[(*count)++] = node;
    return true;
}

void standin_capture_into(struct graph *graph, struct stream *stream, const struct work *work)
{
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        abort();
    node->work = *work;
    memcpy(node->dependencies, stream->tips, sizeof node->dependencies);
    node->dependency_count = stream->tip_count;
    *graph->last = node;
    graph->last = &node->next;
    stream->tips[0] = node;
    stream->tip_count = 1;
}

uint64_t standin_capture_id(const struct graph *graph)
{
    return graph ? graph->id : 0;
}

void standin_capture_spoil(struct graph *graph)
{
    graph->spoiled = true;
}

CUresult standin_capture_join(struct stream *stream, const struct event *event)
{
    for (struct object *object = standin_objects(); object; object = object->next) {
        struct graph *graph = (struct graph *)object;
        if (object->kind != OBJECT_GRAPH || graph->id != event->capture || !graph->capturing)
            continue;
        if (stream->capture && stream->capture != graph)
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        stream->capture = graph;
        for (size_t i = 0; i < event->tip_count; i++)
            if (!add_tip(stream->tips, &stream->tip_count, event->tips[i]))
                return CUDA_ERROR_INVALID_VALUE;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_CAPTURED_EVENT;
}

/* What the thread wants to be kept from. */
static _Thread_local CUstreamCaptureMode caution = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUresult result = standin_enter(__func__);
    CUstreamCaptureMode before = caution;
    if (result != CUDA_SUCCESS)
        return result;
    caution = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

bool standin_captures_allow(void)
{
    bool allowed = true;
    if (caution == CU_STREAM_CAPTURE_MODE_RELAXED)
        return true;
    for (struct object *object = standin_objects(); object; object = object->next) {
        struct graph *graph = (struct graph *)object;
        if (object->kind != OBJECT_GRAPH || !graph->capturing ||
            graph->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
            ((graph->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
              caution == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) &&
             !pthread_equal(graph->thread, pthread_self())))
            continue;
        graph->spoiled = true;
        allowed = false;
    }
    return allowed;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(handle, &result);
    if (stream && (stream->capture || handle == NULL || handle == CU_STREAM_LEGACY))
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream && result == CUDA_SUCCESS) {
        struct graph *graph = standin_object_create(OBJECT_GRAPH, sizeof *graph);
        graph->id = ++last_id;
        graph->capturing = true;
        graph->mode = mode;
        graph->thread = pthread_self();
        graph->origin = stream;
        graph->last = &graph->first;
        stream->capture = graph;
        stream->tip_count = 0;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

static void destroy_graph(struct graph *graph)
{
    for (struct node *node = graph->first, *next; node; node = next) {
        next = node->next;
        free(node);
    }
    drop_owned(&graph->owned);
    standin_object_destroy(graph);
}

/* All streams of the capture are free again. */
static void end_capture(struct graph *graph)
{
    graph->capturing = false;
    for (struct object *object = standin_objects(); object; object = object->next) {
        struct stream *stream = (struct stream *)object;
        if (object->kind == OBJECT_STREAM && stream->capture == graph) {
            stream->capture = NULL;
            stream->tip_count = 0;
        }
    }
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *captured)
{
    CUresult result = standin_enter(__func__);
    *captured = NULL;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(handle, &result);
    struct graph *graph = stream ? stream->capture : NULL;
    if (stream && !graph)
        result = CUDA_ERROR_ILLEGAL_STATE;
    else if (stream && graph->origin != stream)
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (stream && result == CUDA_SUCCESS) {
        end_capture(graph);
        if (graph->spoiled) {
            destroy_graph(graph);
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        } else {
            *captured = (CUgraph)graph;
        }
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, uint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *dependency_count)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream_anywhere(handle, &result);
    struct graph *capture = stream ? stream->capture : NULL;
    *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture && id)
        *id = capture->id;
    if (capture && graph)
        *graph = (CUgraph)capture;
    if (capture && dependencies)
        *dependencies = (const CUgraphNode *)stream->tips;
    if (capture && edges)
        *edges = NULL;
    if (capture && dependency_count)
        *dependency_count = stream->tip_count;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              unsigned flags)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && edges)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(handle, &result);
    if (stream && !stream->capture)
        result = CUDA_ERROR_ILLEGAL_STATE;
    if (stream && result == CUDA_SUCCESS) {
        if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
            stream->tip_count = 0;
        for (size_t i = 0; i < count; i++)
            if (!add_tip(stream->tips, &stream->tip_count, (struct node *)dependencies[i]))
                result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode *dependencies,
                                       CUgraphEdgeData *edges, size_t *count)
{
    CUresult result = standin_enter(__func__);
    const struct node *node = (const struct node *)handle;
    (void)edges;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    for (size_t i = 0; dependencies && i < *count && i < node->dependency_count; i++)
        dependencies[i] = (CUgraphNode)node->dependencies[i];
    if (!dependencies || *count > node->dependency_count)
        *count = node->dependency_count;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

/* ---- run ------------------------------------------------------------------------------------- */

CUresult cuGraphInstantiateWithFlags(CUgraphExec *instance, CUgraph handle,
                                     unsigned long long flags)
{
    CUresult result = standin_enter_unsafe(__func__);
    struct graph *graph = (struct graph *)handle;
    (void)flags;
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS && (!standin_object_is(graph, OBJECT_GRAPH) || graph->capturing))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct exec *exec = standin_object_create(OBJECT_EXEC, sizeof *exec);
        for (struct node *node = graph->first; node; node = node->next)
            exec->count++;
        exec->works = calloc(exec->count + 1, sizeof *exec->works);
        size_t at = 0;
        for (struct node *node = graph->first; node; node = node->next)
            exec->works[at++] = node->work;
        exec->owned = graph->owned;
        for (size_t i = 0; i < exec->owned.count; i++)
            exec->owned.objects[i]->references += exec->owned.references[i];
        *instance = (CUgraphExec)exec;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* There is nothing to prepare. */
CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(stream_handle, &result);
    if (stream && (!standin_object_is((struct exec *)handle, OBJECT_EXEC) || stream->capture))
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    CUresult result = standin_enter(__func__);
    struct exec *exec = (struct exec *)handle;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct stream *stream = standin_stream(stream_handle, &result);
    if (stream && (!standin_object_is(exec, OBJECT_EXEC) || stream->capture))
        result = CUDA_ERROR_INVALID_VALUE;
    if (stream && result == CUDA_SUCCESS) {
        standin_await_drains(stream);
        for (size_t i = 0; i < exec->count; i++)
            standin_enqueue(stream, &exec->works[i]);
        exec->running++;
        standin_enqueue(stream, &(struct work){.kind = WORK_END, .exec = exec});
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

static void finish_exec(struct exec *exec)
{
    if (!exec->destroyed || exec->running)
        return;
    drop_owned(&exec->owned);
    free(exec->works);
    free(exec);
}

void standin_exec_ran(struct exec *exec)
{
    exec->running--;
    finish_exec(exec);
}

/* What the graph owns lives until the graph runs no more. */
CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    CUresult result = standin_enter_unsafe(__func__);
    struct exec *exec = (struct exec *)handle;
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS && !standin_object_is(exec, OBJECT_EXEC))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        standin_object_forget(exec);
        exec->destroyed = true;
        finish_exec(exec);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = standin_enter_unsafe(__func__);
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS && !standin_object_is(graph, OBJECT_GRAPH))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        destroy_graph((struct graph *)graph);
    pthread_mutex_unlock(&standin_lock);
    return result;
}
