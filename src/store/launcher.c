/* SPDX-License-Identifier: MIT */
#include "store/launcher.h"
