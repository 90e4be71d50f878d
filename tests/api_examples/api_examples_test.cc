// SPDX-License-Identifier: Apache-2.0
//
// The examples of the TensorFlow documents that this library follows, with the values printed
// there. "GPU:i" is "CPU:i" here, and what their datasets yield is made by hand.

#include <sstream>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/nest/print.h"
#include "tutti/strategy/default_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
#include "tutti/values/variable.h"

#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"
#include "tests/support/tensors.h"

namespace tutti::api_examples_test {

using test::tensor;

template <class T>
std::string printed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

MirroredStrategy two_replicas() { return MirroredStrategy({"CPU:0", "CPU:1"}); }

template <class T>
PerReplica<at::Tensor> batch_of(std::initializer_list<std::initializer_list<T>> parts) {
  std::vector<at::Tensor> components;
  for (const auto& part : parts) components.push_back(tensor(part));
  return PerReplica<at::Tensor>(std::move(components));
}

TEST(ApiExamples, DistributedValuesOfADataset) {
  EXPECT_EQ(printed(batch_of({{5.F}, {6.F}})),
            "PerReplica:{\n"
            "  0: Tensor([5.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([6.], shape=(1,), dtype=float32)\n"
            "}");
}

TEST(ApiExamples, DistributedValuesOfADatasetFromAFunction) {
  EXPECT_EQ(printed(batch_of<int64_t>({{4, 5}, {6, 7}})),
            "PerReplica:{\n"
            "  0: Tensor([4 5], shape=(2,), dtype=int64),\n"
            "  1: Tensor([6 7], shape=(2,), dtype=int64)\n"
            "}");
}

TEST(ApiExamples, DistributedValuesReturnedByRun) {
  const auto strategy = two_replicas();
  const auto f = [] {
    ReplicaContext* context = get_replica_context();
    return context->replica_id_in_sync_group();
  };
  EXPECT_EQ(printed(strategy.run(f)),
            "PerReplica:{\n"
            "  0: 0,\n"
            "  1: 1\n"
            "}");
  EXPECT_EQ(printed(strategy.run([&] { return test::scalar(f()); })),
            "PerReplica:{\n"
            "  0: Tensor(0, shape=(), dtype=int32),\n"
            "  1: Tensor(1, shape=(), dtype=int32)\n"
            "}");
}

TEST(ApiExamples, DistributedValuesAsInputOfRun) {
  const auto strategy = two_replicas();
  const auto f = [](const at::Tensor& x) { return x * 2.0; };
  EXPECT_EQ(printed(strategy.run(f, batch_of({{5.F}, {6.F}}))),
            "PerReplica:{\n"
            "  0: Tensor([10.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([12.], shape=(1,), dtype=float32)\n"
            "}");
  EXPECT_EQ(printed(strategy.run(f, batch_of({{7.F}, {8.F}}))),
            "PerReplica:{\n"
            "  0: Tensor([14.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([16.], shape=(1,), dtype=float32)\n"
            "}");
}

TEST(ApiExamples, ReduceDistributedValues) {
  const auto strategy = two_replicas();
  const at::Tensor sum = strategy.reduce(ReduceOp::kSum, batch_of({{5.F}, {6.F}}), /*axis=*/0);
  EXPECT_EQ(to_text(sum), "Tensor(11.0, shape=(), dtype=float32)");
}

TEST(ApiExamples, GetReplicaContext) {
  const auto strategy = two_replicas();
  EXPECT_EQ(get_replica_context(), &default_strategy_extended()->replica_context(0));
  strategy.scope([] { EXPECT_EQ(get_replica_context(), nullptr); });
  const auto contexts = strategy.run([] { return get_replica_context(); });
  EXPECT_EQ(contexts[0], &strategy.extended().replica_context(0));
  EXPECT_EQ(contexts[1], &strategy.extended().replica_context(1));
}

TEST(ApiExamples, GetStrategy) {
  const auto strategy = two_replicas();
  EXPECT_EQ(&get_strategy().extended(), default_strategy_extended().get());
  strategy.scope([&] { EXPECT_TRUE(get_strategy() == strategy); });
}

TEST(ApiExamples, HasStrategy) {
  const auto strategy = two_replicas();
  EXPECT_FALSE(has_strategy());
  strategy.scope([] { EXPECT_TRUE(has_strategy()); });
}

TEST(ApiExamples, InCrossReplicaContext) {
  const auto strategy = two_replicas();
  EXPECT_FALSE(in_cross_replica_context());
  {
    const Scope scope = strategy.scope();
    EXPECT_TRUE(in_cross_replica_context());
  }
  const auto inside = strategy.run([] { return in_cross_replica_context(); });
  EXPECT_EQ(printed(inside),
            "PerReplica:{\n"
            "  0: false,\n"
            "  1: false\n"
            "}");
}

TEST(ApiExamples, OneDeviceStrategy) {
  const OneDeviceStrategy strategy("/cpu:0");
  EXPECT_EQ(strategy.extended().parameter_devices()[0].to_string(),
            "/job:localhost/replica:0/task:0/device:CPU:0");
  const auto step_fn = [](int x) { return x * 2; };
  int result = 0;
  for (int i = 0; i < 10; ++i) result += strategy.run(step_fn, i).only();
  EXPECT_EQ(result, 90);
  int portable = 0;
  for (int i = 0; i < 10; ++i)
    portable += strategy.reduce(ReduceOp::kSum, strategy.run(step_fn, i));
  EXPECT_EQ(portable, 90);
}

TEST(ApiExamples, AVariableOfMirroredStrategyIsMirrored) {
  const auto strategy = two_replicas();
  const Scope scope = strategy.scope();
  const Variable x(1.);
  EXPECT_EQ(printed(x),
            "MirroredVariable:{\n"
            "  0: <tf.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,\n"
            "  1: <tf.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>\n"
            "}");
}

TEST(ApiExamples, AVariableMadeOutsideOfTheScopeIsNot) {
  const auto strategy = two_replicas();
  const Variable mirrored = strategy.scope([] { return Variable(1.); });
  const Variable regular(1.);
  EXPECT_EQ(printed(mirrored).substr(0, 17), "MirroredVariable:");
  EXPECT_EQ(printed(regular), "<tf.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>");
}

TEST(ApiExamples, AVariableOfOneDeviceStrategyLiesOnItsDevice) {
  const OneDeviceStrategy strategy("/cpu:0");
  const Scope scope = strategy.scope();
  const Variable v(1.0);
  EXPECT_EQ(v.device().to_string(), "/job:localhost/replica:0/task:0/device:CPU:0");
}

TEST(ApiExamples, AReplicaFunctionAddsToAVariable) {
  const OneDeviceStrategy strategy("/cpu:0");
  const Variable v = strategy.scope([] { return Variable(0); });
  const auto replica_fn = [&](int x) {
    v.assign_add(x);
    return v.read_value();
  };
  for (const int expected : {1, 2, 3}) {
    EXPECT_EQ(strategy.run(replica_fn, 1).only().item<int64_t>(), expected);
  }
}

TEST(ApiExamples, GatherOfAVariable) {
  const auto strategy = two_replicas();
  const Variable distributed_values = strategy.scope([] {
    return Variable(tensor({1, 2}).reshape({2, 1}));
  });
  EXPECT_EQ(to_text(strategy.gather(distributed_values, /*axis=*/0)),
            "Tensor([[1] [2] [1] [2]], shape=(4, 1), dtype=int32)");
}

TEST(ApiExamples, ReplicaContextProperties) {
  const auto strategy = two_replicas();
  const auto properties = strategy.run([] {
    const ReplicaContext* context = get_replica_context();
    return std::tuple(context->replica_id_in_sync_group(), context->num_replicas_in_sync());
  });
  EXPECT_EQ(printed(properties),
            "PerReplica:{\n"
            "  0: (0, 2),\n"
            "  1: (1, 2)\n"
            "}");
  strategy.run([&] { EXPECT_TRUE(get_replica_context()->strategy() == strategy); });
}

TEST(ApiExamples, MirroredStrategyTellsItsDevices) {
  const test::LogCapture log;
  const auto strategy = two_replicas();
  EXPECT_EQ(log.count("Using MirroredStrategy with devices "
                      "('/job:localhost/replica:0/task:0/device:CPU:0', "
                      "'/job:localhost/replica:0/task:0/device:CPU:1')"),
            1)
      << log.text();
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
}

TEST(ApiExamples, Gather) {
  const auto strategy = two_replicas();
  const auto values = strategy.distribute_values_from_function([](const ValueContext&) {
    return tensor({1, 2}).reshape({2, 1});
  });
  EXPECT_EQ(to_text(strategy.gather(values, 0)),
            "Tensor([[1] [2] [1] [2]], shape=(4, 1), dtype=int32)");
}

TEST(ApiExamples, ReduceAcrossReplicasOrOverTheGlobalBatch) {
  const auto strategy = two_replicas();
  const auto losses = batch_of({{0.F, 1.F, 2.F, 3.F}, {4.F, 5.F, 6.F, 7.F}});
  EXPECT_EQ(to_text(strategy.reduce(ReduceOp::kSum, losses)),
            "Tensor([4. 6. 8. 10.], shape=(4,), dtype=float32)");
  EXPECT_EQ(to_text(strategy.reduce(ReduceOp::kSum, losses, 0)),
            "Tensor(28.0, shape=(), dtype=float32)");
}

TEST(ApiExamples, ALastPartialBatchIsDividedBySix) {
  const auto strategy = two_replicas();
  const auto losses = batch_of({{0.F, 1.F, 2.F, 3.F}, {4.F, 5.F}});
  EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kMean, losses), ErrorCode::kInvalidArgument,
                     "float32[4]", "float32[2]");
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, losses, 0).item<float>(), 15.F / 6.F);
  // The mean of the replicas' means weighs some examples 1/8 and others 1/4.
  const auto means = strategy.run([](const at::Tensor& loss) { return loss.mean(); }, losses);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, means).item<float>(), 3.F);
}

TEST(ApiExamples, ReplicasWithoutExamplesDoNotCount) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"});
  const auto first = batch_of<int64_t>({{0, 1}, {2, 3}, {}});  // range(8).batch(4) on three
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, first, 0).item<int64_t>(), 6);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, first, 0).item<double>(), 1.5);
  const auto second = batch_of<int64_t>({{5, 6}, {7, 8}, {9}});  // range(10).batch(5) on three
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, second, 0).item<int64_t>(), 35);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, second, 0).item<double>(), 7);
}

TEST(ApiExamples, LocalResults) {
  const auto strategy = two_replicas();
  const auto results = strategy.local_results(
      strategy.run([] { return test::scalar(get_replica_context()->replica_id_in_sync_group()); }));
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].item<int>(), 0);
  EXPECT_EQ(results[1].item<int>(), 1);
  EXPECT_EQ(strategy.local_results(7), std::vector<int>{7});
}

TEST(ApiExamples, ACustomLoopSumsTheResultsOfItsSteps) {
  const auto strategy = two_replicas();
  const std::vector<PerReplica<at::Tensor>> dataset = {batch_of({{5.F}, {6.F}}),
                                                       batch_of({{7.F}, {8.F}})};
  const auto replica_fn = [](const at::Tensor& input) { return input.sum(); };
  at::Tensor total = at::zeros({});
  strategy.scope([&] {
    for (const auto& x : dataset) {
      total += strategy.reduce(ReduceOp::kSum, strategy.run(replica_fn, x));
    }
  });
  EXPECT_EQ(total.item<float>(), 26.F);
}

TEST(ApiExamples, AReplicaFunctionMayAllReduce) {
  const auto strategy = two_replicas();
  const auto sums = strategy.run(
      [](const at::Tensor& x) { return get_replica_context()->all_reduce(ReduceOp::kSum, x); },
      batch_of({{5.F}, {6.F}}));
  EXPECT_EQ(printed(sums),
            "PerReplica:{\n"
            "  0: Tensor([11.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([11.], shape=(1,), dtype=float32)\n"
            "}");
}

}  // namespace tutti::api_examples_test
