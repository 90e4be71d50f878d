// SPDX-License-Identifier: Apache-2.0
//
// Where the calling thread is: on which device, in which replica of which strategy, and what else
// applies to the calls it makes. One thread-local has a slot for each answer. It lies in this room
// because the device is one of them; the rooms above define the types of the other slots, and the
// scopes that set them.

#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "tutti/base/call_site.h"

namespace tutti {

struct DeviceSpec;
class ReplicaContext;
class ReplicaRandom;

namespace internal {

struct ContextFrame;
class ColocationScope;
class ErrorExplainer;

struct ThreadContext {
  const DeviceSpec* device = nullptr;             ///< DeviceScope (device/device_scope.h)
  const ContextFrame* frame = nullptr;            ///< FrameScope (values/context_frame.h)
  const ReplicaContext* synchronising = nullptr;  ///< VariableSyncOnReadScope (values/variable.h)
  const std::string* operation_name = nullptr;    ///< OperationNameScope (values/context_frame.h)
  const ColocationScope* colocation = nullptr;    ///< ColocationScope (strategy/)
  ReplicaRandom* random = nullptr;                ///< ReplicaRandom::Scope (strategy/)

  // What the thread did last, for messages.
  CallSite context_site = {};                 ///< get_replica_context()
  const ErrorExplainer* explainer = nullptr;  ///< Used a replicated module.
};

// Constant at the start and trivial to destroy, so that reading a slot is a plain load. Defined
// once, in the library: a program with hidden symbols would have a copy of an inline one.
extern constinit thread_local ThreadContext thread_context;
static_assert(std::is_trivially_destructible_v<ThreadContext>);

/// Sets one slot of the calling thread for the life of the object, which must be on the stack.
template <auto kSlot>
class SlotScope {
 public:
  using Value = std::remove_reference_t<decltype(std::declval<ThreadContext&>().*kSlot)>;

  explicit SlotScope(Value value) : previous_(std::exchange(thread_context.*kSlot, value)) {}
  ~SlotScope() { thread_context.*kSlot = previous_; }

  SlotScope(const SlotScope&) = delete;
  SlotScope& operator=(const SlotScope&) = delete;
  void* operator new(unsigned long) = delete;

  Value previous() const { return previous_; }

 private:
  const Value previous_;
};

}  // namespace internal
}  // namespace tutti
