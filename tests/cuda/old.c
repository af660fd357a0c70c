/* SPDX-License-Identifier: MIT */
/* A libcuda of an older driver: it has what every driver has, and not what came later. */
#include "cuda/driver/driver_abi.h"

CUresult cuInit(unsigned flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 11040;
    return CUDA_SUCCESS;
}
