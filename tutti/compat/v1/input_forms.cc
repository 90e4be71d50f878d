// SPDX-License-Identifier: Apache-2.0

#include "tutti/compat/v1/input_forms.h"

#include <ATen/ops/stack.h>

#include "tutti/base/error.h"

namespace tutti::v1::internal {

at::Tensor stack_arrays(const std::vector<at::Tensor>& arrays) {
  constexpr char kWho[] = "Strategy::experimental_make_numpy_dataset: ";
  if (arrays.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                message(kWho, "a list of arrays is empty; its rows would be unknown."));
  }
  for (size_t i = 1; i < arrays.size(); ++i) {
    if (arrays[i].sizes() == arrays[0].sizes() && arrays[i].dtype() == arrays[0].dtype()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                message(kWho, "array ", i, " of a list is ", arrays[i].dtype(), arrays[i].sizes(),
                        ", but array 0 is ", arrays[0].dtype(), arrays[0].sizes(),
                        ". Lists are stacked: give arrays of one shape and dtype, or a tuple."));
  }
  return at::stack(arrays);
}

}  // namespace tutti::v1::internal
