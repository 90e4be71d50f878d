// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/internal/weights.h"

#include <ATen/ExpandUtils.h>

#include "tutti/base/error.h"
#include "tutti/nest/print.h"

namespace tutti::internal {

at::Tensor broadcast_weights(std::string_view who, const at::Tensor& weights, std::string_view what,
                             const at::Tensor& values) {
  const bool numbers = weights.defined() && weights.layout() == at::kStrided &&
                       !at::isComplexType(weights.scalar_type());
  if (!numbers) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": the weights are ", describe(weights),
                        ", but they must be a dense tensor of numbers or booleans."));
  }
  if (!at::is_expandable_to(weights.sizes(), values.sizes())) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": the weights are ", describe(weights),
                        ", which do not broadcast to ", what, ", ", describe(values),
                        ". If each row has one weight and further dimensions, give "
                        "weights.unsqueeze(-1)."));
  }
  return weights.detach().expand(values.sizes());
}

}  // namespace tutti::internal
