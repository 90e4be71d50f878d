// SPDX-License-Identifier: Apache-2.0

#define TUTTI_UPDATE_KERNELS update_kernels_avx2
#include "tutti/update_rules/internal/update_kernels.inc"
