/* SPDX-License-Identifier: MIT */
/*
 * Messages: the sends and receives of a group of calls, in one launch, and v-forms that copy. The
 * kernels differ in where the lengths of the messages are: exchange.cu, exchange_counted.cu. A
 * block serves one channel of one chain (exchange.h), or, if a limit of blocks leaves fewer blocks
 * than channels, several of them (exchange_turns.cuh). No channel waits for another one. So the
 * messages of a group progress together, in whatever order the peers have them.
 *
 * A channel is a stream of pieces from one rank to another. Its state is the number of pieces so
 * far, which both ends keep in their own arenas, and which goes on from launch to launch. Piece n
 * lies in slot n mod SLOTS of the channel in the receiver's arena, in byte lines (lines.cuh). The
 * first piece of a message has a header, a flagged line with the message's signature. An empty
 * message is a piece that has the header alone. Flags are numbers of pieces.
 *
 * A slot is free when it is written. The receiver's workers empty the lines that they have read. At
 * the end of a batch of pieces they arrive at a barrier of their block. The control warp makes a
 * fence and tells the sender how many pieces are emptied: the credit (Y1). Meanwhile the workers
 * take the next pieces. The sender fills piece n once the credit is n - SLOTS + 1 or more (Y1a).
 * In a launch a batch has a credit only if a later piece of the launch takes one of its slots. For
 * all else, a launch begins with a credit for all former launches, if more than half of the slots
 * have none at its end. So most small messages wait for no fence, and a sender waits at most until
 * the receiver has begun the launch half of the slots before. So no message needs the operations of
 * all ranks (operation.cuh), and takes no number.
 *
 * The control warp of a receiver also awaits and compares the headers.
 */
#ifndef TUTTI_CUDA_EXCHANGE_CUH
#define TUTTI_CUDA_EXCHANGE_CUH

#include "cuda/kernels/exchange.h"
#include "cuda/kernels/lines.cuh"

namespace
{

constexpr int DEPTH = EXCHANGE_DEPTH, BATCH = EXCHANGE_BATCH, SLOTS = CUDA_MESSAGE_SLOTS;

/* The second lowest bit of the time that a wait keeps: the peer was seen in a later operation, so
 * the next look is the last. */
enum : uint64_t { WAIT_PEER_IS_AHEAD = 2 };

/* The number of the last collective before this launch. */
__device__ __forceinline__ uint64_t former_number(const cuda_launch &launch)
{
    return order_load_plain_u64(&launch.control->rows[blockIdx.x].sequence);
}

/* The number of this launch; 0: messages have none. */
__device__ __forceinline__ uint64_t number_of(const cuda_exchange &exchange)
{
    return exchange.numbered ? former_number(exchange.launch) + 1 : 0;
}

/*
 * A v-form is a launch with a message to each peer and one from each. It takes a number and sends
 * headers as any operation of all ranks, and no rank ends it before all ranks have entered it,
 * since empty blocks are messages too. A block's row keeps the former number until the block ends.
 */

/* The control warp of a collective's block announces the number, */
__device__ __noinline__ void number_announce(const cuda_launch &launch)
{
    operation running;
    running.sequence = former_number(launch) + 1;
    if (blockIdx.x != 0)
        return;
    operation_announce(launch, running);
    if (launch.marked)
        operation_mark(launch, running);
    operation_compare_former(launch, running.sequence);
}

/* and writes the next state when all threads of the block have ended. */
__device__ __noinline__ void number_advance(const cuda_launch &launch)
{
    operation running;
    running.sequence = former_number(launch) + 1;
    running.buffers = order_load_plain(&launch.control->rows[blockIdx.x].buffers);
    __syncwarp();
    operation_advance(launch, running);
}

/* Looks at what may end a long wait for a message. As operation_keep_waiting(). If the peer has
 * entered an operation of all ranks which this rank has not entered, ranks disagree: the launches
 * of a rank run one after the other, so the peer will not send before the operation ends. */
__device__ __noinline__ uint64_t keep_waiting(const cuda_exchange &exchange, int peer,
                                              uint64_t signature, uint64_t start_ns)
{
    const cuda_launch &launch = exchange.launch;
    const uint64_t sequence = former_number(launch);
    const uint64_t time_ns = operation_keep_waiting(launch, number_of(exchange), peer, start_ns);
    if (exchange.numbered)
        return time_ns;
    if (start_ns == 0 || time_ns == 0)
        return time_ns & ~WAIT_PEER_IS_AHEAD;
    for (int parity = 0; parity < 2; parity++) {
        const order_line header = order_load_line(&launch.own->headers[parity][peer]);
        if (header.low == 0 || (int32_t)((uint32_t)(header.high >> 32) - (uint32_t)sequence) <= 0)
            continue;
        order_fence(); /* what the peer sent before the operation is visible now */
        if (!(start_ns & WAIT_PEER_IS_AHEAD))
            return time_ns | WAIT_PEER_IS_AHEAD;
        operation_fail(launch, TUTTI_ERR_MISMATCH, peer, sequence + 1, {signature, 0}, header);
        return 0;
    }
    return time_ns;
}

/* The peer's message is another one than the rank expects. A peer in the same collective has pushed
 * a header, too, which says more. A peer that sends a message has not. */
__device__ __noinline__ void mismatch(const cuda_exchange &exchange, int peer, uint64_t expected,
                                      uint64_t seen)
{
    const cuda_launch &launch = exchange.launch;
    const uint64_t number = number_of(exchange);
    order_line header = {};
    bool has_entered = false;
    for (unsigned polls = 0; number && !has_entered && polls < 16 * ORDER_POLLS; polls++) {
        header = order_load_line(&launch.own->headers[number & 1][peer]);
        has_entered = (uint32_t)(header.high >> 32) == (uint32_t)number;
    }
    operation_fail(launch, TUTTI_ERR_MISMATCH, peer, number,
                   {expected, number ? launch.parameter : 0},
                   {seen, has_entered ? header.high : 0});
}

/*
 * One channel of a chain. After a failure threads pass all barriers and do nothing else.
 *
 * MESSAGES are those of the chain, one after the other:
 *
 *     COUNTED               their lengths are in memory
 *     take()                reads the lengths, by all threads of the block, behind the grid
 *                           dependency; false: they are wrong, and there are no messages
 *     taken()               says that MESSAGES of another chain have read them
 *     begin(), end(), [t]   the transfers
 *     owns(), own(b)        the rank's own blocks, which are not where they belong
 */
template <bool SENDS, typename MESSAGES> struct channel {
    typedef ::operands<dtype_u8, 2> operands;
    typedef operands::spot spot;
    const cuda_exchange &exchange;
    const cuda_launch &launch;
    const int peer;
    const unsigned index;
    const unsigned worker, lane;
    MESSAGES messages;
    uint64_t turn, turns; /* pieces of this launch: before the next one, all */
    uint64_t former;      /* pieces of earlier launches */
    uint64_t credit;
    uint32_t failed; /* what was loaded, or what has failed since */

    unsigned char *slots; /* of the channel, in the receiver's arena */

    __device__ __forceinline__ channel(const cuda_exchange &e, const MESSAGES &all, int rank,
                                       unsigned number)
        : exchange(e), launch(e.launch), peer(rank), index(number),
          worker(threadIdx.x - CUDA_CONTROL_THREADS), lane(threadIdx.x % EXCHANGE_GROUP),
          messages(all), turn(0), turns(0), former(0), credit(0), failed(0)
    {
        const int source = SENDS ? launch.rank : peer, owner = SENDS ? peer : launch.rank;
        slots = launch.arenas[owner]->messages +
                (slot_of<true>(source, owner) * e.room + index) * (SLOTS * CUDA_SLOT_BYTES);
    }

    static __device__ __forceinline__ operands operands_of(const cuda_transfer &transfer)
    {
        return operands((const void *)transfer.address, (void *)transfer.address, transfer.bytes);
    }

    /* The channel's part of a message. A part without units has a piece for the header. */
    struct part {
        uint64_t first, units, pieces;
    };

    __device__ __forceinline__ part part_of(const cuda_transfer &transfer) const
    {
        const unsigned channels = exchange_channels(transfer.bytes, exchange.most);
        const uint64_t whole = exchange_units(transfer.bytes);
        const uint64_t share = exchange_part(transfer.bytes, channels), first = index * share;
        if (index >= channels || (index > 0 && first >= whole))
            return {0, 0, 0};
        const uint64_t units = whole - first < share ? whole - first : share;
        return {first, units, units ? (units + EXCHANGE_PIECE - 1) / EXCHANGE_PIECE : 1};
    }

    /* Calls use(transfer, part) for each message that the channel has a part of. */
    template <typename USE> __device__ __forceinline__ void parts(USE use) const
    {
#pragma unroll 1
        for (unsigned t = messages.begin(); t < messages.end(); t++) {
            const part its = part_of(messages[t]);
            if (its.pieces)
                use(messages[t], its);
        }
    }

    /* The number of the next piece. What needs it waits for a load. */
    __device__ __forceinline__ uint64_t piece() const
    {
        return former + turn;
    }

    __device__ __forceinline__ unsigned char *slot() const
    {
        return slots + (unsigned)(piece() % SLOTS) * CUDA_SLOT_BYTES;
    }

    /* The worker's d-th unit of a piece. */
    __device__ __forceinline__ unsigned unit_of(int d) const
    {
        return d * CUDA_WORKERS + worker;
    }

    /* The place of the flagged line of its group. */
    static __device__ __forceinline__ unsigned char *told_at(unsigned char *slot, unsigned unit)
    {
        return slot + EXCHANGE_TOLD + unit / EXCHANGE_GROUP * CUDA_LINE;
    }

    /* Polls as `poll` says, which returns true at the end. */
    template <typename POLL> __device__ __forceinline__ bool await(uint64_t signature, POLL poll)
    {
        uint64_t start_ns = 0;
        for (unsigned polls = 1; !poll(); polls++) {
            if (polls % ORDER_POLLS != 0)
                continue;
            start_ns = keep_waiting(exchange, peer, signature, start_ns);
            if (start_ns == 0)
                return false;
        }
        return true;
    }

    __device__ __forceinline__ void credit_load()
    {
        credit = order_load_line(&launch.own->credits[peer][index]).low; /* Y1a pairs Y1 */
    }

    /* Waits until the slot of the next piece is empty. */
    __device__ __forceinline__ bool credit_await(uint64_t signature)
    {
        const uint64_t needed = piece() - SLOTS + 1;
        if (piece() < SLOTS || credit >= needed)
            return true;
        return await(signature, [&] {
            credit_load();
            return credit >= needed;
        });
    }

    /* For a thread's part in the next piece of a message: the slot is empty; the thread's lines,
     * and for the first thread the header, have come. */
    __device__ __forceinline__ bool is_ready(const cuda_transfer &transfer, uint64_t units,
                                             bool begins)
    {
        unsigned char *const at = slot();
        if (SENDS) {
            credit_load();
            return piece() < SLOTS || credit >= piece() - SLOTS + 1;
        }
        if (is_control_warp()) {
            order_line header = {transfer.signature, piece() + 1};
            if (begins && threadIdx.x == 0)
                header = order_load_line(at + EXCHANGE_HEADER);
            return header.high == piece() + 1 && header_check(transfer, header.low);
        }
        bool all = true;
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            all &= !(unit_of(d) < units && line_is_empty(order_load_line_if(
                                               unit_of(d) < units, at + unit_of(d) * CUDA_LINE)));
        return all;
    }

    /* A piece of at most D units a worker, whose spots in the operand are known. */
    template <int D>
    __device__ __forceinline__ void send_piece(const cuda_transfer &transfer, const operands &user,
                                               const spot (&at)[D], uint64_t units, bool begins)
    {
        unit<2> u[D];
#pragma unroll
        for (int d = 0; d < D; d++)
            u[d] = unit_of(d) < units ? user.load(at[d]) : unit<2>{};
        /* The threads of a warp push together, or none does. */
        failed = !__all_sync(~0u, !failed && credit_await(transfer.signature));
        if (failed)
            return;
        unsigned char *const to = slot();
        if (begins && worker == 0)
            order_store_line(to + EXCHANGE_HEADER, {transfer.signature, piece() + 1});
#pragma unroll
        for (int d = 0; d < D; d++)
            if (unit_of(d) - lane < units)
                byte_lines_push(unit_of(d) < units, to + unit_of(d) * CUDA_LINE,
                                {u[d].word[0], u[d].word[1]}, told_at(to, unit_of(d)), 0,
                                piece() + 1);
    }

    /* Waits for the worker's lines of a piece, and gives them the bits that they stand for. */
    template <int D>
    __device__ __forceinline__ bool lines_take(const cuda_transfer &transfer, unsigned char *from,
                                               uint64_t units, order_line (&line)[D])
    {
        bool well = await(transfer.signature, [&] {
            bool all = true;
#pragma unroll
            for (int d = 0; d < D; d++)
                line[d] = order_load_line_if(unit_of(d) < units, from + unit_of(d) * CUDA_LINE);
#pragma unroll
            for (int d = 0; d < D; d++)
                all &= !(unit_of(d) < units && line_is_empty(line[d]));
            return all;
        });
#pragma unroll
        for (int d = 0; d < D; d++)
            if (well && unit_of(d) < units)
                well = byte_line_resolve(launch, 0, told_at(from, unit_of(d)), peer, 0, piece() + 1,
                                         line[d]);
        return well;
    }

    template <int D>
    __device__ __forceinline__ void recv_piece(const cuda_transfer &transfer, const operands &user,
                                               const spot (&at)[D], uint64_t units)
    {
        unsigned char *const from = slot();
        order_line line[D];
        failed = failed || !lines_take(transfer, from, units, line);
#pragma unroll
        for (int d = 0; d < D; d++)
            if (!failed && unit_of(d) < units) {
                line_empty(from + unit_of(d) * CUDA_LINE);
                user.store(at[d], {line[d].low, line[d].high});
            }
    }

    template <int D>
    __device__ __forceinline__ void piece_run(const cuda_transfer &transfer, const operands &user,
                                              const spot (&at)[D], uint64_t units, bool begins)
    {
        if (SENDS)
            send_piece(transfer, user, at, units, begins);
        else
            recv_piece(transfer, user, at, units);
    }

    /* The piece that begins at unit `from` of the part. */
    __device__ __forceinline__ void piece_move(const cuda_transfer &transfer, const part &its,
                                               uint64_t from)
    {
        const operands user = operands_of(transfer);
        spot at[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            at[d] = user.template spot_of<false>(its.first + from + unit_of(d));
        piece_run(transfer, user, at, its.units - from, from == 0);
    }

    /* Returns true if a turn ends a batch that later pieces of this launch wait for. Then the next
     * batch is whole. */
    __device__ __forceinline__ bool is_awaited(uint64_t its_turn) const
    {
        return its_turn % BATCH == BATCH - 1 && its_turn - (BATCH - 1) + SLOTS < turns;
    }

    __device__ __forceinline__ void work()
    {
        parts([&](const cuda_transfer &transfer, const part &its) {
            const operands user = operands_of(transfer);
            uint64_t from = 0;
            for (const uint64_t last = turn + its.pieces; turn < last; from += EXCHANGE_PIECE) {
                spot at[DEPTH];
#pragma unroll
                for (int d = 0; d < DEPTH; d++)
                    at[d] = user.template spot_of<false>(its.first + from + unit_of(d));
                piece_run(transfer, user, at, its.units - from, from == 0);
                /* The control warp is at most a batch behind. */
                if (!SENDS && turn >= BATCH && is_awaited(turn - BATCH))
                    order_block_sync(ORDER_FENCED);
                if (!SENDS && is_awaited(turn))
                    order_block_arrive(ORDER_EMPTIED);
                turn++;
            }
        });
    }

    __device__ __forceinline__ void credit_give(uint64_t pieces)
    {
        credit = pieces;
        order_fence(); /* Y1 pairs Y1a */
        if (lane == 0)
            credit_store();
    }

    /* The same by one thread. */
    __device__ __forceinline__ void credit_tell(uint64_t pieces)
    {
        credit = pieces;
        order_fence(); /* Y1 pairs Y1a */
        credit_store();
    }

    __device__ __forceinline__ void credit_store() const
    {
        order_store_line(&launch.arenas[peer]->credits[launch.rank][index], {credit, 0});
    }

    /* Returns true if a launch begins with the credit for all former ones. */
    __device__ __forceinline__ bool needs_credit() const
    {
        return !SENDS && former + turns - credit > SLOTS / 2;
    }

    /* ... and if the piece, which has been moved, is the last one of a batch. */
    __device__ __forceinline__ bool is_batch_end() const
    {
        return !SENDS && piece() % BATCH == BATCH - 1;
    }

    /* Returns false if the message is another one than the rank expects. */
    __device__ __forceinline__ bool header_check(const cuda_transfer &transfer, uint64_t seen) const
    {
        if (seen == transfer.signature)
            return true;
        mismatch(exchange, peer, transfer.signature, seen);
        return false;
    }

    /* Waits for a message's header, the first piece of which is next. */
    __device__ __forceinline__ void header_await(const cuda_transfer &transfer)
    {
        const unsigned char *const at = slot() + EXCHANGE_HEADER;
        order_line header = {};
        failed = failed || !await(transfer.signature, [&] {
                     header = order_load_line(at);
                     return header.high == piece() + 1;
                 });
        failed = failed || !header_check(transfer, header.low);
    }

    /* The control warp of a receiver. */
    __device__ __forceinline__ void control()
    {
        if (needs_credit())
            credit_give(former);
        parts([&](const cuda_transfer &transfer, const part &its) {
            if (lane == 0)
                header_await(transfer);
#pragma unroll 1
            for (const uint64_t last = turn + its.pieces; turn < last; turn++) {
                if (!is_awaited(turn))
                    continue;
                order_block_sync(ORDER_EMPTIED);
                credit_give(piece() + 1);
                order_block_arrive(ORDER_FENCED);
            }
        });
    }

    /* The worker's part of an own block, which the first `blocks` blocks copy. */
    __device__ __forceinline__ void own_copy(const cuda_own_block &own, unsigned blocks) const
    {
        const operands user((const void *)own.from, (void *)own.to, own.bytes);
        const uint64_t step = (uint64_t)blocks * CUDA_WORKERS;
        for (uint64_t at = blockIdx.x * CUDA_WORKERS + worker; at < user.units() && !failed;
             at += DEPTH * step) {
            unit<2> u[DEPTH];
#pragma unroll
            for (int d = 0; d < DEPTH; d++)
                u[d] = user.load(user.template spot_of<false>(at + d * step));
#pragma unroll
            for (int d = 0; d < DEPTH; d++)
                if (at + d * step < user.units())
                    user.store(user.template spot_of<false>(at + d * step), u[d]);
        }
    }

    /* The blocks that send, if each block has one channel. */
    __device__ __forceinline__ unsigned senders() const
    {
        unsigned blocks = 0;
        for (int c = 0; c < launch.size - 1; c++)
            blocks += exchange.channels[c];
        return blocks;
    }

    /* Counts the pieces of the launch. Returns the channel's part of the last message. */
    __device__ __forceinline__ part turns_count()
    {
        part last = {};
        parts([&](const cuda_transfer &, const part &its) {
            turns += its.pieces;
            last = its;
        });
        return last;
    }

    __device__ __forceinline__ void state_load()
    {
        if (SENDS) {
            former = order_load_plain_u64(&launch.own->sent[peer][index]);
            credit_load();
        } else {
            const order_line words = order_load_plain(&launch.own->received[peer][index]);
            former = words.low;
            credit = words.high;
        }
        failed = order_load_u32(&launch.control->failed);
    }

    __device__ __forceinline__ void state_keep(uint64_t pieces, uint64_t its_credit) const
    {
        if (SENDS)
            order_store_plain_u64(&launch.own->sent[peer][index], pieces);
        else
            order_store_plain(&launch.own->received[peer][index], {pieces, its_credit});
    }

    /* What does not depend on memory is computed before the grid dependency: if the launch has one
     * message, and this channel a unit of it for each worker or less, that is nearly everything. */
    __device__ __forceinline__ void run()
    {
        if (MESSAGES::COUNTED) {
            order_grid_wait();
            state_load();
            failed |= !messages.take();
        }
        const part only = turns_count();
        const unsigned first = messages.begin();
        const bool is_small =
            messages.end() == first + 1 && turns == 1 && only.units <= CUDA_WORKERS;
        const cuda_transfer &transfer = messages[first];
        const operands user = operands_of(transfer);
        const spot at[1] = {user.template spot_of<false>(only.first + worker)};
        if (!MESSAGES::COUNTED) {
            order_grid_wait_after(at[0].ready() | (uint64_t)order_ready(slots));
            state_load();
        }
        if (!is_control_warp()) {
            if (is_small)
                piece_run(transfer, user, at, only.units, true);
            else
                work();
            for (unsigned b = 0; SENDS && b < messages.owns(); b++)
                own_copy(messages.own(b), senders());
            order_block_arrive(ORDER_ROW);
            return;
        }
        order_grid_trigger();
        const bool is_numbered = __all_sync(~0u, exchange.numbered && !failed);
        if (is_numbered)
            number_announce(launch);
        if (!SENDS)
            control();
        order_block_sync(ORDER_ROW); /* all have read the state */
        if (lane == 0)
            state_keep(former + turns, credit);
        if (is_numbered)
            number_advance(launch);
    }
};

/* Calls use(channel) with a channel, of all those of the launch. `make` returns the MESSAGES of a
 * chain; `rank` is the other rank. */
template <typename MAKE, typename USE>
__device__ __forceinline__ void channel_use(const cuda_exchange &exchange, unsigned number,
                                            MAKE make, USE use)
{
    unsigned index = number;
    int chain = 0;
    for (; index >= exchange.channels[chain]; chain++)
        index -= exchange.channels[chain];
    const int others = exchange.launch.size - 1;
    const bool sends = chain < others;
    const int peer = sends ? chain : chain - others;
    const int rank = peer + (peer >= exchange.launch.rank);
    const auto messages = make(chain, rank, sends);
    typedef decltype(make(chain, rank, sends)) type;
    if (sends)
        use(channel<true, type>(exchange, messages, rank, index));
    else
        use(channel<false, type>(exchange, messages, rank, index));
}

} // namespace

#endif
