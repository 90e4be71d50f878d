// SPDX-License-Identifier: Apache-2.0
//
// A strategy as a user of the library would write it: its own StrategyExtended, its own
// CrossDeviceOps, which adds in the order 0, 1, 2, ..., and its own Arena.

#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tutti/collectives/cross_device_ops.h"
#include "tutti/strategy/replica_runner.h"
#include "tutti/strategy/strategy.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::test {

class OutsideArena final : public Arena {
 public:
  int allocations() const { return allocations_.load(); }

 private:
  std::shared_ptr<void> do_allocate(size_t bytes) override {
    allocations_.fetch_add(1);
    return {std::aligned_alloc(64, (bytes + 63) / 64 * 64), [](void* data) { std::free(data); }};
  }

  std::atomic<int> allocations_{0};
};

class OutsideOps final : public CrossDeviceOps {
 public:
  OutsideOps() : CrossDeviceOps(std::make_shared<OutsideArena>()) {}

 private:
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions&) override {
    const c10::NoGradGuard no_grad;
    at::Tensor result = value[0].clone();
    for (size_t i = 1; i < value.size(); ++i) result = combine(op, result, value[i]);
    if (op != ReduceOp::kMean) return result;
    const auto count = static_cast<double>(value.size());
    if (!at::isIntegralType(result.scalar_type(), /*includeBool=*/false)) return result / count;
    const bool wide = result.element_size() >= 4;
    return result.to(wide ? at::kDouble : at::kFloat) / count;
  }

  static at::Tensor combine(ReduceOp op, const at::Tensor& a, const at::Tensor& b) {
    switch (op) {
      case ReduceOp::kMin:
        return at::minimum(a, b);
      case ReduceOp::kMax:
        return at::maximum(a, b);
      case ReduceOp::kProduct:
        return at::mul(a, b);
      default:
        return at::add(a, b);
    }
  }
};

class OutsideExtended final : public StrategyExtended {
 public:
  explicit OutsideExtended(int replicas)
      : StrategyExtended("OutsideStrategy", devices_of(replicas)),
        runner_(name(), *this, contexts()) {}

  CrossDeviceOps& cross_device_ops() override { return ops_; }
  void meet(ReplicaContext& context, MeetingRequest& request) override {
    runner_.meet(context.local_replica_id(), request);
  }

 private:
  static std::vector<DeviceSpec> devices_of(int count) {
    std::vector<DeviceSpec> devices;
    for (int i = 0; i < count; ++i) {
      devices.push_back(DeviceSpec::canonical("CPU:" + std::to_string(i)));
    }
    return devices;
  }

  void do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) override { runner_.run(fn); }

  OutsideOps ops_;
  ReplicaRunner runner_;
};

class OutsideStrategy : public Strategy {
 public:
  explicit OutsideStrategy(int replicas) : Strategy(std::make_shared<OutsideExtended>(replicas)) {}
};

}  // namespace tutti::test
