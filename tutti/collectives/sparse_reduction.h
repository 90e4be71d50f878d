// SPDX-License-Identifier: Apache-2.0
//
// The reduction of sparse values.

#pragma once

#include <vector>

#include "tutti/nest/indexed_slices.h"
#include "tutti/values/reduce_op.h"

namespace tutti {

/// Returns all slices in replica order, on the device of the first; duplicates are kept. kMean
/// divides the values by the number of parts; integers become floats. Throws kInvalidArgument,
/// beginning with `who`, for other operations and for parts that do not match.
IndexedSlices concatenate_slices(const char* who, ReduceOp op,
                                 const std::vector<const IndexedSlices*>& parts);

}  // namespace tutti
