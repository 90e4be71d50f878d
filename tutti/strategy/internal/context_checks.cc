// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/context_checks.h"

#include "tutti/base/error.h"
#include "tutti/strategy/strategy_extended.h"
#include "tutti/values/context_frame.h"

namespace tutti::internal {

StrategyExtended* current_strategy() {
  const ContextFrame* frame = current_frame();
  return frame == nullptr ? nullptr : static_cast<StrategyExtended*>(frame->services);
}

void check_no_replica_waits(const StrategyExtended& strategy) {
  for (const ContextFrame* frame = current_frame(); frame != nullptr; frame = frame->previous) {
    if (frame->services != &strategy || frame->replica == nullptr) continue;
    throw Error(ErrorCode::kFailedPrecondition,
                message("Strategy::run: called inside a merge_call of ", strategy.describe(),
                        ", whose replicas wait for it to end. Do the work in the merge function "
                        "itself, or in the replica's function around merge_call()."));
  }
}

std::string not_to(const StrategyExtended& strategy, const StrategyServices& owner) {
  const std::string mine = strategy.describe();
  return message(", not to ", mine, mine == owner.describe() ? " (another object)" : "");
}

void check_cross_replica(const StrategyExtended& strategy, const char* function,
                         const char* instead) {
  const ContextFrame* frame = current_frame();
  if (frame != nullptr && frame->replica != nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("Strategy::", function, ": called inside replica ",
                        frame->replica->replica_id_in_sync_group(), " of ",
                        static_cast<StrategyExtended*>(frame->services)->describe(),
                        ", but it requires cross-replica context. Use get_replica_context()->",
                        instead, " there."));
  }
  const StrategyExtended* current = current_strategy();
  if (current == nullptr || current == &strategy) return;
  throw Error(ErrorCode::kFailedPrecondition,
              message("Strategy::", function, ": mixing different strategies: ",
                      strategy.describe(), " is not ", current->describe(),
                      current->describe() == strategy.describe() ? " (another object)" : "",
                      ", whose scope or run this thread is in. Leave it first."));
}

}  // namespace tutti::internal
