/* SPDX-License-Identifier: MIT */
/* The public structs that begin with struct_size. The program may have been compiled with an older
 * header, whose struct is smaller, or with a newer one, whose struct is larger. */
#ifndef TUTTI_OPTIONS_H
#define TUTTI_OPTIONS_H

#include "tutti/tutti.h"

enum { OPTIONS_STRUCT_BYTES = 4096 }; /* the largest valid struct_size; larger: not set */

/*
 * A struct that the caller fills. `size` is the size that the library knows, `what` the call or the
 * argument, for messages. options_check() returns INVALID if struct_size cannot be a size, and
 * VERSION if a byte beyond `size` is not 0. options_copy() also copies the struct: fields that the
 * caller's struct lacks become 0, and the copy's struct_size is `size`.
 */
enum tutti_status options_check(const char *what, const char *type, const void *from, size_t size);
enum tutti_status options_copy(const char *what, const char *type, const void *from, void *to,
                               size_t size);
/* The same for an array of count structs, tensors[0] and on. Copies them to `room` and sets *list
 * to it, but only if struct_size differs from `size`. */
enum tutti_status options_list(const char *call, const char *type, const void **list, int count,
                               void *room, size_t size);

/*
 * A struct that the library fills; the caller has set struct_size. options_check_out() returns
 * INVALID if struct_size cannot be a size; OK for NULL. options_copy_out() writes the fields that
 * both know and keeps struct_size. Bytes that only the caller's struct has become 0.
 */
enum tutti_status options_check_out(const char *what, const char *type, const void *to,
                                    size_t size);
void options_copy_out(void *to, const void *from, size_t size);

/* Writes how an algorithm was forced, for messages: "TUTTI_ALGO=ring" in that variable,
 * "options->algo 8 (ring)" without one. */
enum { OPTIONS_ALGO_BYTES = 64 };
void options_algo_text(const char *variable, enum tutti_algo algo, char *text, size_t size);

/* Checks an algorithm that a caller (variable == NULL) or the environment names. Returns INVALID if
 * CPU or CUDA ranks can never run it, whatever their number and links. */
enum tutti_status options_algo_check(const char *variable, enum tutti_algo algo, bool cuda);

#endif
