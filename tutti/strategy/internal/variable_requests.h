// SPDX-License-Identifier: Apache-2.0
//
// The requests that replicas submit to make or write variables together.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tutti/strategy/internal/all_reduce_request.h"
#include "tutti/values/variable_impl.h"

namespace tutti::internal {

/// Every replica requests a variable; the one requested by replica 0 is made. Names may differ:
/// replicas that requested a different one repeat their request. Threads: as MeetingRequest.
class CreateVariableRequest final : public MeetingRequest {
 public:
  using Make = FunctionRef<void()>;

  /// `make` is called on the request of local replica 0 only.
  CreateVariableRequest(const VariableCreation& creation, Make make)
      : MeetingRequest("Variable", creation.site, Completer::kFirst),
        name_(creation.options.name),
        make_(make) {}

  std::string_view subject() const override { return name_; }
  std::string describe() const override { return "Variable '" + name_ + "'"; }
  void complete(std::span<MeetingRequest* const>) override { make_(); }

 private:
  const std::string& name_;
  Make make_;
};

/// Combines the values of all replicas by kSum or kMean. A value that is the same on all replicas
/// is not a contribution of each: it is its own mean, and kSum rejects it unless it is zero.
/// Threads: as MeetingRequest.
class CombineUpdateRequest final : public AllReduceRequest {
 public:
  CombineUpdateRequest(StrategyExtended& strategy, const ReplicaContext& context,
                       const VariableUpdate& update);

  std::string_view subject() const override { return update_.variable.options().name; }
  std::string describe() const override;
  void complete(std::span<MeetingRequest* const> requests) override;

 private:
  std::string label() const override;
  bool is_same_as(const CombineUpdateRequest& other) const;
  bool is_same_here(std::span<MeetingRequest* const> requests) const;
  bool is_same_everywhere(std::span<MeetingRequest* const> requests, bool same_here) const;
  bool is_zero() const;

  StrategyExtended& strategy_;
  const VariableUpdate& update_;
  int replicas_;
};

/// Gives the value of replica 0 of worker 0 to all replicas. Threads: as MeetingRequest.
class FirstUpdateRequest final : public MeetingRequest {
 public:
  FirstUpdateRequest(StrategyExtended& strategy, const VariableUpdate& update);

  std::string_view subject() const override { return update_.variable.options().name; }
  std::string describe() const override;
  void complete(std::span<MeetingRequest* const> requests) override;

  /// Replaces the leaf; called after the meeting.
  void hand_out();

 private:
  void copy_from(const Leaf& first);

  StrategyExtended& strategy_;
  const VariableUpdate& update_;
  at::Tensor tensor_;
  std::optional<IndexedSlices> slices_;
};

}  // namespace tutti::internal
