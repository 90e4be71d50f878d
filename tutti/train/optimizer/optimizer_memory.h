// SPDX-License-Identifier: Apache-2.0
//
// Lays out what an optimizer works on: flat parameters and gradients, the buckets that are summed,
// and the state of the update.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/collectives/gradient_reducer.h"
#include "tutti/train/optimizer/flat_kernels.h"
#include "tutti/train/optimizer/flat_parameters.h"
#include "tutti/train/optimizer/flat_state.h"
#include "tutti/train/optimizer/gradient_buckets.h"
#include "tutti/train/optimizer/optimizer_options.h"
#include "tutti/train/optimizer/sparse_parameters.h"

namespace tutti::internal {

/// What to lay out.
struct OptimizerMemoryRequest {
  std::shared_ptr<ReplicatedModules> modules;
  std::vector<std::optional<size_t>> group_of;  ///< By parameter; those without are left alone.
  DistributedOptimizerOptions options;

  /// Called first in each hook of backward.
  std::function<void(size_t replica)> before_gradient;
};

/// What lay_out() returns. Const functions may run concurrently with each other only.
struct OptimizerMemory {
  std::vector<size_t> unmanaged;  ///< Parameters that do not lie in flat memory.
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<GradientReducer> reducer;
  std::unique_ptr<GradientBuckets> buckets;  ///< Uses `flat` and `reducer`.
  std::unique_ptr<SparseParameters> sparse;  ///< Tables, which lie outside of `flat`.
  std::unique_ptr<FlatState> state;          ///< Null unless updates are fused.

  /// The sum of squares of the summed gradients in a chunk, after the reducer has finished.
  SquareSum square_sum(const GradientChunk& chunk) const;

  /// Names of parameters of which a sum of gradients is not finite.
  std::vector<std::string> non_finite() const;

  /// Bytes of parameters, with float32 copies of 16-bit ones, and of state.
  size_t parameter_bytes() const;
  size_t state_bytes() const;
};

/// Lays out the parameters, and moves their values there. Parameters whose gradients are sparse
/// become tables if `rules`, of each group, leave rows without a gradient alone; without rules, all
/// do. Fused updates need all other parameters on the CPU, with a floating-point dtype.
OptimizerMemory lay_out(const OptimizerMemoryRequest& request, std::span<const UpdateRule> rules,
                        bool fused);

/// Takes over sums of gradients, and state, from an earlier layout of the same parameters; `live`,
/// which has a flag for each slot of that layout, becomes the same for the new one.
void take_over(OptimizerMemory& memory, const OptimizerMemory& old, std::vector<uint8_t>& live);

}  // namespace tutti::internal
