/* SPDX-License-Identifier: MIT */
/*
 * Sums of several hosts: hierarchy.h says which partial results there are.
 *
 * all_reduce, reduce. A piece of the operands is dealt out among the ranks of each host, its
 * owners there; a short one belongs to one rank of each host. A piece takes these steps:
 *   1. In the node each owner gets its part of all inputs, and computes the partial results.
 *   2. Owners of the same elements exchange these. Who gets them combines them: all hosts if the
 *      piece is short (one hop); else each host its share, which it returns (two hops); the root's
 *      host in a reduce.
 *   3. In the node the owners pass the results on.
 * If hosts are many, step 2 of a short piece takes rounds, in which what a host knows doubles: the
 * time of a message grows with their logarithm, and so does the number of messages.
 * Three pieces are under way: step 1 of one, step 2 of the piece before, step 3 of the one before
 * that. All ranks begin the messages of their pieces in the same order.
 *
 * reduce_scatter. On each host one rank owns the block of a rank; on that rank's host it is the
 * rank itself. It sends the partial results to that rank.
 */
#include "comm/hierarchy_internal.h"
#include "comm/run.h"

#include <string.h>

enum {
    ALIGN = 16,                /* parts begin at multiples of so many elements */
    PIECE_BYTES = 1024 * 1024, /* of an operand */
    SHORT_BYTES = 8 * 1024,    /* up to here a piece has one owner on each host */
    SLOTS = 3,                 /* pieces under way */
};

/* With a latency of 20 us and 3 us a message, as TCP has it, both ways take as long among 32 hosts.
 * (16 ranks with a host id each on 2 cores, Open MPI: 8 B 52 us, in rounds 63; 4 KiB 339 and 227.)
 */
int hierarchy_rounds_from = 32;

/* ---- partial results ------------------------------------------------------------------------- */

/* Computes the partial results of this host's subtrees, one behind the other in `out`. in[i]: the
 * elements of the node's rank i. */
static void partials_make(const struct hierarchy *self, const struct request *request,
                          const unsigned char *const *in, size_t count, unsigned char *out)
{
    const size_t width = reduce_partial_bytes(request->dtype);
    const uint64_t env = reduce_env_begin();
    for (int t = 0; t < self->subtree_count; t++) {
        const struct hierarchy_subtree *tree = &self->subtrees[t];
        const void *leaves[NODE_RANKS];
        if (tree->host != self->host)
            continue;
        for (int i = 0; i < tree->count; i++)
            leaves[i] = in[self->local_of[self->comm->config.leaf_order[tree->first + i]]];
        const struct reduce_call call = {.out = out,
                                         .in = leaves,
                                         .n = tree->count,
                                         .count = count,
                                         .scalar = request->scalar,
                                         .divisor = self->comm->world_size,
                                         .out_partial = 1};
        request->reduce(&call);
        out += count * width;
    }
    reduce_env_end(env);
}

struct combining {
    const struct hierarchy *self;
    const struct request *request;
    unsigned char *const *partials; /* [subtree] */
    size_t count;
    int next; /* subtree */
};

/* Combines the leaves `first` to first + count - 1. `out`: NULL for a partial result, which is
 * written over one of those that it is made of. */
static unsigned char *combine(struct combining *work, int first, int count, void *out)
{
    const struct hierarchy_subtree *tree = &work->self->subtrees[work->next];
    if (tree->first == first && tree->count == count)
        return work->partials[work->next++];
    const int left = hierarchy_left_leaves(count);
    unsigned char *const low = combine(work, first, left, NULL);
    unsigned char *const high = combine(work, first + left, count - left, NULL);
    const void *const in[] = {low, high};
    const struct reduce_call call = {.out = out ? out : low,
                                     .in = in,
                                     .n = 2,
                                     .count = work->count,
                                     .divisor = work->self->comm->world_size,
                                     .partials = 2,
                                     .out_partial = !out};
    work->request->reduce(&call);
    return low;
}

/* The result of `count` elements, from the partial results of all subtrees, which it destroys. */
static void result_make(const struct hierarchy *self, const struct request *request,
                        unsigned char *const *partials, size_t count, void *out)
{
    struct combining work = {
        .self = self, .request = request, .partials = partials, .count = count};
    const uint64_t env = reduce_env_begin();
    combine(&work, 0, self->comm->world_size, out);
    reduce_env_end(env);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

enum sharing { ALL_HOSTS, EACH_HOST, ONE_HOST }; /* who combines */

struct sum_piece {
    size_t first, count;         /* elements of the operand */
    size_t own_first, own_count; /* of these: this rank's part */
    unsigned char *raw;          /* the node's inputs of that part */
    unsigned char *partials;     /* this host's */
    unsigned char *theirs;       /* the other hosts', part by part */
    unsigned char *result;       /* where the piece's result goes */
    struct fabric_batch *sums, *results;
};

struct sum {
    struct hierarchy *self;
    struct request *request;
    size_t width, partial; /* bytes of an element */
    size_t whole;          /* elements of a piece */
    enum sharing sharing;
    bool spread;         /* all ranks of a host own a part */
    bool in_rounds;      /* the piece, which is short, is exchanged so */
    int known;           /* hosts from this one on whose partial results are here */
    int root;            /* of a reduce; else -1 */
    size_t count, turns; /* pieces, and turns of three steps of a piece each */
    size_t turn;         /* step 1 of piece `turn`, step 2 of the one before, and so on */
    struct sum_piece pieces[SLOTS];
};
static_assert(sizeof(struct sum) <= HIERARCHY_OWN_BYTES, "a state has room for it");

static struct sum *sum_of(struct hierarchy_state *state)
{
    return (struct sum *)(void *)state->own;
}

/* The piece whose step `step` is due in this turn; NULL: none is. */
static struct sum_piece *piece_due(struct sum *sum, size_t step)
{
    const size_t behind = step - 1;
    return sum->turn >= behind && sum->turn - behind < sum->count
               ? &sum->pieces[(sum->turn - behind) % SLOTS]
               : NULL;
}

/* The first element of part i of n. */
static size_t part_at(size_t count, int n, int i)
{
    return i == n ? count : count * (size_t)i / (size_t)n / ALIGN * ALIGN;
}

/* The owner on a host that has all of a short piece. */
static int lead_of(const struct sum *sum, int host)
{
    const struct hierarchy *self = sum->self;
    return sum->root >= 0 && self->host_of[sum->root] == host ? self->local_of[sum->root] : 0;
}

/* The owner of an element on a host; *end: the end of its part. */
static int owner_of(const struct sum *sum, const struct sum_piece *piece, int host, size_t at,
                    size_t *end)
{
    const int n = hierarchy_ranks(sum->self, host);
    int local = 0;
    *end = piece->count;
    if (!sum->spread)
        return hierarchy_rank(sum->self, host, lead_of(sum, host));
    while ((*end = part_at(piece->count, n, local + 1)) <= at)
        local++;
    return hierarchy_rank(sum->self, host, local);
}

/* Some elements of this rank's part that have one owner on each host, and one host or all that
 * combine them. */
struct sum_segment {
    size_t first, count;     /* from the piece's first */
    bool combines;           /* this rank does */
    int host;                /* that combines; of ALL_HOSTS: this rank's */
    int owners[WORLD_RANKS]; /* [host] */
};

/* Finds the segment that begins at `at`. */
static void segment_find(const struct sum *sum, const struct sum_piece *piece, size_t at,
                         struct sum_segment *segment)
{
    const struct hierarchy *self = sum->self;
    size_t end = piece->own_first + piece->own_count, begin = piece->own_first;
    for (int host = 0; host < self->hosts; host++) {
        size_t theirs;
        segment->owners[host] = owner_of(sum, piece, host, at, &theirs);
        if (theirs < end)
            end = theirs;
        const int n = hierarchy_ranks(self, host);
        for (int i = 1; sum->spread && i < n; i++)
            if (part_at(piece->count, n, i) <= at && part_at(piece->count, n, i) > begin)
                begin = part_at(piece->count, n, i);
    }
    segment->first = at;
    segment->host = sum->sharing == ONE_HOST ? self->host_of[sum->root] : self->host;
    if (sum->sharing == EACH_HOST) {
        segment->host = 0;
        while (begin + part_at(end - begin, self->hosts, segment->host + 1) <= at)
            segment->host++;
        end = begin + part_at(end - begin, self->hosts, segment->host + 1);
    }
    segment->count = end - at;
    segment->combines = segment->host == self->host;
}

#define FOR_SEGMENTS(sum, piece, segment)                                                          \
    for (size_t at_ = (piece)->own_first, end_ = at_ + (piece)->own_count;                         \
         at_ < end_ && (segment_find(sum, piece, at_, segment), true);                             \
         at_ = (segment)->first + (segment)->count)

/* Where this host's partial result `index` of a segment lies. */
static unsigned char *own_partial(const struct sum *sum, const struct sum_piece *piece,
                                  const struct sum_segment *segment, int index)
{
    return piece->partials +
           ((size_t)index * piece->own_count + segment->first - piece->own_first) * sum->partial;
}

/* Step 1 in the node. */
static enum tutti_status inputs_get(struct hierarchy_state *state, const struct sum_piece *piece)
{
    const struct hierarchy *self = state->self;
    const struct sum *sum = sum_of(state);
    const size_t width = sum->width, own = piece->own_count * width;
    const unsigned char *send = (const unsigned char *)sum->request->send + piece->first * width;
    const int n = hierarchy_ranks(self, self->host);
    struct hierarchy_node_blocks *sent = &state->sent, *received = &state->received;
    if (n == 1)
        return TUTTI_OK;
    if (!sum->spread)
        return hierarchy_node_bytes(state, TUTTI_COLLECTIVE_GATHER, send, piece->raw,
                                    piece->count * width, lead_of(sum, self->host));
    for (int i = 0; i < n; i++) {
        sent->firsts[i] = part_at(piece->count, n, i) * width;
        sent->counts[i] = part_at(piece->count, n, i + 1) * width - sent->firsts[i];
        received->firsts[i] = (size_t)i * own;
        received->counts[i] = own;
    }
    const struct coll_args args = {
        .send = send,
        .recv = piece->raw,
        .dtype = TUTTI_UINT8,
        .send_blocks = {.counts = sent->counts, .displacements = sent->firsts},
        .recv_blocks = {.counts = received->counts, .displacements = received->firsts},
    };
    return hierarchy_node(state, TUTTI_COLLECTIVE_ALL_TO_ALL_V, &args);
}

/* The partial results of this rank's part, whose inputs have come. */
static void piece_add(const struct sum *sum, const struct sum_piece *piece)
{
    const struct hierarchy *self = sum->self;
    const size_t width = sum->width;
    const unsigned char *in[NODE_RANKS] = {(const unsigned char *)sum->request->send +
                                           piece->first * width};
    const int n = hierarchy_ranks(self, self->host);
    for (int i = 0; n > 1 && i < n; i++)
        in[i] = piece->raw + (size_t)i * piece->own_count * width;
    if (piece->own_count)
        partials_make(self, sum->request, in, piece->own_count, piece->partials);
}

/* Step 2: the partial results leave. */
static enum tutti_status piece_exchange(struct hierarchy_state *state, struct sum_piece *piece)
{
    const struct hierarchy *self = state->self;
    const struct sum *sum = sum_of(state);
    struct sum_segment segment;
    unsigned char *theirs = piece->theirs;
    FOR_SEGMENTS(sum, piece, &segment)
    {
        const size_t bytes = segment.count * sum->partial;
        for (int host = 0; host < self->hosts; host++) {
            if (host == self->host)
                continue;
            if (sum->sharing == ALL_HOSTS || segment.host == host)
                for (int t = 0; t < self->subtrees_of[self->host]; t++)
                    hierarchy_add(state, segment.owners[host], true,
                                  own_partial(sum, piece, &segment, t), bytes);
            for (int t = 0; segment.combines && t < self->subtrees_of[host]; t++) {
                hierarchy_add(state, segment.owners[host], false, theirs, bytes);
                theirs += bytes;
            }
        }
    }
    return hierarchy_start(state, &piece->sums);
}

/* The owners' rank of another host, for messages. */
static int partner_of(const struct sum *sum, const struct sum_piece *piece)
{
    size_t end;
    return owner_of(sum, piece, sum->self->host ? 0 : 1, piece->own_first, &end);
}

/* Puts the pointers to the partial results of a segment in the order of the subtrees. *theirs moves
 * on. */
static void partials_find(const struct sum *sum, const struct sum_piece *piece,
                          const struct sum_segment *segment, unsigned char **theirs,
                          unsigned char **partials)
{
    const struct hierarchy *self = sum->self;
    for (int host = 0; host < self->hosts; host++) {
        int index = 0;
        for (int t = 0; t < self->subtree_count; t++) {
            if (self->subtrees[t].host != host)
                continue;
            if (host == self->host) {
                partials[t] = own_partial(sum, piece, segment, index++);
            } else {
                partials[t] = *theirs;
                *theirs += segment->count * sum->partial;
            }
        }
    }
}

/* The other hosts' partial results have come. */
static enum tutti_status piece_combine(struct hierarchy_state *state, struct sum_piece *piece)
{
    const struct hierarchy *self = state->self;
    const struct sum *sum = sum_of(state);
    struct sum_segment segment;
    unsigned char *theirs = piece->theirs, *partials[WORLD_RANKS];
    FOR_SEGMENTS(sum, piece, &segment)
    {
        unsigned char *result = piece->result + segment.first * sum->width;
        const size_t bytes = segment.count * sum->width;
        if (segment.combines) {
            partials_find(sum, piece, &segment, &theirs, partials);
            result_make(self, sum->request, partials, segment.count, result);
        }
        for (int host = 0; sum->sharing == EACH_HOST && host < self->hosts; host++)
            if (host != self->host && (segment.combines || host == segment.host))
                hierarchy_add(state, segment.owners[host], segment.combines, result, bytes);
    }
    return hierarchy_start(state, &piece->results);
}

/* Step 3 in the node: the results have come. */
static enum tutti_status piece_end(struct hierarchy_state *state, const struct sum_piece *piece)
{
    const struct hierarchy *self = state->self;
    const struct sum *sum = sum_of(state);
    const size_t width = sum->width;
    const int n = hierarchy_ranks(self, self->host);
    const bool is_here = sum->root < 0 || self->host_of[sum->root] == self->host;
    struct hierarchy_node_blocks *node = &state->received;
    if (n == 1 || !is_here || (!sum->spread && sum->root >= 0))
        return TUTTI_OK;
    if (!sum->spread)
        return hierarchy_node_bytes(state, TUTTI_COLLECTIVE_BROADCAST, piece->result, piece->result,
                                    piece->count * width, 0);
    for (int i = 0; i < n; i++) {
        node->firsts[i] = part_at(piece->count, n, i) * width;
        node->counts[i] = part_at(piece->count, n, i + 1) * width - node->firsts[i];
    }
    const struct coll_args args = {
        .send = piece->result + piece->own_first * width,
        .recv = piece->result,
        .count = piece->own_count * width,
        .dtype = TUTTI_UINT8,
        .peer = sum->root < 0 ? 0 : self->local_of[sum->root],
        .recv_blocks = {.counts = node->counts, .displacements = node->firsts},
    };
    return hierarchy_node(
        state, sum->root < 0 ? TUTTI_COLLECTIVE_ALL_GATHER_V : TUTTI_COLLECTIVE_GATHER_V, &args);
}

/* Says where the piece lies that takes its slot in this turn. */
static void piece_place(const struct sum *sum, struct sum_piece *piece)
{
    const struct hierarchy *self = sum->self;
    const size_t total = sum->request->count;
    const int n = hierarchy_ranks(self, self->host);
    piece->first = sum->turn * sum->whole;
    piece->count = total - piece->first < sum->whole ? total - piece->first : sum->whole;
    piece->own_first = sum->spread ? part_at(piece->count, n, self->local) : 0;
    piece->own_count = sum->spread ? part_at(piece->count, n, self->local + 1) - piece->own_first
                       : self->local == lead_of(sum, self->host) ? piece->count
                                                                 : 0;
    if (sum->root < 0 || sum->root == self->comm->rank)
        piece->result = (unsigned char *)sum->request->recv + piece->first * sum->width;
    piece->sums = piece->results = NULL;
}

/* Gives each slot its memory. */
static enum tutti_status slots_reserve(struct sum *sum)
{
    struct hierarchy *self = sum->self;
    const size_t n = (size_t)hierarchy_ranks(self, self->host), total = (size_t)self->subtree_count;
    const size_t part = sum->spread ? sum->whole / n + (size_t)ALIGN : sum->whole;
    const size_t raw = n * part * sum->width, mine = (size_t)self->subtrees_of[self->host];
    const size_t others = total - mine; /* in rounds behind the own */
    const size_t sizes[] = {raw, (mine + (sum->in_rounds ? others : 0)) * part * sum->partial,
                            sum->in_rounds ? 0 : others * part * sum->partial,
                            sum->root >= 0 ? sum->whole * sum->width : 0};
    size_t bytes = 0, used = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        bytes += (sizes[i] + LAYOUT_LINE) * SLOTS;
    const enum tutti_status status = hierarchy_reserve(self, bytes);
    for (int slot = 0; slot < SLOTS && status == TUTTI_OK; slot++) {
        struct sum_piece *piece = &sum->pieces[slot];
        piece->raw = hierarchy_take(self, &used, sizes[0]);
        piece->partials = hierarchy_take(self, &used, sizes[1]);
        piece->theirs = hierarchy_take(self, &used, sizes[2]);
        piece->result = hierarchy_take(self, &used, sizes[3]);
    }
    return status;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* `partials` of the piece has those of this host, then of the next one, and so on around. */

static enum tutti_status turn_begin(struct hierarchy_state *state);
static enum tutti_status turn_end(struct hierarchy_state *state);

static int host_behind(const struct sum *sum, int by)
{
    return (sum->self->host + by) % sum->self->hosts;
}

/* The bytes of `count` hosts' partial results from the one that lies `by` hosts behind this one. */
static size_t round_bytes(const struct sum *sum, int by, int count)
{
    size_t partials = 0;
    for (int i = by; i < by + count; i++)
        partials += (size_t)sum->self->subtrees_of[host_behind(sum, i)];
    return partials * sum->pieces->count * sum->partial;
}

static enum tutti_status rounds_end(struct hierarchy_state *state)
{
    const struct hierarchy *self = state->self;
    struct sum *sum = sum_of(state);
    const struct sum_piece *piece = sum->pieces;
    unsigned char *partials[WORLD_RANKS];
    for (int i = 0; i < self->hosts; i++) {
        unsigned char *at = piece->partials + round_bytes(sum, 0, i);
        for (int t = 0; t < self->subtree_count; t++) {
            if (self->subtrees[t].host != host_behind(sum, i))
                continue;
            partials[t] = at;
            at += piece->count * sum->partial;
        }
    }
    if (piece->own_count)
        result_make(self, sum->request, partials, piece->count, piece->result);
    sum->turn = SLOTS - 1; /* that of the piece's last step */
    return turn_end(state);
}

/* Passes all that this host knows to a host before it, and gets as much from one behind it. */
static enum tutti_status round_begin(struct hierarchy_state *state)
{
    struct sum *sum = sum_of(state);
    const struct sum_piece *piece = sum->pieces;
    const int hosts = sum->self->hosts, known = sum->known, unknown = hosts - known;
    const int more = known < unknown ? known : unknown;
    const int to = host_behind(sum, hosts - known), from = host_behind(sum, known);
    const int sender = hierarchy_rank(sum->self, from, lead_of(sum, from));
    hierarchy_add(state, hierarchy_rank(sum->self, to, lead_of(sum, to)), true, piece->partials,
                  round_bytes(sum, 0, more));
    hierarchy_add(state, sender, false, piece->partials + round_bytes(sum, 0, known),
                  round_bytes(sum, known, more));
    sum->known += more;
    state->next = sum->known == hosts ? rounds_end : round_begin;
    return hierarchy_exchange(state, sender);
}

/* ---- the turns ------------------------------------------------------------------------------- */

static enum tutti_status turn_end(struct hierarchy_state *state)
{
    struct sum *sum = sum_of(state);
    const struct sum_piece *piece = piece_due(sum, 3);
    sum->turn++;
    state->next = turn_begin;
    return piece ? piece_end(state, piece) : TUTTI_OK;
}

static enum tutti_status turn_combine(struct hierarchy_state *state)
{
    struct sum *sum = sum_of(state);
    struct sum_piece *piece = piece_due(sum, 2);
    const enum tutti_status status = piece ? piece_combine(state, piece) : TUTTI_OK;
    piece = piece_due(sum, 3);
    if (piece)
        hierarchy_await(state, piece->results, partner_of(sum, piece));
    state->next = turn_end;
    return status;
}

static enum tutti_status turn_exchange(struct hierarchy_state *state)
{
    struct sum *sum = sum_of(state);
    struct sum_piece *piece = piece_due(sum, 1);
    enum tutti_status status = TUTTI_OK;
    if (piece)
        piece_add(sum, piece);
    if (piece && sum->in_rounds)
        return piece->own_count ? round_begin(state) : rounds_end(state);
    if (piece)
        status = piece_exchange(state, piece);
    piece = piece_due(sum, 2);
    if (piece)
        hierarchy_await(state, piece->sums, partner_of(sum, piece));
    state->next = turn_combine;
    return status;
}

static enum tutti_status turn_begin(struct hierarchy_state *state)
{
    struct sum *sum = sum_of(state);
    struct sum_piece *piece = piece_due(sum, 1);
    state->next = sum->turn < sum->turns ? turn_exchange : NULL;
    if (!piece)
        return TUTTI_OK;
    piece_place(sum, piece);
    return inputs_get(state, piece);
}

enum tutti_status hierarchy_sum(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    struct request *request = state->request;
    struct sum *sum = sum_of(state);
    const bool is_reduce = request->collective == TUTTI_COLLECTIVE_REDUCE;
    const size_t total = request->count, hosts = (size_t)self->hosts;
    *sum = (struct sum){
        .self = self,
        .request = request,
        .width = request->element_bytes,
        .partial = reduce_partial_bytes(request->dtype),
        .whole = PIECE_BYTES / request->element_bytes,
        .sharing = is_reduce                                     ? ONE_HOST
                   : request->choice.algo == TUTTI_ALGO_ONE_SHOT ? ALL_HOSTS
                                                                 : EACH_HOST,
        .spread = request->bytes > SHORT_BYTES,
        .root = is_reduce ? request->peer : -1,
        .known = 1,
    };
    sum->in_rounds =
        !sum->spread && sum->sharing == ALL_HOSTS && self->hosts >= hierarchy_rounds_from;
    if (total < sum->whole)
        sum->whole = total;
    sum->count = total ? (total + sum->whole - 1) / sum->whole : 0;
    sum->turns = sum->count ? sum->count + SLOTS - 1 : 0;
    enum tutti_status status = slots_reserve(sum);
    /* A part begins one segment, and each other host's part may. Those of a segment go to all other
     * hosts at most, whole or share by share, and theirs come for the share of this host. */
    const size_t segments = (size_t)self->comm->world_size - hosts + 1;
    const size_t mine = (size_t)self->subtrees_of[self->host];
    if (status == TUTTI_OK)
        status = hierarchy_room(self, segments * (mine * hosts + (size_t)self->subtree_count));
    return status == TUTTI_OK ? turn_begin(state) : status;
}

/* ---- reduce_scatter -------------------------------------------------------------------------- */

struct scatter {
    struct request *request;
    size_t width, partial;
    size_t first, longest; /* where the piece begins in each block; the bytes of the longest one */
    unsigned char *packed, *raw, *sums; /* scratch memory: for the owners, of the node, partials */
    struct hierarchy_blocks *blocks;    /* in bytes; in scratch memory */
    unsigned char **parts; /* [subtree]: partial results of this rank's block; in scratch memory */
};
static_assert(sizeof(struct scatter) <= HIERARCHY_OWN_BYTES, "a state has room for it");

static struct scatter *scatter_of(struct hierarchy_state *state)
{
    return (struct scatter *)(void *)state->own;
}

static size_t whole_of(const struct scatter *work)
{
    return PIECE_BYTES / work->request->element_bytes * work->width;
}

/* The bytes of a block in the piece. */
static size_t piece_bytes(const struct scatter *work, int rank)
{
    const size_t bytes = work->blocks->bytes[rank], first = work->first, most = whole_of(work);
    return bytes <= first ? 0 : bytes - first < most ? bytes - first : most;
}

static enum tutti_status scatter_exchange(struct hierarchy_state *state);
static enum tutti_status scatter_end(struct hierarchy_state *state);

/* Packs this rank's piece of all blocks, owner by owner, and passes them to the owners. `raw` gets
 * the pieces of this rank's blocks: of the node's rank 0, then of rank 1, and so on. */
static enum tutti_status scatter_pass(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    const struct scatter *work = scatter_of(state);
    const unsigned char *send = work->request->send;
    const int n = hierarchy_ranks(self, self->host);
    struct hierarchy_node_blocks *sent = &state->sent, *received = &state->received;
    size_t used = 0;
    for (int local = 0; local < n; local++) {
        sent->firsts[local] = used;
        for (int r = 0; r < self->comm->world_size; r++) {
            const size_t bytes = piece_bytes(work, r);
            if (hierarchy_keeper(self, self->host, r) != local || !bytes)
                continue;
            memcpy(work->packed + used, send + work->blocks->at[r] + work->first, bytes);
            used += bytes;
        }
        sent->counts[local] = used - sent->firsts[local];
    }
    for (int local = 0; local < n; local++) {
        received->counts[local] = sent->counts[self->local];
        received->firsts[local] = (size_t)local * sent->counts[self->local];
    }
    const struct coll_args args = {
        .send = work->packed,
        .recv = work->raw,
        .dtype = TUTTI_UINT8,
        .send_blocks = {.counts = sent->counts, .displacements = sent->firsts},
        .recv_blocks = {.counts = received->counts, .displacements = received->firsts},
    };
    state->next = scatter_exchange;
    return hierarchy_node(state, TUTTI_COLLECTIVE_ALL_TO_ALL_V, &args);
}

/* Makes the partial results of the blocks that this rank owns, one behind the other in `sums`, and
 * sends those of other hosts' ranks. *mine: those of its own block. Returns their end. */
static unsigned char *owned_add(struct hierarchy_state *state, unsigned char **mine)
{
    struct hierarchy *self = state->self;
    const struct scatter *work = scatter_of(state);
    unsigned char *partials = work->sums;
    size_t used = 0;
    *mine = NULL;
    for (int r = 0; r < self->comm->world_size; r++) {
        const unsigned char *in[NODE_RANKS];
        const size_t bytes = piece_bytes(work, r), count = bytes / work->width;
        if (hierarchy_keeper(self, self->host, r) != self->local || !count)
            continue;
        for (int i = 0; i < hierarchy_ranks(self, self->host); i++)
            in[i] = work->raw + state->received.firsts[i] + used;
        used += bytes;
        partials_make(self, work->request, in, count, partials);
        if (r == self->comm->rank)
            *mine = partials;
        for (int t = 0; t < self->subtrees_of[self->host]; t++) {
            if (self->host_of[r] != self->host)
                hierarchy_add(state, r, true, partials, count * work->partial);
            partials += count * work->partial;
        }
    }
    return partials;
}

static enum tutti_status scatter_exchange(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    struct scatter *work = scatter_of(state);
    const int rank = self->comm->rank;
    const size_t own = piece_bytes(work, rank) / work->width * work->partial;
    unsigned char *mine, *theirs = owned_add(state, &mine);
    for (int host = 0; host < self->hosts; host++) {
        for (int t = 0; t < self->subtree_count; t++) {
            if (self->subtrees[t].host != host)
                continue;
            if (host == self->host) {
                work->parts[t] = mine;
                mine += own;
                continue;
            }
            work->parts[t] = theirs;
            theirs += own;
            hierarchy_add(state, hierarchy_rank(self, host, hierarchy_keeper(self, host, rank)),
                          false, work->parts[t], own);
        }
    }
    state->next = scatter_end;
    return hierarchy_exchange(state, hierarchy_elsewhere(self));
}

/* The partial results of the own block have come. */
static enum tutti_status scatter_end(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    struct scatter *work = scatter_of(state);
    const size_t own = piece_bytes(work, self->comm->rank) / work->width;
    if (own)
        result_make(self, work->request, work->parts, own,
                    (unsigned char *)work->request->recv + work->first);
    work->first += whole_of(work);
    state->next = work->first < work->longest ? scatter_pass : NULL;
    return TUTTI_OK;
}

enum tutti_status hierarchy_sum_scatter(struct hierarchy_state *state)
{
    struct hierarchy *self = state->self;
    struct request *request = state->request;
    struct scatter *work = scatter_of(state);
    const size_t n = (size_t)hierarchy_ranks(self, self->host);
    struct hierarchy_blocks blocks;
    size_t piece = 0, owned = 0, used = 0;
    work->request = request;
    work->width = request->element_bytes;
    work->partial = reduce_partial_bytes(request->dtype);
    work->first = work->longest = 0;
    hierarchy_blocks(self, request, true, &blocks);
    work->blocks = &blocks;
    for (int r = 0; r < self->comm->world_size; r++) {
        piece += piece_bytes(work, r);
        if (hierarchy_keeper(self, self->host, r) == self->local)
            owned += piece_bytes(work, r);
        if (work->blocks->bytes[r] > work->longest)
            work->longest = work->blocks->bytes[r];
    }
    const size_t mine = (size_t)self->subtrees_of[self->host];
    const size_t total = (size_t)self->subtree_count;
    const size_t partials =
        (owned * mine + piece_bytes(work, self->comm->rank) * total) / work->width * work->partial;
    enum tutti_status status =
        hierarchy_reserve(self, sizeof blocks + total * sizeof *work->parts + piece + owned * n +
                                    partials + 5 * (size_t)LAYOUT_LINE);
    if (status == TUTTI_OK)
        status = hierarchy_room(self, (size_t)self->comm->world_size * (mine + 1) + total);
    if (status != TUTTI_OK)
        return status;
    work->blocks = memcpy(hierarchy_take(self, &used, sizeof blocks), &blocks, sizeof blocks);
    work->parts = (void *)hierarchy_take(self, &used, total * sizeof *work->parts);
    work->packed = hierarchy_take(self, &used, piece);
    work->raw = hierarchy_take(self, &used, owned * n);
    work->sums = hierarchy_take(self, &used, partials);
    state->next = NULL;
    return work->longest ? scatter_pass(state) : TUTTI_OK;
}
