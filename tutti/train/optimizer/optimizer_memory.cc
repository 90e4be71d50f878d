// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/optimizer_memory.h"

#include <algorithm>
#include <utility>

#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti::internal {
namespace {

// Tables stay sparse if the optimizer leaves rows without a gradient alone; a user's own optimizer
// sees what it would see without this library.
std::vector<size_t> choose_sparse(const OptimizerMemoryRequest& request,
                                  std::span<const UpdateRule> rules) {
  std::vector<size_t> chosen;
  for (const size_t i : find_sparse_parameters(*request.modules)) {
    const std::optional<size_t> group = request.group_of[i];
    if (!group) continue;
    const bool keeps = rules.empty() || keeps_other_rows(rules[*group]);
    if (keeps) {
      chosen.push_back(i);
    } else {
      log(LogLevel::kInfo,
          message("DistributedOptimizer: the sparse gradient of '",
                  request.modules->parameter_names()[i], "' is made dense, because ",
                  name_of(rules[*group]), " with these options changes every row in each step."));
    }
  }
  return chosen;
}

}  // namespace

OptimizerMemory lay_out(const OptimizerMemoryRequest& request, std::span<const UpdateRule> rules,
                        bool fused) {
  OptimizerMemory memory;
  std::vector<ParameterInfo> infos;
  std::vector<SparseParameters::Entry> tables;
  const std::vector<size_t> sparse = choose_sparse(request, rules);
  for (size_t i = 0; i < request.group_of.size(); ++i) {
    const std::optional<size_t> group = request.group_of[i];
    const at::Tensor& parameter = request.modules->parameter(0, i);
    const bool is_table = std::count(sparse.begin(), sparse.end(), i) > 0;
    if (!group || is_table) memory.unmanaged.push_back(i);
    if (is_table) tables.push_back({i, *group});
    if (!group || is_table) continue;
    infos.push_back({.parameter = i,
                     .group = *group,
                     .numel = parameter.numel(),
                     .dtype = parameter.scalar_type()});
    fused = fused && parameter.device().is_cpu() && c10::isFloatingType(infos.back().dtype);
  }
  memory.sparse = std::make_unique<SparseParameters>(*request.modules, tables);
  memory.flat = std::make_unique<FlatParameters>(
      request.modules, make_parameter_layout(infos, request.options.bytes_per_bucket,
                                             request.options.communication_dtype));
  StrategyExtended& extended = request.modules->strategy().extended();
  memory.reducer = extended.make_gradient_reducer(memory.flat->buckets());
  memory.buckets =
      std::make_unique<GradientBuckets>(*memory.flat, *memory.reducer, request.before_gradient);
  memory.state = fused ? std::make_unique<FlatState>(*memory.flat) : nullptr;
  return memory;
}

void take_over(OptimizerMemory& memory, const OptimizerMemory& old, std::vector<uint8_t>& live) {
  const c10::AutoGradMode no_grad(false);
  if (old.state != nullptr && memory.state != nullptr) memory.state->take_over(*old.state);
  memory.sparse->take_over(*old.sparse);
  const std::vector<ParameterSlot>& slots = memory.flat->layout().slots;
  const std::vector<ParameterSlot>& old_slots = old.flat->layout().slots;
  const std::vector<uint8_t> old_live = std::exchange(live, std::vector<uint8_t>(slots.size()));
  for (size_t s = 0; s < slots.size(); ++s) {
    for (size_t o = 0; o < old_slots.size(); ++o) {
      if (old_slots[o].info.parameter != slots[s].info.parameter) continue;
      live[s] = old_live[o];
      for (size_t r = 0; r < memory.flat->replicas(); ++r) {
        const at::Tensor sum = memory.flat->gradient(r, s);
        const at::Tensor& placed = memory.flat->parameter(r, s).grad();
        const bool in_slot = old.flat->gradient_place(r, o) == old.flat->gradient_address(r, o);
        sum.copy_(in_slot || !placed.defined() ? old.flat->gradient(r, o) : placed);
      }
    }
  }
}

SquareSum OptimizerMemory::square_sum(const GradientChunk& chunk) const {
  const at::Tensor& sums = reducer->buckets()[chunk.bucket].memory[0];
  const int64_t count = chunk.end - chunk.begin;
  if (!sums.device().is_cpu() || !sums.is_floating_point()) {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor part = sums.narrow(0, chunk.begin, count).abs();
    return {.sum = part.to(at::kDouble).square().sum().item<double>(),
            .finite = part.isfinite().all().item<bool>()};
  }
  const size_t slot = flat->layout().buckets[chunk.bucket].first_slot;
  const auto* const data = static_cast<const std::byte*>(flat->gradient_place(0, slot));
  return internal::square_sum(
      sums.scalar_type(), data + chunk.begin * static_cast<int64_t>(sums.element_size()), count);
}

std::vector<std::string> OptimizerMemory::non_finite() const {
  std::vector<std::string> names = sparse->non_finite();
  for (size_t s = flat->layout().slots.size(); s-- > 0;) {
    const at::Tensor& gradient = flat->parameter(0, s).grad();
    if (gradient.defined() && !gradient.isfinite().all().item<bool>()) {
      names.push_back(flat->name(s));
    }
  }
  return names;
}

size_t OptimizerMemory::parameter_bytes() const {
  size_t bytes = sparse->parameter_bytes() + (state != nullptr ? state->master_bytes() : 0);
  for (size_t r = 0; r < (flat->is_shared() ? 1 : flat->replicas()); ++r) {
    for (size_t b = 0; b < flat->layout().buffers.size(); ++b) bytes += flat->values(r, b).nbytes();
  }
  return bytes;
}

size_t OptimizerMemory::state_bytes() const {
  return sparse->state_bytes() + (state != nullptr ? state->bytes() : 0);
}

}  // namespace tutti::internal
