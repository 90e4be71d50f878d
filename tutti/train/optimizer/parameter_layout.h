// SPDX-License-Identifier: Apache-2.0
//
// Decides where the parameters of a module lie in flat buffers, and which are reduced together.
// Backward reaches the last parameter first, so that one is at the front.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tutti {

/// What a layout must know about one parameter.
struct ParameterInfo {
  size_t parameter = 0;  ///< Index among all of the module, in the order of registration.
  size_t group = 0;      ///< A group of the optimizer.
  int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;
};

/// The elements [offset, offset + numel) of a buffer. What follows up to the next slot is padding,
/// which is zero everywhere.
struct ParameterSlot {
  ParameterInfo info;
  size_t buffer = 0;
  size_t bucket = 0;
  int64_t offset = 0;
};

/// Parameters of one dtype, one after the other. A plain value.
struct ParameterBuffer {
  at::ScalarType dtype = at::kFloat;     ///< The parameters' dtype.
  at::ScalarType gradient = at::kFloat;  ///< The dtype that is reduced.
  at::ScalarType state = at::kFloat;     ///< The dtype in which updates are computed.
  int64_t numel = 0;

  /// 16-bit parameters are rounded from a copy in float32.
  bool has_master() const { return state != dtype; }
};

/// The slots [first_slot, end_slot), which are elements [begin, end) of a buffer.
struct ParameterBucket {
  size_t buffer = 0;
  size_t first_slot = 0;
  size_t end_slot = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Where everything lies. A plain value.
struct ParameterLayout {
  std::vector<ParameterSlot> slots;  ///< In the order in which backward is expected to reach them.
  std::vector<ParameterBuffer> buffers;
  std::vector<ParameterBucket> buckets;

  /// Whether the one gradient of this bucket is summed where backward has put it: copying it would
  /// cost more than the extra bookkeeping.
  bool is_large(size_t bucket) const;
};

/// Buckets are closed once they hold `bytes_per_bucket`. With `communication` gradients are
/// reduced in that dtype; the dtypes of parameters must be floating-point.
ParameterLayout make_parameter_layout(std::span<const ParameterInfo> parameters,
                                      int64_t bytes_per_bucket,
                                      std::optional<at::ScalarType> communication);

}  // namespace tutti
