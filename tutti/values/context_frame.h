// SPDX-License-Identifier: Apache-2.0
//
// Which strategy and replica the calling thread works for: a stack of frames,
// one for each scope, run or merge it is in. thread_context.h has the innermost one.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/call_site.h"
#include "tutti/device/thread_context.h"

namespace tutti {

class ReplicaContext;
class StrategyServices;

namespace internal {

/// Explains errors of LibTorch beyond what their text says. A room above puts it into the context
/// of the thread that uses it; it must live until the replica's function has returned. Only that
/// thread calls it.
class ErrorExplainer {
 public:
  /// Returns what to add to an error with this text, or an empty string.
  virtual std::string explain(const ReplicaContext& context, const std::string& error) const = 0;

 protected:
  ~ErrorExplainer() = default;
};

/// A frame without a replica is a cross-replica context; within it one component of a variable may
/// be under update. Only the thread that it is on reads it.
struct ContextFrame {
  StrategyServices* services = nullptr;
  ReplicaContext* replica = nullptr;
  int updated_component = -1;
  const ContextFrame* previous = nullptr;
};

/// The innermost frame of this thread, or null if there is none.
inline const ContextFrame* current_frame() { return thread_context.frame; }

/// The local id of the replica this thread works for, or -1.
int current_local_replica();

/// Where this thread last asked for its replica's context. This is the closest known line to a
/// merge_call, which takes any number of arguments and therefore cannot take a call site.
inline CallSite last_context_site() { return thread_context.context_site; }
inline void set_last_context_site(CallSite site) { thread_context.context_site = site; }

/// Names what this thread combines over workers, for messages, during the life of the object, which
/// must be on the stack. The name must be the same on all workers. An object belongs to the thread
/// that makes it.
class OperationNameScope {
 public:
  explicit OperationNameScope(std::string name)
      : name_(std::move(name)),
        slot_(thread_context.operation_name != nullptr ? thread_context.operation_name : &name_) {}
  void* operator new(unsigned long) = delete;

  /// The name given by the outermost scope of this thread; `otherwise` if there is none.
  static std::string_view current(std::string_view otherwise) {
    const std::string* const name = thread_context.operation_name;
    return name != nullptr ? std::string_view(*name) : otherwise;
  }

 private:
  const std::string name_;
  const SlotScope<&ThreadContext::operation_name> slot_;
};

/// Pushes a frame for the life of the object, which must be on the stack. An object belongs to the
/// thread that makes it.
class FrameScope {
 public:
  FrameScope(StrategyServices* services, ReplicaContext* replica, int updated_component = -1)
      : frame_{services, replica, updated_component, current_frame()}, slot_(&frame_) {}
  void* operator new(unsigned long) = delete;

 private:
  const ContextFrame frame_;
  const SlotScope<&ThreadContext::frame> slot_;
};

/// Makes a replica's context current on LibTorch's own threads, where gradients are computed. On a
/// thread that works for another replica or a strategy, the backward pass is misplaced: throws
/// kFailedPrecondition with a message that begins with `who`. An object belongs to the thread that
/// makes it.
class BackwardScope {
 public:
  BackwardScope(StrategyServices& services, ReplicaContext& replica, std::string_view who);

 private:
  std::optional<FrameScope> frame_;
};

}  // namespace internal
}  // namespace tutti
