// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/variables.md.

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

#include "tests/support/expect_error.h"

namespace variables_docs_test {

using tutti::ErrorCode;
using tutti::ReduceOp;
using tutti::Variable;
using tutti::VariableAggregation;
using tutti::VariableSynchronization;

const std::vector<std::string> kTwo = {"CPU:0", "CPU:1"};

TEST(Variables, AreMadeInAScope) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet make]
  auto [w, steps] = strategy.scope([] {
    return std::pair(Variable([] { return torch::randn({3}); }, {.name = "w"}),
                     Variable(0, {.name = "steps", .trainable = false}));
  });
  Variable plain(1.0);  // outside of a scope: one copy, of no strategy
  // [/snippet]
  EXPECT_TRUE(torch::equal(w.components()[0], w.components()[1]));
  EXPECT_EQ(w.name(), "w");
  EXPECT_EQ(steps.dtype(), torch::kLong);
  EXPECT_EQ(plain.components().size(), 1U);
}

TEST(Variables, ArePrintedAsTensorFlowPrintsThem) {
  tutti::MirroredStrategy strategy(kTwo);
  std::ostringstream out;
  // [snippet print]
  auto x = strategy.scope([] { return Variable(1.); });
  out << x;
  // [/snippet]
  EXPECT_EQ(out.str(),
            "MirroredVariable:{\n"
            "  0: <tf.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,\n"
            "  1: <tf.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>\n"
            "}");
}

TEST(Variables, AreSharedInCentralStorage) {
  // [snippet central]
  tutti::CentralStorageStrategy strategy({"CPU:0", "CPU:1"});
  auto w = strategy.scope(
      [] { return Variable(torch::zeros({2}), {.aggregation = VariableAggregation::kSum}); });
  strategy.run([&] {
    const int id = tutti::get_replica_context()->replica_id_in_sync_group();
    w.assign_add(torch::full({2}, id + 1.0));  // both replicas' values, written once: [3, 3]
  });
  // [/snippet]
  EXPECT_TRUE(torch::equal(w.value(), torch::full({2}, 3.0)));
  EXPECT_EQ(w.components().size(), 1U);
}

TEST(Variables, TrainInAReplica) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet train]
  auto w = strategy.scope([] {
    return Variable(torch::zeros({}), {.name = "w", .aggregation = VariableAggregation::kSum});
  });
  auto xs = strategy.distribute_values_from_function([](tutti::ValueContext replica) {
    return torch::arange(4) + 4.0 * replica.replica_id_in_sync_group;  // 0..3 and 4..7
  });
  for (int step = 0; step < 50; ++step) {
    strategy.run(
        [&](const at::Tensor& x) {
          at::Tensor loss = (w * x - 3 * x).square().sum() / 8;  // w is this replica's copy
          at::Tensor gradient = torch::autograd::grad({loss}, {w})[0];
          w.assign_sub(0.02 * gradient);  // summed over the replicas, applied to every copy
        },
        xs);
  }
  // [/snippet]
  EXPECT_NEAR(w.value().item<double>(), 3, 1e-3);
  EXPECT_TRUE(torch::equal(w.components()[0], w.components()[1]));
}

TEST(Variables, AggregateWhatReplicasWrite) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet aggregate]
  auto mean = strategy.scope(
      [] { return Variable(torch::zeros({2}), {.aggregation = VariableAggregation::kMean}); });
  strategy.run([&] {
    const int id = tutti::get_replica_context()->replica_id_in_sync_group();
    mean.assign(torch::full({2}, 10.0 * id));  // 0 and 10
  });
  at::Tensor five = mean;  // a copy; every replica's is [5, 5]
  // [/snippet]
  EXPECT_TRUE(torch::equal(five, torch::full({2}, 5.0)));
}

TEST(Variables, SynchroniseOnRead) {
  tutti::MirroredStrategy strategy(kTwo);
  auto batches = strategy.distribute_values_from_function([](tutti::ValueContext replica) {
    return torch::ones({3 - replica.replica_id_in_sync_group});
  });
  // [snippet on_read]
  auto examples = strategy.scope([] {
    return Variable(0, {.name = "examples",
                        .synchronization = VariableSynchronization::kOnRead,
                        .aggregation = VariableAggregation::kSum});
  });
  strategy.run([&](const at::Tensor& batch) { examples.assign_add(batch.size(0)); }, batches);
  int64_t all = examples.value().item<int64_t>();  // the sum over the replicas: 3 + 2
  // [/snippet]
  EXPECT_EQ(all, 5);
}

TEST(Variables, SynchroniseInsideAReplicaWhenAsked) {
  tutti::MirroredStrategy strategy(kTwo);
  auto examples = strategy.scope([] {
    return Variable(0, {.synchronization = VariableSynchronization::kOnRead,
                        .aggregation = VariableAggregation::kSum});
  });
  // [snippet on_read_context]
  auto totals = strategy.run([&] {
    examples.assign(1);
    auto scope = tutti::variable_sync_on_read_context();
    return at::Tensor(examples);  // 2 on both replicas
  });
  // [/snippet]
  EXPECT_EQ(totals[0].item<int64_t>(), 2);
  EXPECT_EQ(totals[1].item<int64_t>(), 2);
}

TEST(Variables, ScatterRows) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet scatter]
  auto table = strategy.scope([] {
    return Variable(torch::zeros({4, 2}), {.aggregation = VariableAggregation::kSum});
  });
  strategy.run([&] {
    const int64_t id = tutti::get_replica_context()->replica_id_in_sync_group();
    table.scatter_add({torch::ones({2, 2}), torch::tensor({id, int64_t{3}})});
  });  // rows 0 and 1 are 1, row 3 is 2
  // [/snippet]
  EXPECT_TRUE(torch::equal(table.value(), torch::tensor({{1., 1.}, {1., 1.}, {0., 0.}, {2., 2.}})));
}

TEST(Variables, AreMadeInsideRun) {
  tutti::MirroredStrategy strategy(kTwo);
  // [snippet inside_run]
  auto made = strategy.run([] {
    Variable v([] { return torch::randn({2}); }, {.name = "v"});  // replica 0's function is called
    return v;
  });
  // [/snippet]
  EXPECT_TRUE(made[0].is_same(made[1]));
  EXPECT_TRUE(torch::equal(made[0].components()[0], made[0].components()[1]));
}

TEST(Variables, AreUpdatedCopyByCopy) {
  tutti::MirroredStrategy strategy(kTwo);
  auto v = strategy.scope([] { return Variable(1.0); });
  auto gradients = strategy.run([] { return torch::ones({}); });
  // [snippet update]
  auto& extended = strategy.extended();
  auto reduced = extended.reduce_to(ReduceOp::kSum, gradients, v);  // Mirrored, on v's devices
  extended.update(
      v,
      [](const Variable& copy, const at::Tensor& gradient) {
        copy.assign_sub(0.1 * gradient);  // inside update() a variable is one copy
      },
      reduced);
  // [/snippet]
  EXPECT_TRUE(torch::allclose(v.value(), torch::tensor(0.8)));
}

TEST(Variables, AreAcceptedWhereValuesAre) {
  tutti::MirroredStrategy strategy(kTwo);
  auto v = strategy.scope([] { return Variable(torch::tensor({{1}, {2}})); });
  // [snippet values]
  at::Tensor both = strategy.gather(v, 0);               // 4 x 1: the copies one below the other
  at::Tensor one = strategy.reduce(ReduceOp::kMean, v);  // copies are equal: one of them
  std::vector<at::Tensor> copies = strategy.local_results(v);  // they share memory with v
  auto doubled = strategy.run([](const Variable& x) { return x * 2; }, v);  // arrives whole
  // [/snippet]
  EXPECT_EQ(both.sizes(), (std::vector<int64_t>{4, 1}));
  EXPECT_TRUE(torch::equal(one, torch::tensor({{1}, {2}})));
  EXPECT_EQ(copies.size(), 2U);
  EXPECT_TRUE(torch::equal(doubled[1], torch::tensor({{2}, {4}})));
}

TEST(Variables, MistakesAreNamed) {
  tutti::MirroredStrategy strategy(kTwo);
  tutti::OneDeviceStrategy other("CPU:0");
  auto v = strategy.scope([] { return Variable(1.0, {.aggregation = VariableAggregation::kSum}); });
  EXPECT_TUTTI_ERROR(strategy.run([&] { v.assign(1.0); }), ErrorCode::kInvalidArgument,
                     "the same on every replica");
  EXPECT_TUTTI_ERROR(other.run([&] { v.assign(1.0); }), ErrorCode::kFailedPrecondition,
                     "mixing different strategies");
  Variable plain(1.0);
  EXPECT_TUTTI_ERROR(strategy.run([&] { plain.assign(1.0); }), ErrorCode::kFailedPrecondition,
                     "Make it inside the strategy's scope");
}

}  // namespace variables_docs_test
