// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/worker_all_reduce.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/thread_ranks.h"

namespace tutti::worker_all_reduce_test {

using testing::run_thread_ranks;

void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  for (const std::exception_ptr& each : errors) {
    if (each != nullptr) std::rethrow_exception(each);
  }
}

at::Tensor value_of(int replica, int64_t count, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(replica) + 1);
  if (at::isIntegralType(dtype, false)) {
    return at::randint(-50, 50, {count}, generator, at::TensorOptions().dtype(dtype));
  }
  return at::randn({count}, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

// Each worker reduces its own replicas to nodes, then all workers reduce those; the bits must be
// those of the canonical tree over all replicas in one place.
void compare(int workers, int local, int64_t count, at::ScalarType dtype, ReduceOp op) {
  std::vector<at::Tensor> values;
  for (int g = 0; g < workers * local; ++g) values.push_back(value_of(g, count, dtype));
  const at::Tensor expected = reduce_tree(op, values);
  const WorkerTree tree(workers, local);
  std::vector<at::Tensor> results(static_cast<size_t>(workers));
  std::vector<uint64_t> sent(static_cast<size_t>(workers));
  rethrow_first(run_thread_ranks(workers, [&](WorkerGroup& group) {
    const int rank = group.rank();
    const at::ScalarType inner = node_dtype(op, dtype);
    WorkerReduction job;
    job.op = op;
    job.dtype = dtype;
    job.count = count;
    std::vector<at::Tensor> nodes;
    for (const TreeNode& node : tree.nodes(rank)) {
      nodes.push_back(group.arena()->empty({count}, inner));
      std::vector<const void*> inputs;
      for (int g = node.begin; g < node.end; ++g) {
        inputs.push_back(values[static_cast<size_t>(g)].data_ptr());
      }
      reduce_to_node(op, dtype, inputs, nodes.back().data_ptr(), 0, count);
      job.nodes.push_back(nodes.back().data_ptr());
    }
    at::Tensor output = inner == dtype ? nodes[0] : at::empty({count}, expected.options());
    job.outputs.push_back(output.data_ptr());
    Lane& lane = group.lane(LaneKind::kGradients);
    Operation operation;
    operation.name = "value";
    const std::vector<int64_t> sizes = {count};
    operation.sizes = sizes;
    start_all_reduce(lane, tree, job, operation, lane.deadline())->wait();
    results[static_cast<size_t>(rank)] = output.clone();
    sent[static_cast<size_t>(rank)] = lane.bytes_sent();
  }));
  for (int r = 0; r < workers; ++r) {
    const at::Tensor& got = results[static_cast<size_t>(r)];
    EXPECT_EQ(std::memcmp(got.data_ptr(), expected.data_ptr(), expected.nbytes()), 0)
        << workers << "x" << local << " " << count << " " << dtype << " rank " << r;
  }
}

TEST(WorkerAllReduce, GivesTheBitsOfTheTreeOverAllReplicas) {
  for (const auto& [workers, local] : std::vector<std::pair<int, int>>{{1, 1},
                                                                       {2, 1},
                                                                       {3, 1},
                                                                       {4, 1},
                                                                       {5, 1},
                                                                       {2, 2},
                                                                       {2, 3},
                                                                       {3, 2},
                                                                       {3, 3},
                                                                       {4, 2},
                                                                       {2, 5}}) {
    for (const int64_t count : {1, 7, 5000, 300007}) {
      compare(workers, local, count, at::kFloat, ReduceOp::kSum);
    }
    compare(workers, local, 70001, at::kHalf, ReduceOp::kMean);
    compare(workers, local, 70001, at::kDouble, ReduceOp::kMean);
    compare(workers, local, 301, at::kLong, ReduceOp::kMax);
  }
}

// There are so many blocks that memory for results is reused often, and the last block is short.
TEST(WorkerAllReduce, GivesTheSameBitsInManyBlocks) {
  constexpr int64_t kCount = 2'500'003;
  for (const int workers : {2, 3, 4}) {
    compare(workers, 1, kCount, at::kFloat, ReduceOp::kSum);
    compare(workers, 2, kCount, at::kHalf, ReduceOp::kMean);
    compare(workers, 3, kCount, at::kFloat, ReduceOp::kSum);
  }
}

// ---- a peer whose ring is full

// The message of the peer has arrived from the beginning; what is posted is kept.
class CrowdedLink final : public Link {
 public:
  CrowdedLink(std::atomic<int>& refusals, Incoming incoming, std::vector<float>& posted)
      : refusals_(refusals), incoming_(incoming), posted_(posted) {}

  size_t room() override { return refusals_.fetch_sub(1) <= 0 ? 1 << 20 : 0; }
  void post(const MessageHead&, const Fingerprint&, Pieces pieces, Use) override {
    for (const auto& piece : pieces) {
      const auto* const values = reinterpret_cast<const float*>(piece.data());
      posted_.insert(posted_.end(), values, values + piece.size() / sizeof(float));
    }
  }
  bool drained() override { return true; }
  const Incoming* peek() override { return &incoming_; }
  void pop() override {}
  void wait(const Deadline&, FunctionRef<bool()>) override {}
  std::optional<PeerFailure> failure(Look) override { return std::nullopt; }
  void abort(ErrorCode, const std::string&, const std::optional<Deadline>&) override {}

 private:
  std::atomic<int>& refusals_;
  Incoming incoming_;
  std::vector<float>& posted_;
};

// The result overwrites this rank's value, which the peer must get unchanged.
TEST(WorkerAllReduce, SendsItsValuesBeforeItOverwritesThem) {
  const std::vector<float> theirs = {10, 20, 30};
  const int64_t count = 3;
  Operation operation;
  operation.name = "x";
  operation.sizes = c10::IntArrayRef(&count, 1);
  Operation described = operation;
  described.kind = OperationKind::kAllReduce;
  described.op = ReduceOp::kSum;
  described.dtype = at::kFloat;
  const Fingerprint fingerprint = make_fingerprint(described, 1);
  Incoming incoming;
  incoming.head = {fingerprint.hash, 0, 3, 0};
  incoming.fingerprint = &fingerprint;
  incoming.bytes = std::as_bytes(std::span(theirs));
  std::atomic<int> refusals{2};
  std::vector<float> posted;
  WorkerGroup::Links links(kLanes);
  for (auto& each : links) {
    each.push_back(nullptr);
    each.push_back(std::make_unique<CrowdedLink>(refusals, incoming, posted));
  }
  WorkerGroup::Options options;
  options.epoch = 1;
  options.names = {"rank 0", "rank 1"};
  WorkerGroup group(options, std::move(links), nullptr, nullptr);
  const WorkerTree tree(2, 1);
  std::vector<float> values = {1, 2, 3};
  WorkerReduction job;
  job.count = count;
  job.nodes.push_back(values.data());
  job.outputs.push_back(values.data());
  Lane& lane = group.lane(LaneKind::kGradients);
  const auto transfer = start_all_reduce(lane, tree, std::move(job), operation, lane.deadline());
  EXPECT_FALSE(transfer->advance());
  EXPECT_FALSE(transfer->advance());
  EXPECT_TRUE(transfer->advance());
  EXPECT_EQ(posted, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(values, (std::vector<float>{11, 22, 33}));
}

// The other ranks get the text of an error in the middle of a reduction.
class WorkerAllReduceOf : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Elements, WorkerAllReduceOf, ::testing::Values(3, 100'000));

TEST_P(WorkerAllReduceOf, TellsTheOthersWhyItFailed) {
  const auto errors = run_thread_ranks(3, [](WorkerGroup& group) {
    const WorkerTree tree(3, 1);
    std::vector<float> values(GetParam(), 1.0F);
    WorkerReduction job;
    job.count = static_cast<int64_t>(values.size());
    job.nodes.push_back(values.data());
    job.outputs.push_back(values.data());
    if (group.rank() == 1) {
      job.prepare = [](int64_t, int64_t) { throw std::runtime_error("no more paper"); };
    }
    Operation operation;
    operation.name = "x";
    Lane& lane = group.lane(LaneKind::kGradients);
    start_all_reduce(lane, tree, std::move(job), operation, lane.deadline())->wait();
  });
  for (size_t r = 0; r < errors.size(); ++r) {
    ASSERT_NE(errors[r], nullptr);
    try {
      std::rethrow_exception(errors[r]);
    } catch (const Error& error) {
      EXPECT_NE(r, 1U);
      EXPECT_EQ(error.code(), ErrorCode::kCancelled);
      EXPECT_NE(std::string(error.what()).find("no more paper"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("task:1"), std::string::npos) << error.what();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(r, 1U) << error.what();
    }
  }
}

}  // namespace tutti::worker_all_reduce_test
