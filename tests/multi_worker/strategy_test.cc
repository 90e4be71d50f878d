// SPDX-License-Identifier: Apache-2.0
//
// What a program sees on several workers, each case with what one process with as many replicas
// gives.

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/multi_worker/training.h"
#include "tests/support/expect_error.h"

namespace tutti::multi_worker_strategy_test {

using testing::cpus;

struct Shape {
  int workers;
  int local;
  CommunicationImplementation way = CommunicationImplementation::kAuto;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.workers << "x" << shape.local << " " << shape.way;
}

class MultiWorker : public ::testing::TestWithParam<Shape> {
 protected:
  int workers() const { return GetParam().workers; }
  int local() const { return GetParam().local; }
  int all() const { return workers() * local(); }

  void run(const std::function<void(const Strategy&)>& fn) const {
    InProcessClusterOptions options;
    options.devices = cpus(local());
    options.runner.threads_per_replica = 1;
    options.communication_options.implementation = GetParam().way;
    options.timeout = std::chrono::seconds(30);
    InProcessCluster(workers(), options).run(fn);
  }

  // What fn returns on each worker must be what it returns with as many replicas in one process.
  void expect_as_mirrored(const std::function<at::Tensor(const Strategy&)>& fn) const {
    at::Tensor expected;
    torch::manual_seed(5);
    InProcessCluster(1).run([&](const Strategy&) {
      expected = fn(MirroredStrategy(cpus(all()), {.runner = {.threads_per_replica = 1}}));
    });
    torch::manual_seed(5);
    run([&](const Strategy& strategy) {
      const at::Tensor found = fn(strategy);
      EXPECT_TRUE(at::equal(found, expected)) << found << " instead of " << expected;
    });
  }
};

at::Tensor of_replica(int64_t rows = 3) {
  const int id = get_replica_context()->replica_id_in_sync_group();
  return at::arange(rows * 2, at::kFloat).view({rows, 2}) * 0.37F + static_cast<float>(id) * 1.1F;
}

TEST_P(MultiWorker, CountsReplicasOverAllWorkers) {
  run([&](const Strategy& strategy) {
    EXPECT_EQ(strategy.num_replicas_in_sync(), all());
    EXPECT_EQ(strategy.extended().num_workers(), workers());
    EXPECT_TRUE(strategy.extended().in_multi_worker_mode());
    const auto ids = strategy.run([] { return get_replica_context()->replica_id_in_sync_group(); });
    ASSERT_EQ(strategy.local_results(ids).size(), static_cast<size_t>(local()));
    for (int i = 0; i < local(); ++i) {
      EXPECT_EQ(ids[static_cast<size_t>(i)], strategy.extended().worker_index() * local() + i);
    }
  });
}

TEST_P(MultiWorker, ReducesGathersAndAllReduces) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax}) {
    expect_as_mirrored([op](const Strategy& strategy) {
      const auto values = strategy.run([] { return of_replica(); });
      const auto reduced =
          strategy.run([op] { return get_replica_context()->all_reduce(op, of_replica(5)); });
      const auto small = strategy.run([op] {
        return get_replica_context()->all_reduce(op, of_replica().to(at::kHalf)).to(at::kFloat);
      });
      const at::Tensor numbers = at::scalar_tensor(
          strategy.reduce(op, strategy.run([] { return of_replica()[2][1].item<double>(); })),
          at::kFloat);
      return at::cat({strategy.reduce(op, values).flatten(),
                      strategy.reduce(op, values, 0).flatten(), reduced[0].flatten(),
                      small[0].flatten(), numbers.view({1})});
    });
  }
  expect_as_mirrored([](const Strategy& strategy) {
    const auto uneven = strategy.run(
        [] { return of_replica(1 + get_replica_context()->replica_id_in_sync_group() % 3); });
    const auto gathered = strategy.run([] {
      const int id = get_replica_context()->replica_id_in_sync_group();
      return get_replica_context()->all_gather(of_replica(id % 2), 0);
    });
    return at::cat({strategy.gather(uneven, 0), gathered[0]});
  });
}

TEST_P(MultiWorker, SendsGradientsThroughCollectives) {
  // The gradients of the replica's own part: its sum over workers is compared.
  expect_as_mirrored([](const Strategy& strategy) {
    const auto gradients = strategy.run([] {
      const at::Tensor x = of_replica().requires_grad_();
      const at::Tensor sum = get_replica_context()->all_reduce(ReduceOp::kSum, x * x);
      const at::Tensor all = get_replica_context()->all_gather(x, 0);
      (sum.sum() + (all * all).sum()).backward();
      return x.grad().clone();
    });
    return strategy.gather(gradients, 0);
  });
}

TEST_P(MultiWorker, ReducesSlices) {
  expect_as_mirrored([](const Strategy& strategy) {
    const auto slices = strategy.run([] {
      const int id = get_replica_context()->replica_id_in_sync_group();
      return IndexedSlices(of_replica(2), at::tensor({id, id + 1}), {20, 2});
    });
    const auto mean = strategy.reduce(ReduceOp::kMean, slices);
    const auto sum = strategy.run([&] {
      const int id = get_replica_context()->replica_id_in_sync_group();
      return get_replica_context()->all_reduce(
          ReduceOp::kSum, IndexedSlices(of_replica(1), at::tensor({id}), {20, 2}));
    });
    return at::cat({mean.to_dense(), sum[0].to_dense()});
  });
}

TEST_P(MultiWorker, KeepsVariablesAlike) {
  expect_as_mirrored([](const Strategy& strategy) {
    const auto scope = strategy.scope();
    // Each worker brings another value; that of worker 0 counts.
    const Variable mirrored(
        at::full({2}, 1.0F + static_cast<float>(strategy.extended().worker_index())),
        {.name = "mirrored", .aggregation = VariableAggregation::kMean});
    const Variable first(at::zeros({2}),
                         {.name = "first", .aggregation = VariableAggregation::kOnlyFirstReplica});
    const Variable sum(at::zeros({2}), {.name = "sum",
                                        .synchronization = VariableSynchronization::kOnRead,
                                        .aggregation = VariableAggregation::kSum});
    strategy.run([&] {
      const int id = get_replica_context()->replica_id_in_sync_group();
      const at::Tensor mine = at::full({2}, 0.5F + static_cast<float>(id));
      mirrored.assign_add(mine);
      first.assign(mine);
      sum.assign_add(mine);
    });
    return at::cat({mirrored.read_value(), first.read_value(), sum.read_value()});
  });
}

TEST_P(MultiWorker, TrainsTheSameWithSparseTablesAndClipping) {
  struct Net : torch::nn::Module {
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear dense{nullptr}, unused{nullptr};
    Net() {
      table = register_module(
          "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(30, 4).sparse(true)));
      dense = register_module("dense", torch::nn::Linear(4, 3));
      unused = register_module("unused", torch::nn::Linear(2, 2));
    }
  };
  expect_as_mirrored([](const Strategy& strategy) {
    auto model = replicate<Net>(strategy);
    DistributedOptimizer<torch::optim::SGD> optimizer(model,
                                                      torch::optim::SGDOptions(0.1).momentum(0.0));
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        const at::Tensor rows = at::tensor({id, id + step, 29 - id});
        at::Tensor out = model->dense(model->table(rows));
        // From step 2 on the last replica alone uses another layer.
        if (step >= 2 && id == get_replica_context()->num_replicas_in_sync() - 1) {
          out = out + model->unused(at::ones({2})).sum();
        }
        optimizer.minimize(average_loss(out.square().flatten()));
      });
    }
    std::vector<at::Tensor> all;
    for (const at::Tensor& each : model.primary().parameters())
      all.push_back(each.detach().flatten());
    return at::cat(all);
  });
}

TEST_P(MultiWorker, NormalisesAndMeasuresOverAllReplicas) {
  struct Net : torch::nn::Module {
    nn::SyncBatchNorm1d norm{nullptr};
    Net() { norm = register_module("norm", nn::SyncBatchNorm1d(2)); }
  };
  expect_as_mirrored([](const Strategy& strategy) {
    auto model = replicate<Net>(strategy);
    const auto scope = strategy.scope();
    const metrics::Mean mean(strategy, "mean");
    const auto out = strategy.run([&] {
      const int id = get_replica_context()->replica_id_in_sync_group();
      const at::Tensor y = model->norm(of_replica(1 + id % 2));
      mean.update(y[0]);
      return y;
    });
    return at::cat({strategy.gather(out, 0).detach().flatten(),
                    at::scalar_tensor(mean.result(), at::kFloat).view({1}),
                    model.primary().norm->running_mean});
  });
}

TEST_P(MultiWorker, EndsUnevenDataTogether) {
  run([&](const Strategy& strategy) {
    for (int pass = 0; pass < 3; ++pass) {
      // Worker w has w + 1 batches of its own.
      auto batches = strategy.distribute_datasets_from_function([](const InputContext& context) {
        return data::range(4 * (context.input_pipeline_id + 1)).batch(2);
      });
      int steps = 0;
      for (auto& batch : batches) {
        strategy.run([](const at::Tensor& x) { return x.size(0); }, batch);
        ++steps;
        if (pass == 1 && steps == 1) break;  // dropped early on all workers
      }
      const int longest = workers() * 2;
      const int per_step = local();
      if (pass != 1) {
        EXPECT_EQ(steps, (longest + per_step - 1) / per_step);
      }
    }
  });
}

TEST_P(MultiWorker, ReadsTwoDatasetsInTurns) {
  run([&](const Strategy& strategy) {
    const auto rows = [&](int64_t count) {
      return strategy.distribute_datasets_from_function(
          [count](const InputContext&) { return data::range(count).batch(1); });
    };
    auto training = rows(12 * local());
    auto evaluation = rows(2 * local());
    int steps = 0;
    for (auto& batch : training) {
      strategy.run([](const at::Tensor& x) { return x.size(0); }, batch);
      if (++steps % 3 != 0) continue;
      int evaluated = 0;
      for (auto& each : evaluation) {
        strategy.run([](const at::Tensor& x) { return x.size(0); }, each);
        ++evaluated;
      }
      EXPECT_EQ(evaluated, 2);
    }
    EXPECT_EQ(steps, 12);
  });
}

TEST_P(MultiWorker, DropsGradientsOfAStepThatIsNotMade) {
  expect_as_mirrored([](const Strategy& strategy) {
    auto model = replicate<torch::nn::LinearImpl>(strategy, 3, 2);
    DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        const auto loss = [&](float scale) {
          const at::Tensor x = at::full({2, 3}, scale + static_cast<float>(id));
          return average_loss(model->forward(x).square().flatten());
        };
        optimizer.zero_grad();
        loss(5.0F).backward();
        optimizer.zero_grad();
        loss(0.5F).backward();
        optimizer.step();
      });
    }
    return at::cat({model.primary().weight.detach().flatten(), model.primary().bias.detach()});
  });
}

TEST_P(MultiWorker, PassesAnExceptionOnWhileOtherReplicasCompute) {
  if (workers() == 1 || local() == 1) return;
  InProcessClusterOptions options;
  options.devices = cpus(local());
  options.communication_options.implementation = GetParam().way;
  std::atomic<int64_t> noticed{0};
  std::atomic<bool> over{false};
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  std::atomic<int64_t> thrown{0};
  InProcessCluster(workers(), options).try_run([&](const Strategy& strategy) {
    try {
      strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        if (id == local() + 1) {
          thrown = now();
          throw std::out_of_range("no such row");
        }
        while (id == local() && !over) std::this_thread::yield();  // "computes"
        get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({4}));
      });
    } catch (const Error&) {
      if (strategy.extended().worker_index() != 0) throw;
      noticed = now();
      over = true;
      throw;
    }
  });
  EXPECT_LT(std::chrono::nanoseconds(noticed - thrown), std::chrono::seconds(1));
}

TEST_P(MultiWorker, PassesAnExceptionToAllWorkers) {
  if (workers() == 1) return;
  InProcessClusterOptions options;
  options.devices = cpus(local());
  options.communication_options.implementation = GetParam().way;
  const InProcessCluster cluster(workers(), options);
  const auto began = std::chrono::steady_clock::now();
  const auto errors = cluster.try_run([&](const Strategy& strategy) {
    for (int step = 0; step < 5; ++step) {
      strategy.run([&] {
        ReplicaContext& context = *get_replica_context();
        if (step == 3 && context.replica_id_in_sync_group() == local()) {
          throw std::out_of_range("no such row");
        }
        context.all_reduce(ReduceOp::kSum, at::ones({4}));
      });
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  EXPECT_THROW(std::rethrow_exception(errors[1]), std::out_of_range);
  for (int w = 0; w < workers(); ++w) {
    if (w == 1) continue;
    try {
      std::rethrow_exception(errors[static_cast<size_t>(w)]);
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), ErrorCode::kCancelled) << text;
      for (const std::string part : {"/job:worker/task:1", "step 4", "no such row"}) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
      }
      EXPECT_NE(text.find("replica " + std::to_string(local())), std::string::npos) << text;
    }
  }
}

TEST_P(MultiWorker, RefusesModelsThatDiffer) {
  if (workers() == 1) return;
  InProcessClusterOptions options;
  options.devices = cpus(local());
  options.communication_options.implementation = GetParam().way;
  const auto errors = InProcessCluster(workers(), options).try_run([&](const Strategy& strategy) {
    const int wide = strategy.extended().worker_index() == 1 ? 5 : 4;
    auto model = replicate<torch::nn::LinearImpl>(strategy, 3, wide);
    strategy.reduce(ReduceOp::kSum,
                    strategy.run([] { return 1; }));  // worker 0 waits for nobody before
  });
  for (const std::exception_ptr& each : errors) {
    try {
      ASSERT_NE(each, nullptr);
      std::rethrow_exception(each);
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition) << text;
      EXPECT_NE(text.find("[5, 3]"), std::string::npos) << text;
      EXPECT_NE(text.find("weight"), std::string::npos) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MultiWorker,
                         ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{3, 1}, Shape{2, 3},
                                           Shape{1, 2},
                                           Shape{2, 1, CommunicationImplementation::kGrpc},
                                           Shape{3, 2, CommunicationImplementation::kGrpc}),
                         [](const auto& each) {
                           return std::to_string(each.param.workers) + "x" +
                                  std::to_string(each.param.local) + to_string(each.param.way);
                         });

TEST(MultiWorkerStrategy, IsAloneWithoutACluster) {
  const MultiWorkerMirroredStrategy strategy(nullptr, {.devices = cpus(2)});
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
  EXPECT_NE(strategy.cluster_resolver(), nullptr);
}

TEST(MultiWorkerStrategy, GivesAnEvaluatorAStrategyOfItsOwn) {
  const auto resolver = std::make_shared<SimpleClusterResolver>(
      ClusterSpec{{"worker", {"127.0.0.1:1", "127.0.0.1:2"}}, {"evaluator", {"127.0.0.1:3"}}});
  resolver->set_task_type("evaluator");
  resolver->set_task_id(0);
  const MultiWorkerMirroredStrategy strategy(resolver, {.devices = cpus(1)});
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
}

TEST(MultiWorkerStrategy, ConfiguresAMirroredStrategyOnce) {
  MirroredStrategy used(cpus(1));
  {
    const auto scope = used.scope();
    const Variable variable(1.0);
  }
  const auto configure = [&] {
    used.configure(ClusterSpec{{"worker", {"127.0.0.1:1"}}}, "worker", 0);
  };
  EXPECT_TRUE(
      test::throws_error(configure, ErrorCode::kFailedPrecondition, {"it has variables already"}));
  MirroredStrategy alone(cpus(2));
  alone.configure(ClusterSpec{{"worker", {"127.0.0.1:1"}}}, "worker", 0);
  EXPECT_EQ(alone.num_replicas_in_sync(), 2);
  EXPECT_NE(alone.cluster_resolver(), nullptr);
}

}  // namespace tutti::multi_worker_strategy_test
