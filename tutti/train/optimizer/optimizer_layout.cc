// SPDX-License-Identifier: Apache-2.0
//
// How an OptimizerCore is built, and rebuilt when the dtypes of its parameters have changed.

#include <algorithm>
#include <string>
#include <utility>

#include <c10/core/AutogradState.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/train/optimizer/flat_parameters.h"
#include "tutti/train/optimizer/flat_state.h"
#include "tutti/train/optimizer/gradient_buckets.h"
#include "tutti/train/optimizer/optimizer_core.h"
#include "tutti/train/optimizer/sparse_parameters.h"

namespace tutti {
namespace {

void check_options(const DistributedOptimizerOptions& options) {
  const auto refuse = [](const char* field, auto value, const char* rule) {
    throw Error(ErrorCode::kInvalidArgument, message("DistributedOptimizer: ", field, " is ", value,
                                                     "; it must be ", rule, "."));
  };
  if (options.accumulate < 1) refuse("accumulate", options.accumulate, "1 or more");
  if (options.check_every < 0) refuse("check_every", options.check_every, "0 (never) or more");
  if (options.bytes_per_bucket < 1)
    refuse("bytes_per_bucket", options.bytes_per_bucket, "positive");
  if (options.clip_norm && !(*options.clip_norm > 0)) {
    refuse("clip_norm", *options.clip_norm, "positive");
  }
  if (options.communication_dtype && !c10::isFloatingType(*options.communication_dtype)) {
    refuse("communication_dtype", c10::toString(*options.communication_dtype),
           "a floating-point dtype");
  }
}

}  // namespace

namespace internal {

void throw_no_group_support(size_t groups) {
  throw Error(ErrorCode::kInvalidArgument,
              message("DistributedOptimizer: ", groups,
                      " groups of parameters were given, but the "
                      "optimizer has no constructor for groups (std::vector<OptimizerParamGroup>, "
                      "options). Add one, or use one group."));
}

void throw_empty_groups() {
  throw Error(ErrorCode::kInvalidArgument,
              "DistributedOptimizer: the list of parameter groups is empty. Give options for all "
              "parameters instead, or at least one group.");
}

void check_parameters(const ReplicatedModules& modules,
                      const std::vector<std::vector<size_t>>& groups) {
  size_t listed = 0;
  for (const std::vector<size_t>& group : groups) {
    listed += group.size();
    for (const size_t parameter : group) {
      if (modules.parameter(0, parameter).requires_grad()) return;
    }
  }
  if (listed > 0) {
    log(LogLevel::kWarning,
        message("DistributedOptimizer: requires_grad() is false for all ", listed,
                " parameters that it was given, so step() changes nothing. Call "
                "requires_grad_(true) for those to be trained before the optimizer is made."));
    return;
  }
  const size_t all = modules.parameter_names().size();
  throw Error(ErrorCode::kInvalidArgument,
              all == 0 ? message("DistributedOptimizer: the model has no parameters. Register them "
                                 "in its constructor (register_module, register_parameter).")
                       : message("DistributedOptimizer: its groups list none of the ", all,
                                 " parameters of the model. List those to be trained."));
}

}  // namespace internal

OptimizerCore::OptimizerCore(std::shared_ptr<ReplicatedModules> modules,
                             const std::vector<std::vector<size_t>>& groups,
                             const DistributedOptimizerOptions& options, Update update)
    : modules_(std::move(modules)),
      group_of_(modules_->parameter_names().size()),
      options_(options),
      update_(std::move(update)),
      extended_(modules_->strategy().extended()),
      note_(extended_.workers(), modules_->size(), extended_.communication_options().timeout),
      fused_(update_.rules != nullptr && options.fused),
      replicas_(modules_->size()) {
  check_options(options);
  modules_->check_outside_of_replicas("DistributedOptimizer",
                                      "Make it outside of run(), once for all replicas.");
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const size_t parameter : groups[g]) {
      if (group_of_[parameter]) {
        throw Error(
            ErrorCode::kInvalidArgument,
            message("DistributedOptimizer: the parameter '", modules_->parameter_names()[parameter],
                    "' is in the groups ", *group_of_[parameter], " and ", g, ". List it once."));
      }
      if (modules_->parameter(0, parameter).requires_grad()) group_of_[parameter] = g;
    }
  }
  std::vector<size_t> mine;
  for (size_t i = 0; i < group_of_.size(); ++i) {
    if (group_of_[i]) mine.push_back(i);
  }
  modules_->claim(mine, this);
  const uint64_t failed_runs = extended_.failed_runs();
  {
    const MutexLock lock(mutex_);
    failed_runs_ = failed_runs;
  }
  conversions_ = modules_->conversions();
  for (Replica& replica : replicas_) {
    replica.failed_runs = failed_runs;
    replica.conversions = conversions_;
  }
  try {
    build();
  } catch (...) {
    modules_->release(this);
    throw;
  }
}

OptimizerCore::~OptimizerCore() { modules_->release(this); }

// Tables stay sparse if the optimizer leaves rows without a gradient alone; a user's own optimizer
// sees what it would see without this library.
std::vector<size_t> OptimizerCore::choose_sparse() const {
  std::vector<size_t> chosen;
  std::vector<UpdateRule> rules;
  if (update_.rules) update_.rules(rules);
  for (const size_t i : internal::find_sparse_parameters(*modules_)) {
    if (!group_of_[i]) continue;
    const bool keeps = rules.empty() || internal::keeps_other_rows(rules[*group_of_[i]]);
    if (keeps) {
      chosen.push_back(i);
    } else {
      log(LogLevel::kInfo,
          message("DistributedOptimizer: the sparse gradient of '", modules_->parameter_names()[i],
                  "' is made dense, because ", name_of(rules[*group_of_[i]]),
                  " with these options changes every row in each step."));
    }
  }
  return chosen;
}

void OptimizerCore::build() {
  std::vector<ParameterInfo> infos;
  std::vector<internal::SparseParameters::Entry> tables;
  const std::vector<size_t> sparse = choose_sparse();
  unmanaged_.clear();
  for (size_t i = 0; i < group_of_.size(); ++i) {
    const at::Tensor& parameter = modules_->parameter(0, i);
    const bool is_table = std::count(sparse.begin(), sparse.end(), i) > 0;
    if (!group_of_[i] || is_table) unmanaged_.push_back(i);
    if (is_table) tables.push_back({i, *group_of_[i]});
    if (!group_of_[i] || is_table) continue;
    infos.push_back({.parameter = i,
                     .group = *group_of_[i],
                     .numel = parameter.numel(),
                     .dtype = parameter.scalar_type()});
    const bool in_rules = parameter.device().is_cpu() && c10::isFloatingType(infos.back().dtype);
    fused_ = fused_ && in_rules;
  }
  sparse_ = std::make_unique<internal::SparseParameters>(*modules_, tables);
  flat_ = std::make_unique<internal::FlatParameters>(
      modules_,
      make_parameter_layout(infos, options_.bytes_per_bucket, options_.communication_dtype));
  reducer_ = extended_.make_gradient_reducer(flat_->buckets());
  buckets_ = std::make_unique<internal::GradientBuckets>(
      *flat_, *reducer_, [this](size_t replica) { forget_failed_run(replica); });
  state_ = fused_ ? std::make_unique<internal::FlatState>(*flat_) : nullptr;
  live_.assign(infos.size(), 0);
  note_.set_num_flags(live_.size());
  square_sums_.assign(reducer_->chunks().size(), 0);
  finite_.assign(reducer_->chunks().size(), 1);
  for (size_t r = 0; r < replicas_.size(); ++r) update_synchronizing(r);
}

// Called when the dtypes of the parameters have changed: all memory is laid out again. The sums of
// this step, and the state, are taken over.
void OptimizerCore::rebuild() {
  const c10::AutoGradMode no_grad(false);
  const std::unique_ptr<internal::FlatParameters> old_flat = std::move(flat_);
  const std::unique_ptr<internal::FlatState> old_state = std::move(state_);
  const std::unique_ptr<internal::SparseParameters> old_sparse = std::move(sparse_);
  const std::vector<uint8_t> old_live = live_;
  buckets_.reset();
  build();
  if (old_state != nullptr && state_ != nullptr) state_->take_over(*old_state);
  sparse_->take_over(*old_sparse);
  for (size_t s = 0; s < live_.size(); ++s) {
    for (size_t o = 0; o < old_live.size(); ++o) {
      if (old_flat->layout().slots[o].info.parameter != flat_->layout().slots[s].info.parameter) {
        continue;
      }
      live_[s] = old_live[o];
      for (size_t r = 0; r < replicas_.size(); ++r) {
        const at::Tensor memory = flat_->gradient(r, s);
        const at::Tensor& placed = flat_->parameter(r, s).grad();
        const bool in_slot = old_flat->gradient_place(r, o) == old_flat->gradient_address(r, o);
        memory.copy_(in_slot || !placed.defined() ? old_flat->gradient(r, o) : placed);
      }
    }
  }
  for (Replica& replica : replicas_) replica.is_measured = false;
}

size_t OptimizerCore::parameter_bytes() const {
  size_t bytes = sparse_->parameter_bytes() + (state_ != nullptr ? state_->master_bytes() : 0);
  for (size_t r = 0; r < (flat_->is_shared() ? 1 : replicas_.size()); ++r) {
    for (size_t b = 0; b < flat_->layout().buffers.size(); ++b)
      bytes += flat_->values(r, b).nbytes();
  }
  return bytes;
}

std::vector<at::Tensor> OptimizerCore::states_of(const std::string& parameter) const {
  const size_t number = modules_->parameter_index(parameter);
  if (state_ == nullptr) return {};
  std::vector<at::Tensor> states = state_->states_of(number, replicas_[0].rules);
  return states.empty() ? sparse_->states_of(number) : states;
}

size_t OptimizerCore::state_bytes() const {
  return sparse_->state_bytes() + (state_ != nullptr ? state_->bytes() : 0);
}

}  // namespace tutti
