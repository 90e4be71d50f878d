// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/optimizer_arguments.h"

#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti::internal {

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

std::vector<std::optional<size_t>> groups_of_parameters(
    const ReplicatedModules& modules, const std::vector<std::vector<size_t>>& groups) {
  std::vector<std::optional<size_t>> group_of(modules.parameter_names().size());
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const size_t i : groups[g]) {
      if (group_of[i]) {
        throw Error(ErrorCode::kInvalidArgument,
                    message("DistributedOptimizer: the parameter '", modules.parameter_names()[i],
                            "' is in the groups ", *group_of[i], " and ", g, ". List it once."));
      }
      if (modules.parameter(0, i).requires_grad()) group_of[i] = g;
    }
  }
  return group_of;
}

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

}  // namespace tutti::internal
