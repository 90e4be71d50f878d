// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/extending.md.

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

#include "tests/support/expect_error.h"

namespace {

using tutti::ReduceOp;

// [snippet ops]
// Adds in float64, whatever the type of the tensors, and rounds once.
class SumInFloat64 final : public tutti::CrossDeviceOps {
  at::Tensor do_reduce(tutti::ReduceOp op, const tutti::PerReplica<at::Tensor>& value,
                       const tutti::CommunicationOptions&) override {
    if (op != tutti::ReduceOp::kSum) {
      throw tutti::Error(tutti::ErrorCode::kUnimplemented,
                         tutti::message("SumInFloat64: ", op, " is not supported; use kSum."));
    }
    torch::NoGradGuard no_grad;
    at::Tensor sum = value[0].to(torch::kFloat64);
    for (size_t i = 1; i < value.size(); ++i) {
      sum = sum + value[i].to(sum.device(), torch::kFloat64);
    }
    return sum.to(value[0].scalar_type());
  }
};
// [/snippet]

TEST(Extending, TakesOwnCrossDeviceOps) {
  // [snippet use_ops]
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"},
                                   {.cross_device_ops = std::make_shared<SumInFloat64>()});
  // [/snippet]
  const auto sums = strategy.run([] {
    const int id = tutti::get_replica_context()->replica_id_in_sync_group();
    const double value = id == 0 ? 1e8 : id == 1 ? 1 : -1e8;
    return tutti::get_replica_context()->all_reduce(ReduceOp::kSum,
                                                    torch::full({2}, value, torch::kFloat32));
  });
  EXPECT_EQ(sums[0][0].item<float>(), 1);  // float32 alone would give 0
  EXPECT_EQ(sums[2][1].item<float>(), 1);
  const auto plain = strategy.run([] { return torch::ones({2}); });
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, plain)[0].item<double>(), 3);
  EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kMax, plain), tutti::ErrorCode::kUnimplemented,
                     "SumInFloat64: kMax");
}

// [snippet ops_team]
// The same for kSum on the CPU; each member of the team adds its part of every tensor.
class SumByParts final : public tutti::CrossDeviceOps {
  at::Tensor do_reduce(tutti::ReduceOp, const tutti::PerReplica<at::Tensor>& value,
                       const tutti::CommunicationOptions&) override {
    torch::NoGradGuard no_grad;
    at::Tensor sum = value[0].clone();
    for (size_t i = 1; i < value.size(); ++i) sum += value[i];
    return sum;
  }

  void do_all_reduce(const tutti::AllReduceBatch& batch,
                     const tutti::CommunicationOptions&) override {
    torch::NoGradGuard no_grad;
    const auto me = static_cast<int64_t>(batch.member());
    const auto members = static_cast<int64_t>(batch.members());
    for (size_t t = 0; t < batch.tensors(); ++t) {
      const int64_t all = batch.input(0, t).numel();
      const int64_t begin = all * me / members;
      const int64_t length = all * (me + 1) / members - begin;
      const auto part = [&](const at::Tensor& tensor) {
        return tensor.view({-1}).narrow(0, begin, length);
      };
      at::Tensor sum = part(batch.input(0, t)).clone();
      for (size_t r = 1; r < batch.replicas(); ++r) sum += part(batch.input(r, t));
      for (size_t r = 0; r < batch.replicas(); ++r) part(batch.output(r, t)).copy_(sum);
    }
  }
};
// [/snippet]

TEST(Extending, SharesTheWorkWithTheTeam) {
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"},
                                   {.cross_device_ops = std::make_shared<SumByParts>()});
  for (const int64_t size : {int64_t{5}, int64_t{100'001}}) {
    const auto sums = strategy.run([size] {
      at::Tensor value = torch::arange(size);
      tutti::get_replica_context()->all_reduce_(ReduceOp::kSum, value);
      return value;
    });
    EXPECT_TRUE(torch::equal(sums[0], 2 * torch::arange(size)));
    EXPECT_TRUE(torch::equal(sums[1], 2 * torch::arange(size)));
  }
}

// [snippet extended]
// Replicas on threads, as in MirroredStrategy, and a count of the steps.
class CountingExtended final : public tutti::StrategyExtended {
 public:
  explicit CountingExtended(const std::vector<tutti::DeviceSpec>& devices)
      : StrategyExtended("CountingStrategy", devices), runner_(name(), *this, contexts()) {}

  int steps() const { return steps_; }

  tutti::CrossDeviceOps& cross_device_ops() override { return cross_device_ops_; }
  void meet(tutti::ReplicaContext& context, tutti::MeetingRequest& request) override {
    runner_.meet(context.local_replica_id(), request);
  }

 private:
  void do_call_for_each_replica(tutti::FunctionRef<void(tutti::ReplicaContext&)> fn) override {
    ++steps_;
    runner_.run(fn);
  }

  int steps_ = 0;
  tutti::HostAllReduce cross_device_ops_;
  tutti::ReplicaRunner runner_;
};
// [/snippet]

TEST(Extending, MakesAStrategyOfItsOwn) {
  // [snippet use_extended]
  auto extended = std::make_shared<CountingExtended>(std::vector<tutti::DeviceSpec>{
      tutti::DeviceSpec::canonical("CPU:0"), tutti::DeviceSpec::canonical("CPU:1")});
  tutti::Strategy strategy(extended);
  auto sums = strategy.run(
      [] { return tutti::get_replica_context()->all_reduce(tutti::ReduceOp::kSum, 1.0); });
  // [/snippet]
  EXPECT_EQ(sums[1], 2);
  EXPECT_EQ(extended->steps(), 1);
  EXPECT_EQ(strategy.extended().describe(), "CountingStrategy(CPU:0, CPU:1)");
}

// [snippet meeting]
// Every replica brings a number; all leave with the largest.
class LargestRequest final : public tutti::MeetingRequest {
 public:
  LargestRequest(double mine, tutti::CallSite site)
      : MeetingRequest("largest", site, Completer::kLast), value(mine) {}

  std::string describe() const override { return "largest of a double"; }
  void complete(std::span<MeetingRequest* const> requests) override {
    for (auto* each : requests) value = std::max(value, static_cast<LargestRequest*>(each)->value);
    for (auto* each : requests) static_cast<LargestRequest*>(each)->value = value;
  }

  double value;
};

double largest(double mine, tutti::CallSite site = tutti::CallSite::current()) {
  tutti::ReplicaContext& context = *tutti::get_replica_context();
  LargestRequest request(mine, site);
  context.strategy().extended().meet(context, request);
  return request.value;
}
// [/snippet]

TEST(Extending, MeetsForARequestOfItsOwn) {
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto values = strategy.run(
      [] { return largest(tutti::get_replica_context()->replica_id_in_sync_group()); });
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 1);
}

}  // namespace
