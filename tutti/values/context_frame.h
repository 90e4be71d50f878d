// SPDX-License-Identifier: Apache-2.0
//
// Which strategy and replica the calling thread works for: a stack of frames,
// one for each scope, run or merge it is in.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/base/call_site.h"

namespace tutti {

class ReplicaContext;
class StrategyServices;

namespace internal {

/// Explains errors of LibTorch beyond what their text says. A layer above sets it on the frame of
/// the replica that uses it; it must live until the replica's function has returned.
class ErrorExplainer {
 public:
  /// Returns what to add to an error with this text, or an empty string.
  virtual std::string explain(const ReplicaContext& context, const std::string& error) const = 0;

 protected:
  ~ErrorExplainer() = default;
};

/// A frame without a replica is a cross-replica context; within it one component of a
/// variable may be under update.
struct ContextFrame {
  StrategyServices* services = nullptr;
  ReplicaContext* replica = nullptr;
  int updated_component = -1;
  const ContextFrame* previous = nullptr;
  mutable const ErrorExplainer* explainer = nullptr;
};

/// The innermost frame of this thread, or null if there is none.
const ContextFrame* current_frame();

/// The local id of the replica this thread works for, or -1.
int current_local_replica();

/// Where this thread last asked for its replica's context. This is the closest known line to a
/// merge_call, which takes any number of arguments and therefore cannot take a call site.
CallSite last_context_site();
void set_last_context_site(CallSite site);

/// Names what this thread combines over workers, for messages, during the life of the object, which
/// must be on the stack. The name must be the same on all workers.
class OperationNameScope {
 public:
  explicit OperationNameScope(std::string name);
  ~OperationNameScope();

  OperationNameScope(const OperationNameScope&) = delete;
  OperationNameScope& operator=(const OperationNameScope&) = delete;
  void* operator new(unsigned long) = delete;

  /// The name given by the outermost scope of this thread; `otherwise` if there is none.
  static std::string_view current(std::string_view otherwise);

 private:
  const std::string name_;
  bool is_outermost_;
};

/// Pushes a frame for the life of the object, which must be on the stack.
class FrameScope {
 public:
  FrameScope(StrategyServices* services, ReplicaContext* replica, int updated_component = -1);
  ~FrameScope();

  FrameScope(const FrameScope&) = delete;
  FrameScope& operator=(const FrameScope&) = delete;
  void* operator new(unsigned long) = delete;

  const ErrorExplainer* explainer() const { return frame_.explainer; }

 private:
  ContextFrame frame_;
};

/// Makes a replica's context current on LibTorch's own threads, where gradients are computed. On a
/// thread that works for another replica or a strategy, the backward pass is misplaced: throws
/// kFailedPrecondition with a message that begins with `who`.
class BackwardScope {
 public:
  BackwardScope(StrategyServices& services, ReplicaContext& replica, std::string_view who);

 private:
  std::optional<FrameScope> frame_;
};

}  // namespace internal
}  // namespace tutti
