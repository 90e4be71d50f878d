// SPDX-License-Identifier: Apache-2.0
//
// What a function that runs on a replica can use: the identity of the replica, and the operations
// that all replicas perform together. get_replica_context() in strategy/strategy.h returns the
// context of the calling thread.

#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "tutti/base/call_site.h"
#include "tutti/device/device_spec.h"
#include "tutti/nest/nest.h"
#include "tutti/values/communication_options.h"
#include "tutti/values/context_frame.h"
#include "tutti/values/meeting.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/reduce_op.h"
#include "tutti/values/strategy_services.h"

namespace tutti {

class Strategy;
class Variable;

/// One per replica; lives as long as its strategy.
///
/// merge_call, all_reduce and all_gather are meeting points: every replica must
/// make the same calls in the same order. Calls that differ are detected immediately
/// and reported on every replica. They may be called only from the function
/// that runs on this replica, or from a thread that has called enter().
class ReplicaContext {
 public:
  /// `services` outlives the context.
  ReplicaContext(StrategyServices& services, int replica_id, int local_id, int num_replicas,
                 DeviceSpec device);

  ReplicaContext(const ReplicaContext&) = delete;
  ReplicaContext& operator=(const ReplicaContext&) = delete;

  /// 0 ... num_replicas_in_sync() - 1, over all workers.
  int replica_id_in_sync_group() const { return replica_id_; }
  int num_replicas_in_sync() const { return num_replicas_; }
  const DeviceSpec& device() const { return device_; }
  Strategy strategy() const;

  /// Calls fn(strategy, PerReplica<A>...) once, in cross-replica context, with
  /// the arguments of all replicas. A PerReplica or Mirrored result is handed
  /// out component by component, any other is copied to every replica. An array, such as a string
  /// literal, is passed as a pointer to its first element.
  template <class F, class... A>
  auto merge_call(const F& fn, const A&... args);

  /// The reduction of `value` over all replicas, on every replica. Dense tensors
  /// must have equal shapes; IndexedSlices are concatenated. Differentiable for
  /// kSum and kMean: the gradient is reduced in the same way.
  template <class T>
    requires(!std::derived_from<T, Variable>)
  T all_reduce(ReduceOp op, const T& value, const CommunicationOptions& options = {},
               CallSite site = CallSite::current());

  /// The reduction of the replicas' copies of a variable.
  at::Tensor all_reduce(ReduceOp op, const Variable& variable,
                        const CommunicationOptions& options = {},
                        CallSite site = CallSite::current());

  /// all_reduce into the memory of `value`: nothing is allocated. Tensors must
  /// be dense, contiguous, and not require a gradient.
  template <class T>
  void all_reduce_(ReduceOp op, T& value, const CommunicationOptions& options = {},
                   CallSite site = CallSite::current());

  /// The tensors of all replicas, concatenated along `axis` in replica order;
  /// sizes may differ along `axis` only. Differentiable.
  template <class T>
    requires(!std::derived_from<T, Variable>)
  T all_gather(const T& value, int64_t axis, const CommunicationOptions& options = {},
               CallSite site = CallSite::current());
  at::Tensor all_gather(const Variable& variable, int64_t axis,
                        const CommunicationOptions& options = {},
                        CallSite site = CallSite::current());

  /// Calls fn(variable, args...) for every copy of the variable, once each and in
  /// cross-replica context, and returns the result for this replica's copy. Copy i gets
  /// the arguments of replica i. All replicas must call it; the function called is
  /// replica 0's, so what differs between replicas must be an argument.
  template <class F, class... A>
  auto update(const Variable& variable, const F& fn, const A&... args);

  /// Makes this the context of the calling thread while the result lives: for
  /// threads that a replica's function starts.
  [[nodiscard]] internal::FrameScope enter() { return {services_, this}; }

  /// Position among the replicas of this process.
  int local_replica_id() const { return local_id_; }

 private:
  template <class F, class... A>
  auto merge(const F& fn, const A&... args);

  // Throws kFailedPrecondition unless this is the calling thread's context.
  void check_current(const char* function) const;

  StrategyServices* services_;
  int replica_id_;
  int local_id_;
  int num_replicas_;
  DeviceSpec device_;
};

namespace internal {

template <class T>
struct handed_out {
  using type = T;
  static const T& select(const T& value, size_t) { return value; }
};
template <class T>
struct handed_out<PerReplica<T>> {
  using type = T;
  static T select(PerReplica<T>& value, size_t i) { return std::move(value[i]); }
};
template <class T>
struct handed_out<Mirrored<T>> {
  using type = T;
  static const T& select(const Mirrored<T>& value, size_t i) { return value[i]; }
};
template <>
struct handed_out<void> {
  using type = void;
};

// Passes arrays as the pointers they decay to, everything else unchanged.
template <class A>
std::conditional_t<std::is_array_v<A>, std::decay_t<const A>, const A&> decayed(const A& arg) {
  return arg;
}

// ReplicaContext, but looked up only when F is known: Strategy is incomplete here.
template <class>
struct context_for {
  using type = const ReplicaContext;
};

/// Calls the function of replica 0 with the arguments of all replicas. Threads: as MeetingRequest.
template <class F, class... A>
class MergeRequest final : public MeetingRequest {
 public:
  using Returned = std::decay_t<std::invoke_result_t<const F&, Strategy, PerReplica<A>...>>;
  using Result = typename handed_out<Returned>::type;

  MergeRequest(const ReplicaContext& context, const F& fn, const A&... args)
      : MeetingRequest("merge_call", last_context_site(), Completer::kFirst),
        context_(context),
        fn_(fn),
        args_(args...) {}

  std::string describe() const override { return "merge_call of " + type_name(typeid(F)); }

  void complete(std::span<MeetingRequest* const> requests) override {
    complete(requests, std::index_sequence_for<A...>{});
  }

  std::conditional_t<std::is_void_v<Result>, char, std::optional<Result>> result{};

 private:
  template <size_t... I>
  void complete(std::span<MeetingRequest* const> requests, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<Result>) {
      fn_(context_.strategy(), collect<I>(requests)...);
    } else {
      Returned returned = fn_(context_.strategy(), collect<I>(requests)...);
      for (size_t i = 0; i < requests.size(); ++i) {
        static_cast<MergeRequest*>(requests[i])
            ->result.emplace(handed_out<Returned>::select(returned, i));
      }
    }
  }

  template <size_t I>
  static auto collect(std::span<MeetingRequest* const> requests) {
    using T = std::tuple_element_t<I, std::tuple<A...>>;
    Slots<T> slots(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      slots[i].emplace(std::get<I>(static_cast<MergeRequest*>(requests[i])->args_));
    }
    return PerReplica<T>(FromSlots{}, std::move(slots));
  }

  typename context_for<F>::type& context_;
  const F& fn_;
  std::tuple<const A&...> args_;
};

}  // namespace internal

template <class F, class... A>
auto ReplicaContext::merge_call(const F& fn, const A&... args) {
  if constexpr ((std::is_array_v<A> || ...)) {
    return merge_call(fn, internal::decayed(args)...);
  } else {
    return merge(fn, args...);
  }
}

template <class F, class... A>
auto ReplicaContext::merge(const F& fn, const A&... args) {
  constexpr bool callable = std::is_invocable_v<const F&, Strategy, PerReplica<A>...>;
  static_assert(
      callable,
      "ReplicaContext::merge_call: fn cannot be called with (Strategy, PerReplica<A>...), "
      "one PerReplica for each further argument of merge_call; a `mutable` lambda is not "
      "accepted");
  if constexpr (callable) {
    check_current("merge_call");
    internal::MergeRequest<F, A...> request(*this, fn, args...);
    services_->meet(*this, request);
    if constexpr (!std::is_void_v<typename decltype(request)::Result>) {
      return std::move(*request.result);
    }
  }
}

template <class F, class... A>
auto ReplicaContext::update(const Variable& variable, const F& fn, const A&... args) {
  check_current("update");
  typename internal::context_for<F>::type& self = *this;
  return self.strategy().extended().update_own(local_id_, variable, fn, args...);
}

template <class T>
  requires(!std::derived_from<T, Variable>)
T ReplicaContext::all_reduce(ReduceOp op, const T& value, const CommunicationOptions& options,
                             CallSite site) {
  static_assert(Nest<T>,
                "ReplicaContext::all_reduce: the value is not a nest (tensor, IndexedSlices, "
                "arithmetic type, or tuple, pair, array, vector, optional, string-keyed map or "
                "plain struct of those; a struct has 1-16 fields and no base class, C array, "
                "bit-field, const or reference field)");
  if constexpr (Nest<T>) {
    check_current("all_reduce");
    T result = value;
    services_->all_reduce(*this, op, leaves_of(result), structure_of(value), options, site);
    return result;
  }
}

template <class T>
void ReplicaContext::all_reduce_(ReduceOp op, T& value, const CommunicationOptions& options,
                                 CallSite site) {
  static_assert(Nest<T>, "ReplicaContext::all_reduce_: the value is not a nest of tensors");
  if constexpr (Nest<T>) {
    check_current("all_reduce_");
    services_->all_reduce_in_place(*this, op, leaves_of(value), structure_of(value), options, site);
  }
}

template <class T>
  requires(!std::derived_from<T, Variable>)
T ReplicaContext::all_gather(const T& value, int64_t axis, const CommunicationOptions& options,
                             CallSite site) {
  static_assert(Nest<T>, "ReplicaContext::all_gather: the value is not a nest of tensors");
  if constexpr (Nest<T>) {
    check_current("all_gather");
    T result = value;
    services_->all_gather(*this, leaves_of(result), structure_of(value), axis, options, site);
    return result;
  }
}

}  // namespace tutti
