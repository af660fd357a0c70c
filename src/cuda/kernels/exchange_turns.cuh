/* SPDX-License-Identifier: MIT */
/*
 * Messages by fewer blocks than there are channels (exchange.cuh), since a limit of blocks says so.
 * A block serves channels b, b + grid, ... It looks at them in turn, and moves a piece of each one
 * that is ready: the slot is empty, or all lines of the piece have come. It waits for none of them.
 * So a channel goes on whatever the block's other channels wait for: a rank that serves its
 * channels one after the other may wait for a peer whose own block is at another one.
 * docs/models/exchange_turns.pml is the model.
 *
 * All threads of the block meet twice for a piece: to find that it is ready for all of them, and
 * when they have moved it. The state of a channel is in the memory that they share, and one thread
 * writes it between the two meetings. A receiver gives a credit behind every batch of pieces.
 */
#ifndef TUTTI_CUDA_EXCHANGE_TURNS_CUH
#define TUTTI_CUDA_EXCHANGE_TURNS_CUH

#include "cuda/kernels/exchange.cuh"

namespace
{

constexpr unsigned CHECK_ROUNDS = 32; /* between two looks at what may end a wait */

/* A channel's state in a launch. */
struct channel_state {
    uint64_t piece, credit; /* the number of the next piece; a receiver's last credit */
    uint64_t moved;         /* pieces of the message */
    uint64_t start_ns;      /* of keep_waiting() */
    uint32_t message;       /* the transfer; behind the last one: there is nothing left */
};

struct channel_states {
    channel_state states[EXCHANGE_CHANNELS];
};

template <typename MAKE> struct exchange_block {
    const cuda_exchange &exchange;
    MAKE make;
    channel_state *const states;
    unsigned rounds; /* without a piece that was ready for the block */
    bool well;

    /* Calls use(channel, state) for each channel of the block. */
    template <typename USE> __device__ __forceinline__ void channels(USE use)
    {
#pragma unroll 1
        for (unsigned k = 0; blockIdx.x + k * gridDim.x < exchange.all; k++)
            channel_use(exchange, blockIdx.x + k * gridDim.x, make, [&](auto its) {
                its.messages.taken();
                use(its, states[k], k);
            });
    }

    /* Leaves messages of which the channel has no part. */
    template <typename CHANNEL>
    static __device__ __forceinline__ void message_find(const CHANNEL &its, channel_state &state)
    {
        while (state.message < its.messages.end() &&
               its.part_of(its.messages[state.message]).pieces == 0)
            state.message++;
    }

    /* A channel's state at the beginning, by one thread. */
    template <typename CHANNEL>
    static __device__ __forceinline__ void state_begin(CHANNEL &its, channel_state &state)
    {
        its.state_load();
        its.turns_count();
        if (its.needs_credit())
            its.credit_tell(its.former);
        state = {its.former, its.credit, 0, 0, its.messages.begin()};
        message_find(its, state);
    }

    template <typename CHANNEL>
    static __device__ __forceinline__ void piece_pass(const CHANNEL &its, uint64_t pieces,
                                                      channel_state &state)
    {
        state.piece++;
        state.start_ns = 0;
        if (++state.moved < pieces)
            return;
        state.moved = 0;
        state.message++;
        message_find(its, state);
    }

    /* Looks at what may end the wait for a channel. The same for all threads. */
    template <typename CHANNEL>
    __device__ __forceinline__ void wait_check(const CHANNEL &its, const cuda_transfer &transfer,
                                               channel_state &state)
    {
        if (threadIdx.x == 0) {
            state.start_ns = keep_waiting(exchange, its.peer, transfer.signature, state.start_ns);
            well = state.start_ns != 0;
        }
        well = order_block_all(well);
    }

    /* Moves the channel's next piece if that is ready. Returns false if the channel waits. */
    template <typename CHANNEL>
    __device__ __forceinline__ bool turn_take(CHANNEL &its, channel_state &state)
    {
        const cuda_transfer &transfer = its.messages[state.message];
        const auto part = its.part_of(transfer);
        const uint64_t moved = state.moved, from = moved * EXCHANGE_PIECE;
        its.former = state.piece;
        if (!order_block_all(its.is_ready(transfer, part.units - from, moved == 0))) {
            if (rounds % CHECK_ROUNDS == CHECK_ROUNDS - 1)
                wait_check(its, transfer, state);
            return false;
        }
        if (!is_control_warp())
            its.piece_move(transfer, part, from);
        else if (threadIdx.x == 0)
            piece_pass(its, part.pieces, state);
        well = order_block_all(!its.failed);
        if (well && is_control_warp() && its.is_batch_end()) {
            its.credit_give(its.former + 1);
            state.credit = its.credit;
        }
        return true;
    }

    /* Returns true if a channel has something left. */
    __device__ __forceinline__ bool round_run()
    {
        bool is_left = false, has_moved = false;
        channels([&](auto &its, channel_state &state, unsigned) {
            if (!well || state.message >= its.messages.end())
                return;
            is_left = true;
            has_moved |= turn_take(its, state);
        });
        rounds = has_moved ? 0 : rounds + 1;
        return well && is_left;
    }

    __device__ __forceinline__ void own_blocks_copy()
    {
        channel_use(exchange, blockIdx.x, make, [&](auto its) {
            its.messages.taken();
            for (unsigned b = 0; b < its.messages.owns() && !is_control_warp(); b++)
                its.own_copy(its.messages.own(b), gridDim.x);
        });
    }

    __device__ __forceinline__ void run()
    {
        order_grid_wait();
        well = order_load_u32(&exchange.launch.control->failed) == 0;
        channel_use(exchange, blockIdx.x, make, [&](auto its) { well &= its.messages.take(); });
        if (!order_block_all(well))
            return;
        if (is_control_warp()) {
            order_grid_trigger();
            if (exchange.numbered)
                number_announce(exchange.launch);
        }
        channels([&](auto &its, channel_state &state, unsigned k) {
            if (threadIdx.x == k)
                state_begin(its, state);
        });
        order_block_all(true);
        own_blocks_copy();
        while (round_run())
            ;
        order_block_all(true);
        channels([&](auto &its, channel_state &state, unsigned k) {
            if (threadIdx.x == k)
                its.state_keep(state.piece, state.credit);
        });
        if (exchange.numbered && is_control_warp() && well)
            number_advance(exchange.launch);
    }
};

template <typename MAKE>
__device__ __forceinline__ void exchange_run(const cuda_exchange &exchange, MAKE make)
{
    if (gridDim.x == exchange.all)
        channel_use(exchange, blockIdx.x, make, [](auto its) { its.run(); });
    else
        exchange_block<MAKE>{exchange, make, order_block_shared<channel_states>().states, 0, true}
            .run();
}

} // namespace

#endif
