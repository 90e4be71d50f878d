// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/replicas-and-values.md.

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

#include "tests/support/expect_error.h"

// [snippet nest_fields]
class Sample {  // has a constructor, so it is not an aggregate
 public:
  explicit Sample(at::Tensor tensor) : data(std::move(tensor)) {}
  at::Tensor data;
  double weight = 1;
};

template <>
struct tutti::nest_fields<Sample> {
  static auto of(auto& sample) { return std::tie(sample.data, sample.weight); }
};
// [/snippet]

namespace {

using tutti::ErrorCode;
using tutti::ReduceOp;

const std::vector<std::string> kTwo = {"CPU:0", "CPU:1"};

TEST(ReplicasAndValues, SelectsPerReplicaArgumentsAndSharesTheRest) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet arguments]
  auto shares = strategy.distribute_values_from_function([](tutti::ValueContext replica) {
    return torch::full({2}, 10.0 * replica.replica_id_in_sync_group);
  });
  const at::Tensor offset = torch::ones({2});
  auto sums = strategy.run([](const at::Tensor& share, const at::Tensor& plus,
                              double factor) { return (factor * (share + plus)).sum(); },
                           shares, offset,
                           0.5);  // shares is per replica; offset and 0.5 are the same everywhere
  // [/snippet]
  EXPECT_EQ(sums[0].item<double>(), 1);
  EXPECT_EQ(sums[1].item<double>(), 11);
}

TEST(ReplicasAndValues, SpreadsTuples) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet tuples]
  auto batch = strategy.distribute_values_from_function([](tutti::ValueContext replica) {
    const double id = replica.replica_id_in_sync_group;
    return std::tuple(torch::full({3}, id), torch::ones({3}));
  });
  auto [losses, counts] = strategy.run(
      [](const at::Tensor& x, const at::Tensor& y) {  // the parts of the tuple
        return std::pair((x - y).square().sum(), x.size(0));
      },
      batch);
  at::Tensor loss = strategy.reduce(ReduceOp::kSum, losses);   // PerReplica<at::Tensor>
  int64_t examples = strategy.reduce(ReduceOp::kSum, counts);  // PerReplica<int64_t>
  // [/snippet]
  EXPECT_EQ(loss.item<double>(), 3);
  EXPECT_EQ(examples, 6);
}

TEST(ReplicasAndValues, ReturnsAnyType) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet results]
  strategy.run([] {});  // a function that returns nothing gives nothing

  auto owners = strategy.run([] {  // PerReplica<std::unique_ptr<int>>: move-only is fine
    return std::make_unique<int>(tutti::get_replica_context()->replica_id_in_sync_group());
  });
  std::vector<std::unique_ptr<int>> all = strategy.local_results(std::move(owners));

  tutti::OneDeviceStrategy single("CPU:0");
  int answer = single.run([] { return 42; }).only();  // PerReplica with one component
  // [/snippet]
  EXPECT_EQ(*all[1], 1);
  EXPECT_EQ(answer, 42);
}

TEST(ReplicasAndValues, MapsEachComponent) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet map]
  struct Output {
    at::Tensor loss;
    int64_t examples = 0;
  };
  tutti::PerReplica<Output> outputs = strategy.run([] { return Output{torch::ones({}), 4}; });
  tutti::PerReplica<at::Tensor> losses = outputs.map(&Output::loss);
  Output total = strategy.reduce(ReduceOp::kSum, outputs);  // a struct is a nest
  // [/snippet]
  EXPECT_EQ(losses[1].item<double>(), 1);
  EXPECT_EQ(total.loss.item<double>(), 2);
  EXPECT_EQ(total.examples, 8);
}

TEST(ReplicasAndValues, ReducesRaggedBatches) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet reduce]
  tutti::PerReplica<at::Tensor> losses(
      std::vector<at::Tensor>{torch::tensor({0., 1., 2., 3.}), torch::tensor({4., 5.})});
  at::Tensor sum = strategy.reduce(ReduceOp::kSum, losses, 0);    // 15
  at::Tensor mean = strategy.reduce(ReduceOp::kMean, losses, 0);  // 15 / 6 = 2.5
  // [/snippet]
  EXPECT_EQ(sum.item<double>(), 15);
  EXPECT_EQ(mean.item<double>(), 2.5);
  EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kSum, losses), ErrorCode::kInvalidArgument,
                     "replica 0 has float32[4] but replica 1 has float32[2]", "Give the axis");
  // [snippet mean_of_means]
  auto means = losses.map([](const at::Tensor& loss) { return loss.mean(); });
  at::Tensor wrong = strategy.reduce(ReduceOp::kMean, means);  // (1.5 + 4.5) / 2 = 3
  // [/snippet]
  EXPECT_EQ(wrong.item<double>(), 3);
}

TEST(ReplicasAndValues, ReducesPlainValues) {
  tutti::MirroredStrategy strategy(kTwo);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, 2.0), 2.0);
  EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kSum, 2.0), ErrorCode::kInvalidArgument,
                     "cannot be reduced by kSum over 2 replicas");
  const auto counts = strategy.run([] { return 3; });
  EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kMean, counts), ErrorCode::kInvalidArgument,
                     "the mean of a C++ integer would be truncated");
  const auto tensors = strategy.run([] { return torch::tensor({1, 2}); });
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, tensors).scalar_type(), torch::kFloat64);
}

TEST(ReplicasAndValues, Gathers) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet gather]
  auto values = strategy.distribute_values_from_function([](tutti::ValueContext) {
    return torch::tensor({{1}, {2}}, torch::kInt32);
  });
  at::Tensor all = strategy.gather(values, 0);  // [[1], [2], [1], [2]]
  // [/snippet]
  EXPECT_TRUE(torch::equal(all, torch::tensor({{1}, {2}, {1}, {2}}, torch::kInt32)));
}

TEST(ReplicasAndValues, MergesInCrossReplicaContext) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet merge_call]
  auto totals = strategy.run([] {
    tutti::ReplicaContext* replica = tutti::get_replica_context();
    const double mine = 1.0 + replica->replica_id_in_sync_group();
    return replica->merge_call(
        [](tutti::Strategy current, tutti::PerReplica<double> values) {  // called once
          return current.reduce(ReduceOp::kSum, values);
        },
        mine);
  });
  // [/snippet]
  EXPECT_EQ(totals[0], 3);
  EXPECT_EQ(totals[1], 3);
}

TEST(ReplicasAndValues, AllReducesWithAGradient) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet all_reduce]
  auto gradients = strategy.run([] {
    tutti::ReplicaContext* replica = tutti::get_replica_context();
    at::Tensor x =
        torch::full({2}, 1.0 + replica->replica_id_in_sync_group(), torch::requires_grad());
    at::Tensor mean = replica->all_reduce(ReduceOp::kMean, x);  // [1.5, 1.5] on both
    mean.square().sum().backward();  // meets again: the gradient is all-reduced in the same way
    return x.grad();
  });
  // [/snippet]
  EXPECT_TRUE(torch::equal(gradients[0], torch::full({2}, 3.0)));
  EXPECT_TRUE(torch::equal(gradients[1], torch::full({2}, 3.0)));
}

TEST(ReplicasAndValues, AllReducesInPlace) {
  tutti::MirroredStrategy strategy(kTwo);
  auto gradients = strategy.distribute_values_from_function([](tutti::ValueContext) {
    return std::vector<at::Tensor>{torch::ones({3}), torch::ones({2, 2})};
  });
  // [snippet all_reduce_in_place]
  strategy.run(
      [](std::vector<at::Tensor>& tensors) {  // a reference to this replica's component
        tutti::get_replica_context()->all_reduce_(ReduceOp::kSum, tensors);
      },
      gradients);
  // [/snippet]
  EXPECT_TRUE(torch::equal(gradients[1][0], torch::full({3}, 2.0)));
  EXPECT_TRUE(torch::equal(gradients[0][1], torch::full({2, 2}, 2.0)));
}

TEST(ReplicasAndValues, AllGathersUnevenSizes) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet all_gather]
  auto gathered = strategy.run([] {
    tutti::ReplicaContext* replica = tutti::get_replica_context();
    const int id = replica->replica_id_in_sync_group();
    return replica->all_gather(torch::full({id + 1}, id), 0);  // [0, 1, 1] on both
  });
  // [/snippet]
  EXPECT_TRUE(torch::equal(gathered[0], torch::tensor({0, 1, 1})));
  EXPECT_TRUE(torch::equal(gathered[1], gathered[0]));
}

TEST(ReplicasAndValues, ReducesNests) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet nest]
  struct Metrics {
    at::Tensor confusion;
    std::map<std::string, double> sums;
    int64_t examples = 0;
  };
  auto metrics = strategy.run([] {
    return Metrics{torch::eye(2), {{"loss", 0.5}, {"norm", 2.0}}, 16};
  });
  Metrics total = strategy.reduce(ReduceOp::kSum, metrics);
  // [/snippet]
  EXPECT_TRUE(torch::equal(total.confusion, 2 * torch::eye(2)));
  EXPECT_EQ(total.sums["norm"], 4);
  EXPECT_EQ(total.examples, 32);
  static_assert(tutti::Nest<Sample>);
  const auto samples = strategy.run([] { return Sample(torch::ones({})); });
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, samples).weight, 2);
}

TEST(ReplicasAndValues, PrintsInOneLinePerReplica) {
  tutti::MirroredStrategy strategy(kTwo);
  std::ostringstream out;
  // [snippet print]
  auto pairs = strategy.run([] { return std::pair(torch::tensor({5., 6.}), std::string("ok")); });
  out << pairs;
  // [/snippet]
  EXPECT_EQ(out.str(),
            "PerReplica:{\n"
            "  0: (Tensor([5. 6.], shape=(2,), dtype=float32), 'ok'),\n"
            "  1: (Tensor([5. 6.], shape=(2,), dtype=float32), 'ok')\n"
            "}");
}

TEST(ReplicasAndValues, DrawsTheSameNumbersAfterTheSameSeed) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet random]
  torch::manual_seed(1);
  auto first = strategy.run([] { return torch::randn({4}); });
  torch::manual_seed(1);
  auto again = strategy.run([] { return torch::randn({4}); });
  // [/snippet]
  EXPECT_TRUE(torch::equal(first[0], again[0]));
  EXPECT_TRUE(torch::equal(first[1], again[1]));
  EXPECT_FALSE(torch::equal(first[0], first[1]));
}

TEST(ReplicasAndValues, CountsWithoutARace) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet count]
  auto seen = strategy.run([] { return int64_t{1}; });
  int64_t counter = strategy.reduce(ReduceOp::kSum, seen);
  // [/snippet]
  EXPECT_EQ(counter, 2);
}

TEST(ReplicasAndValues, EntersTheContextOnAnotherThread) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet enter]
  auto sums = strategy.run([] {
    tutti::ReplicaContext* replica = tutti::get_replica_context();
    double sum = 0;
    std::thread helper([&] {
      auto entered = replica->enter();  // this thread now works for the replica
      sum = replica->all_reduce(ReduceOp::kSum, 1.0);
    });
    helper.join();
    return sum;
  });
  // [/snippet]
  EXPECT_EQ(sums[0], 2);
}

TEST(ReplicasAndValues, EntersAScope) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet scope]
  {
    tutti::Scope scope = strategy.scope();
    EXPECT_TRUE(tutti::in_cross_replica_context());
    EXPECT_TRUE(tutti::get_strategy() == strategy);
  }
  int replicas = strategy.scope([] { return tutti::get_strategy().num_replicas_in_sync(); });
  // [/snippet]
  EXPECT_EQ(replicas, 2);
  EXPECT_FALSE(tutti::has_strategy());
}

TEST(ReplicasAndValues, ConcatenatesIndexedSlices) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet slices]
  auto slices = strategy.run([] {
    const int id = tutti::get_replica_context()->replica_id_in_sync_group();
    return tutti::IndexedSlices(torch::ones({1, 2}), torch::tensor({id}), {3, 2});
  });
  tutti::IndexedSlices all = strategy.reduce(ReduceOp::kSum, slices);  // rows 0 and 1
  at::Tensor dense = all.to_dense();                                   // shape [3, 2]
  // [/snippet]
  EXPECT_EQ(all.indices().size(0), 2);
  EXPECT_EQ(dense.sum().item<double>(), 4);
}

}  // namespace
