// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/worker_all_reduce.h"

#include <cstring>
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

// Each worker reduces its own replicas to nodes, then all together; the bits must be those of the
// canonical tree over all replicas in one place.
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
    Communicator& channel = group.channel(GroupChannel::kGradients);
    Operation operation;
    operation.name = "value";
    const std::vector<int64_t> sizes = {count};
    operation.sizes = sizes;
    start_all_reduce(channel, tree, job, operation, channel.deadline())->wait();
    results[static_cast<size_t>(rank)] = output.clone();
    sent[static_cast<size_t>(rank)] = channel.bytes_sent();
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

// So many blocks that memory for results is used again and again, with a short one at the end.
TEST(WorkerAllReduce, GivesTheSameBitsInManyBlocks) {
  constexpr int64_t kCount = 2'500'003;
  for (const int workers : {2, 3, 4}) {
    compare(workers, 1, kCount, at::kFloat, ReduceOp::kSum);
    compare(workers, 2, kCount, at::kHalf, ReduceOp::kMean);
    compare(workers, 3, kCount, at::kFloat, ReduceOp::kSum);
  }
}

}  // namespace tutti::worker_all_reduce_test
