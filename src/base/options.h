/* SPDX-License-Identifier: MIT */
/* The structs that callers fill, of whatever version of the interface. */
#ifndef TUTTI_OPTIONS_H
#define TUTTI_OPTIONS_H

#include "tutti/tutti.h"

/*
 * Copies a caller's struct, which begins with struct_size, to one of `size` bytes: what the
 * caller's lacks is zero, what it has beyond must be zero, else VERSION. INVALID if struct_size was
 * not set. call and type go into the message.
 */
enum tutti_status options_copy(const char *call, const char *type, const void *from, void *to,
                               size_t size);

/*
 * The other direction: a struct that the library fills. It begins with struct_size, which the
 * caller has set. options_check_out() returns INVALID if struct_size was not set; OK for NULL.
 * `what` names the call and the argument. options_copy_out() copies the library's struct of `size`
 * bytes and leaves struct_size as it is; bytes that only the caller's struct has become 0.
 */
enum tutti_status options_check_out(const char *what, const char *type, const void *to,
                                    size_t size);
void options_copy_out(void *to, const void *from, size_t size);

/* How an algorithm was asked for, for messages: "TUTTI_ALGO=ring" in that variable,
 * "options->algo 8 (ring)" without one. */
enum { OPTIONS_ALGO_BYTES = 64 };
void options_algo_text(const char *variable, enum tutti_algo algo, char *text, size_t size);

/* Whether an algorithm that a caller (variable == NULL) or the environment names can mean anything
 * on CPU or CUDA ranks, whatever their number and links; else INVALID. */
enum tutti_status options_algo_check(const char *variable, enum tutti_algo algo, bool cuda);

#endif
