// SPDX-License-Identifier: Apache-2.0
//
// A meeting in which replicas do a piece of work for an object they share.

#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "tutti/base/function_ref.h"
#include "tutti/update_rules/update_rule.h"
#include "tutti/values/meeting.h"

namespace tutti::internal {

/// `function` is a literal, `owner` the object; both must be the same on all replicas, and so must
/// the argument and the rules, if there are any. Threads: as MeetingRequest.
class WorkRequest final : public MeetingRequest {
 public:
  struct Argument {
    const char* name = nullptr;  ///< A literal; null if there is no argument.
    double value = 0;
    std::span<const UpdateRule> rules = {};
  };

  WorkRequest(const char* function, CallSite site, Completer completer, const void* owner,
              Argument argument, FunctionRef<void()> work)
      : MeetingRequest(function, site, completer), owner_(owner), argument_(argument), work_(work) {
    mark(reinterpret_cast<uintptr_t>(owner));
    mark(reinterpret_cast<uintptr_t>(function));
    mark(reinterpret_cast<uintptr_t>(argument.name));
    mark(std::bit_cast<uint64_t>(argument.value));
    for (const UpdateRule& rule : argument.rules) {
      mark(rule.index());
      std::visit(
          [this](const auto& each) {
            for (const double option : each.options()) mark(std::bit_cast<uint64_t>(option));
          },
          rule);
    }
  }

  std::string describe() const override;
  void complete(std::span<MeetingRequest* const>) override { work_(); }

 private:
  const void* owner_;
  Argument argument_;
  FunctionRef<void()> work_;
};

}  // namespace tutti::internal
