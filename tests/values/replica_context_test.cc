// SPDX-License-Identifier: Apache-2.0
//
// Contexts without a strategy: services that record what they are asked.

#include "tutti/values/replica_context.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/thread.h"
#include "tutti/strategy/strategy.h"

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti {
namespace {

using test::tensor;

class RecordingServices : public StrategyServices {
 public:
  void meet(ReplicaContext&, MeetingRequest& request) override { record(request.describe()); }
  void all_reduce(ReplicaContext&, ReduceOp op, const LeafList& leaves,
                  const std::string& structure, const CommunicationOptions& options,
                  CallSite site) override {
    record(message("all_reduce ", op, ' ', leaves.size(), " '", structure, "' ",
                   options.bytes_per_pack, ' ', site));
    for (const Leaf& leaf : leaves) visit_scalar(leaf, [](auto& x) { x += 1; });
  }
  void all_reduce_in_place(ReplicaContext&, ReduceOp op, const LeafList& leaves,
                           const std::string& structure, const CommunicationOptions&,
                           CallSite site) override {
    record(message("all_reduce_ ", op, ' ', leaves.size(), " '", structure, "' ", site));
    for (const Leaf& leaf : leaves) visit_scalar(leaf, [](auto& x) { x += 1; });
  }
  void all_gather(ReplicaContext&, const LeafList& leaves, const std::string& structure,
                  int64_t axis, const CommunicationOptions&, CallSite site) override {
    record(message("all_gather ", leaves.size(), " '", structure, "' ", axis, ' ', site));
  }

  // Variables ask for these; contexts do not.
  std::string describe() const override { return "RecordingServices"; }
  int num_replicas_in_sync() const override { return 6; }
  bool is_ambient() const override { return false; }
  std::shared_ptr<VariableImpl> create_variable(const VariableCreation&) override {
    return nullptr;
  }
  void combine_update(ReplicaContext&, const VariableUpdate&) override {}
  at::Tensor reduce(ReduceOp, const PerReplica<at::Tensor>& value) override { return value[0]; }

  std::string take() { return std::exchange(last_, ""); }

 private:
  void record(std::string what) { last_ = std::move(what); }

  std::string last_;
};

class ReplicaContextTest : public ::testing::Test {
 protected:
  static std::string here(int line) { return message("replica_context_test.cc:", line); }

  RecordingServices services_;
  ReplicaContext first_{services_, 4, 0, 6, DeviceSpec::parse("CPU:0")};
  ReplicaContext second_{services_, 5, 1, 6, DeviceSpec::parse("CPU:1")};
};

TEST_F(ReplicaContextTest, KnowsWhoItIs) {
  EXPECT_EQ(second_.replica_id_in_sync_group(), 5);
  EXPECT_EQ(second_.local_replica_id(), 1);
  EXPECT_EQ(second_.num_replicas_in_sync(), 6);
  EXPECT_EQ(second_.device().short_name(), "CPU:1");
}

TEST_F(ReplicaContextTest, FramesNestAndEndWithTheirObjects) {
  EXPECT_EQ(internal::current_frame(), nullptr);
  EXPECT_EQ(internal::current_local_replica(), -1);
  {
    const auto outer = second_.enter();
    EXPECT_EQ(internal::current_frame()->replica, &second_);
    EXPECT_EQ(internal::current_local_replica(), 1);
    {
      const internal::FrameScope cross(&services_, nullptr);
      EXPECT_EQ(internal::current_local_replica(), -1);
      EXPECT_EQ(internal::current_frame()->previous->replica, &second_);
      EXPECT_EQ(internal::current_frame()->services, &services_);
    }
    EXPECT_EQ(internal::current_local_replica(), 1);
  }
  EXPECT_EQ(internal::current_frame(), nullptr);
}

TEST_F(ReplicaContextTest, AFrameBelongsToOneThread) {
  const auto entered = second_.enter();
  int seen = 0;
  {
    Thread other("other", [&] { seen = internal::current_local_replica(); });
  }
  EXPECT_EQ(seen, -1);
}

TEST_F(ReplicaContextTest, AMirroredValueIsTheComponentOfTheReplica) {
  const Mirrored<int> value(std::vector{10, 20});
  const Mirrored<int> single(std::vector{10});
  {
    const auto entered = second_.enter();
    EXPECT_EQ(value.value(), 20);
    EXPECT_EQ(Mirrored<int>(value).value(), 20);
    EXPECT_EQ(single.value(), 10) << "fewer components than replicas";
  }
  EXPECT_EQ(value.value(), 10);
}

TEST_F(ReplicaContextTest, OperationsReachTheHostWithLeavesStructureAndLine) {
  const auto entered = first_.enter();
  const std::tuple<int, std::vector<float>> value(1, {2.f, 3.f});
  const auto result = first_.all_reduce(ReduceOp::kSum, value, {.bytes_per_pack = 9});
  EXPECT_EQ(services_.take(), "all_reduce kSum 3 '[2 ' 9 " + here(__LINE__ - 1));
  EXPECT_EQ(std::get<0>(result), 2);
  EXPECT_EQ(std::get<1>(result)[1], 4.f);
  EXPECT_EQ(std::get<0>(value), 1) << "the argument is left alone";

  double number = 1;
  first_.all_reduce_(ReduceOp::kMax, number);
  EXPECT_EQ(services_.take(), "all_reduce_ kMax 1 '' " + here(__LINE__ - 1));
  EXPECT_EQ(number, 2) << "written in place";

  first_.all_gather(std::pair(tensor({1.f}), tensor({2.f})), -1);
  EXPECT_EQ(services_.take(), "all_gather 2 '' -1 " + here(__LINE__ - 1));
}

TEST_F(ReplicaContextTest, CallingOutsideOfARunIsAnError) {
  EXPECT_TUTTI_ERROR(first_.all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                     "ReplicaContext::all_reduce: this is the context of replica 4",
                     "the calling thread is outside Strategy::run", "enter()");
  double number = 1;
  EXPECT_TUTTI_ERROR(first_.all_reduce_(ReduceOp::kSum, number), ErrorCode::kFailedPrecondition,
                     "ReplicaContext::all_reduce_");
  EXPECT_TUTTI_ERROR(first_.all_gather(tensor({1.f}), 0), ErrorCode::kFailedPrecondition,
                     "ReplicaContext::all_gather");
  EXPECT_TUTTI_ERROR(first_.merge_call([](const Strategy&) {}), ErrorCode::kFailedPrecondition,
                     "ReplicaContext::merge_call");
  EXPECT_EQ(services_.take(), "") << "the strategy was not asked";
}

TEST_F(ReplicaContextTest, CallingOnAnotherContextIsAnError) {
  {
    const auto entered = second_.enter();
    EXPECT_TUTTI_ERROR(first_.all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                       "context of replica 4, but the calling thread is in replica 5.");
  }
  {
    RecordingServices other;
    ReplicaContext stranger(other, 0, 0, 1, DeviceSpec::parse("CPU:0"));
    const auto entered = stranger.enter();
    EXPECT_TUTTI_ERROR(first_.all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                       "the calling thread is in replica 0 of another strategy");
  }
  const internal::FrameScope cross(&services_, nullptr);
  EXPECT_TUTTI_ERROR(first_.all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                     "the calling thread is in cross-replica context");
}

}  // namespace
}  // namespace tutti
