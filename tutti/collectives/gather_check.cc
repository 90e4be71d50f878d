// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/gather_check.h"

#include "tutti/base/error.h"
#include "tutti/nest/leaf.h"

namespace tutti {

int64_t check_gatherable(const char* who, std::span<const at::Tensor> parts, int64_t axis) {
  const int64_t rank = parts[0].dim();
  if (axis < -rank || axis >= rank) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": axis ", axis, " is out of range for ", describe(parts[0]),
                        "; tensors of rank 1 or more are concatenated along one of their axes."));
  }
  const int64_t along = axis < 0 ? axis + rank : axis;
  for (size_t r = 1; r < parts.size(); ++r) {
    const bool same_type = parts[r].scalar_type() == parts[0].scalar_type();
    bool fits = parts[r].dim() == rank && same_type;
    for (int64_t d = 0; fits && d < rank; ++d) {
      fits = d == along || parts[r].size(d) == parts[0].size(d);
    }
    if (fits) continue;
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": replica 0 has ", describe(parts[0]), " but replica ", r, " has ",
                        describe(parts[r]),
                        same_type ? message(". Shapes may differ along axis ", axis, " only.")
                                  : ". Convert them to one type first."));
  }
  return along;
}

}  // namespace tutti
