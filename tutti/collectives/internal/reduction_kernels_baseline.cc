// SPDX-License-Identifier: Apache-2.0

#define TUTTI_KERNEL_LOOKUP find_kernel_baseline
#include "tutti/collectives/internal/reduction_kernels.inc"
