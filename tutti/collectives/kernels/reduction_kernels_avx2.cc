// SPDX-License-Identifier: Apache-2.0

#define TUTTI_KERNEL_LOOKUP find_kernel_avx2
#include "tutti/collectives/kernels/reduction_kernels.inc"
