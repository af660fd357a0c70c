/* SPDX-License-Identifier: MIT */
/* Parameters: the variables of NCCL's that have an effect here, as the process has them. */
#include "shim.h"

#include "base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ncclParamHandle {
    const char *key, *value; /* the value where the variable is not set */
};

static struct ncclParamHandle parameters[] = {
    {"NCCL_COMM_BLOCKING", "1"},
    {"NCCL_DEBUG", ""},
    {"NCCL_MAX_CTAS", "0"},
};

enum { PARAMETERS = sizeof parameters / sizeof *parameters };

static const char *value_of(const struct ncclParamHandle *parameter)
{
    const char *text = getenv(parameter->key);
    return text ? text : parameter->value;
}

static struct ncclParamHandle *find(const char *key, enum symbol symbol)
{
    for (int i = 0; key && i < PARAMETERS; i++)
        if (strcmp(parameters[i].key, key) == 0)
            return &parameters[i];
    fail(ncclInvalidArgument, symbol,
         "%s: expected NCCL_COMM_BLOCKING, NCCL_DEBUG or NCCL_MAX_CTAS, the parameters that have "
         "an effect here",
         key ? key : "NULL");
    return NULL;
}

NCCL_DEFINE(ncclResult_t, ncclParamBind, ncclParamHandle_t *handle, const char *key)
{
    if (!handle)
        return fail(ncclInvalidArgument, SYMBOL_ncclParamBind, "NULL");
    *handle = find(key, SYMBOL_ncclParamBind);
    return *handle ? ncclSuccess : ncclInvalidArgument;
}

/* Reads a whole number between two limits. `out`: where it will go. */
static ncclResult_t number(ncclParamHandle_t handle, int64_t least, int64_t most, const void *out,
                           int64_t *value, enum symbol symbol)
{
    if (!handle || !out)
        return fail(ncclInvalidArgument, symbol, "NULL");
    if (!parse_number(value_of(handle), least, most, value))
        return fail(ncclInvalidArgument, symbol,
                    "%s=%s: no whole number from %" PRId64 " to %" PRId64, handle->key,
                    value_of(handle), least, most);
    return ncclSuccess;
}

#define PARAM_NUMBER(name, type, least, most)                                                      \
    NCCL_DEFINE(ncclResult_t, name, ncclParamHandle_t handle, type *out)                           \
    {                                                                                              \
        int64_t value;                                                                             \
        const ncclResult_t result = number(handle, least, most, out, &value, SYMBOL_##name);       \
        if (result == ncclSuccess)                                                                 \
            *out = (type)value;                                                                    \
        return result;                                                                             \
    }
PARAM_NUMBER(ncclParamGetI8, int8_t, INT8_MIN, INT8_MAX)
PARAM_NUMBER(ncclParamGetI16, int16_t, INT16_MIN, INT16_MAX)
PARAM_NUMBER(ncclParamGetI32, int32_t, INT32_MIN, INT32_MAX)
PARAM_NUMBER(ncclParamGetI64, int64_t, INT64_MIN, INT64_MAX)
PARAM_NUMBER(ncclParamGetU8, uint8_t, 0, UINT8_MAX)
PARAM_NUMBER(ncclParamGetU16, uint16_t, 0, UINT16_MAX)
PARAM_NUMBER(ncclParamGetU32, uint32_t, 0, UINT32_MAX)
PARAM_NUMBER(ncclParamGetU64, uint64_t, 0, INT64_MAX)

NCCL_DEFINE(ncclResult_t, ncclParamGetStr, ncclParamHandle_t handle, const char **out)
{
    if (!handle || !out)
        return fail(ncclInvalidArgument, SYMBOL_ncclParamGetStr, "NULL");
    *out = value_of(handle);
    return ncclSuccess;
}

/* Copies the value as text, with its end. */
NCCL_DEFINE(ncclResult_t, ncclParamGet, ncclParamHandle_t handle, void *out, int size, int *length)
{
    if (!handle || !out || size < 1)
        return fail(ncclInvalidArgument, SYMBOL_ncclParamGet, "NULL, or no room");
    const int needed = snprintf(out, (size_t)size, "%s", value_of(handle)) + 1;
    if (length)
        *length = needed;
    return needed <= size ? ncclSuccess
                          : fail(ncclInvalidArgument, SYMBOL_ncclParamGet,
                                 "%s has %d bytes, with %d there", handle->key, needed, size);
}

NCCL_DEFINE(ncclResult_t, ncclParamGetParameter, const char *key, const char **value, int *length)
{
    const struct ncclParamHandle *parameter = find(key, SYMBOL_ncclParamGetParameter);
    if (!parameter || !value)
        return ncclInvalidArgument;
    *value = value_of(parameter);
    if (length)
        *length = (int)strlen(*value);
    return ncclSuccess;
}

NCCL_DEFINE(ncclResult_t, ncclParamGetAllParameterKeys, const char ***table, int *length)
{
    static const char *keys[PARAMETERS];
    if (!table || !length)
        return fail(ncclInvalidArgument, SYMBOL_ncclParamGetAllParameterKeys, "NULL");
    for (int i = 0; i < PARAMETERS; i++)
        keys[i] = parameters[i].key;
    *table = keys;
    *length = PARAMETERS;
    return ncclSuccess;
}

NCCL_DEFINE(void, ncclParamDumpAll, void)
{
    for (int i = 0; i < PARAMETERS; i++)
        printf("%s=%s\n", parameters[i].key, value_of(&parameters[i]));
}
