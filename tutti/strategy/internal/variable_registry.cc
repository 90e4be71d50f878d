// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/variable_registry.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace tutti::internal {

std::string canonical_variable_name(std::string_view name) {
  std::string canonical;
  for (size_t i = 0; i < name.size();) {
    if (name[i] == '_') {
      size_t end = i + 1;
      while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
      if (end > i + 1 && (end == name.size() || name[end] == '/')) {
        i = end;
        continue;
      }
    }
    canonical += name[i++];
  }
  return canonical;
}

void RunVariables::add(std::string canonical_name, std::shared_ptr<VariableImpl> variable) {
  const MutexLock lock(mutex_);
  entries_.push_back(
      {std::move(canonical_name), std::move(variable), std::vector<bool>(replicas_)});
}

std::shared_ptr<VariableImpl> RunVariables::take(size_t replica,
                                                 const std::string& canonical_name) {
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.taken[replica] || entry.canonical_name != canonical_name) continue;
    entry.taken[replica] = true;
    return entry.variable;
  }
  return nullptr;
}

void VariableRegistry::add(const std::shared_ptr<VariableImpl>& variable) {
  const MutexLock lock(mutex_);
  if (variables_.size() >= prune_above_) {
    std::erase_if(variables_, [](const auto& each) { return each.expired(); });
    prune_above_ = std::max<size_t>(64, 2 * variables_.size());
  }
  variables_.push_back(variable);
}

std::shared_ptr<VariableImpl> VariableRegistry::find(const at::Tensor& component) const {
  const MutexLock lock(mutex_);
  for (const auto& each : variables_) {
    if (auto variable = each.lock(); variable != nullptr && variable->owns(component)) {
      return variable;
    }
  }
  return nullptr;
}

}  // namespace tutti::internal
