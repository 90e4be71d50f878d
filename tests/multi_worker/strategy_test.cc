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

#include "tutti/group/connect.h"

#include "tests/multi_worker/shapes.h"
#include "tests/support/expect_error.h"
#include "tests/support/free_addresses.h"

namespace tutti::multi_worker_strategy_test {

using testing::cpus;
using testing::MultiWorker;

INSTANTIATE_TEST_SUITE_P(Shapes, MultiWorker, testing::shapes(), testing::shape_name);

at::Tensor of_replica(int64_t rows = 3) {
  const int id = get_replica_context()->replica_id_in_sync_group();
  return at::arange(rows * 2, at::kFloat).view({rows, 2}) * 0.37F + static_cast<float>(id) * 1.1F;
}

TEST_P(MultiWorker, CountsReplicasOverAllWorkers) {
  run([&](const Strategy& strategy) {
    EXPECT_EQ(strategy.num_replicas_in_sync(), all());
    EXPECT_EQ(strategy.extended().workers().size(), workers());
    EXPECT_EQ(strategy.extended().in_multi_worker_mode(), workers() > 1);
    const auto ids = strategy.run([] { return get_replica_context()->replica_id_in_sync_group(); });
    ASSERT_EQ(strategy.local_results(ids).size(), static_cast<size_t>(local()));
    for (int i = 0; i < local(); ++i) {
      EXPECT_EQ(ids[static_cast<size_t>(i)], strategy.extended().workers().rank() * local() + i);
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

// Every worker has its own value.
TEST_P(MultiWorker, CombinesPlainValuesOverWorkers) {
  if (workers() == 1) return;
  run([&](const Strategy& strategy) {
    const int w = strategy.extended().workers().rank();
    const at::Tensor mine = at::arange(6, at::kFloat).view({3, 2}) + static_cast<float>(10 * w);
    at::Tensor sum = at::zeros({3, 2});
    std::vector<at::Tensor> parts;
    for (int each = 0; each < workers(); ++each) {
      parts.push_back(at::arange(6, at::kFloat).view({3, 2}) + static_cast<float>(10 * each));
      sum += parts.back();
    }
    const at::Tensor all = at::cat(parts);
    EXPECT_TRUE(at::equal(strategy.reduce(ReduceOp::kSum, mine), sum));
    EXPECT_TRUE(at::allclose(strategy.reduce(ReduceOp::kMean, mine), sum / workers()));
    EXPECT_TRUE(at::equal(strategy.reduce(ReduceOp::kMax, mine, 0), std::get<0>(all.max(0))));
    EXPECT_TRUE(at::allclose(strategy.reduce(ReduceOp::kMean, mine, 0), all.mean(0)));
    EXPECT_TRUE(at::equal(strategy.gather(mine, 0), all));
    EXPECT_EQ(strategy.reduce(ReduceOp::kSum, w + 1), workers() * (workers() + 1) / 2);
    EXPECT_EQ(strategy.reduce(ReduceOp::kMin, 0.5 + w), 0.5);
    const auto nested = strategy.reduce(ReduceOp::kSum, std::tuple(mine, 2.0));
    EXPECT_TRUE(at::equal(std::get<0>(nested), sum));
    EXPECT_EQ(std::get<1>(nested), 2.0 * workers());
    // What is mirrored is the same on all workers.
    const Mirrored<at::Tensor> mirrored(
        std::vector<at::Tensor>(static_cast<size_t>(local()), at::ones({2})));
    EXPECT_TRUE(at::equal(strategy.reduce(ReduceOp::kMean, mirrored), at::ones({2})));
  });
}

TEST_P(MultiWorker, ReducesToDestinations) {
  expect_as_mirrored([](const Strategy& strategy) {
    StrategyExtended& extended = strategy.extended();
    const Destinations here(at::ones({1}));
    const auto values = strategy.run([] { return of_replica(); });
    const auto slices = strategy.run([] {
      const int id = get_replica_context()->replica_id_in_sync_group();
      return IndexedSlices(of_replica(2), at::tensor({id, id + 1}), {20, 2});
    });
    const Mirrored<IndexedSlices> same(std::vector<IndexedSlices>(
        values.size(), IndexedSlices(at::ones({2, 2}), at::tensor({3, 4}), {20, 2})));
    return at::cat({extended.reduce_to(ReduceOp::kSum, values, here)[0].flatten(),
                    extended.reduce_to(ReduceOp::kMean, slices, here)[0].to_dense().flatten(),
                    extended.reduce_to(ReduceOp::kMean, same, here)[0].to_dense().flatten()});
  });
}

TEST_P(MultiWorker, PacksSmallTensorsAsAsked) {
  if (workers() == 1) return;
  run([&](const Strategy& strategy) {
    const Lane& lane = strategy.extended().workers().lane(LaneKind::kCollectives);
    // 20 tensors of 4000 bytes, then one that travels alone.
    const auto exchanges = [&](int64_t bytes_per_pack) {
      const uint64_t before = lane.operations();
      const auto sums = strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        std::vector<at::Tensor> tensors;
        for (int i = 0; i < 20; ++i) tensors.push_back(at::full({1000}, 1.0F + id + i));
        tensors.push_back(at::full({100'000}, 0.5F * (1 + id)));
        return get_replica_context()->all_reduce(ReduceOp::kSum, tensors,
                                                 {.bytes_per_pack = bytes_per_pack});
      });
      const float ids = static_cast<float>(all() * (all() - 1)) / 2;
      for (int i = 0; i < 20; ++i) {
        const float expected = ids + static_cast<float>(all() * (1 + i));
        EXPECT_TRUE(at::equal(sums[0][static_cast<size_t>(i)], at::full({1000}, expected))) << i;
      }
      EXPECT_EQ(sums[0][20][99'999].item<float>(), 0.5F * (ids + static_cast<float>(all())));
      return lane.operations() - before;
    };
    EXPECT_EQ(exchanges(0), 2U) << "one pack, and the large one";
    EXPECT_EQ(exchanges(1), 21U);
    EXPECT_EQ(exchanges(8000), 8U) << "a pack is closed by the tensor that makes it larger";
    EXPECT_EQ(exchanges(1 << 20), 2U);
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
    // Each worker proposes a different value; that of worker 0 counts.
    const Variable mirrored(
        at::full({2}, 1.0F + static_cast<float>(strategy.extended().workers().rank())),
        {.name = "mirrored", .aggregation = VariableAggregation::kMean});
    const Variable first(at::zeros({2}),
                         {.name = "first", .aggregation = VariableAggregation::kOnlyFirstReplica});
    const Variable sum(at::zeros({2}), {.name = "sum",
                                        .synchronization = VariableSynchronization::kOnRead,
                                        .aggregation = VariableAggregation::kSum});
    const Variable first_read(at::zeros({2}),
                              {.name = "first_read",
                               .synchronization = VariableSynchronization::kOnRead,
                               .aggregation = VariableAggregation::kOnlyFirstReplica});
    const Variable number(0.0F, {.name = "number", .aggregation = VariableAggregation::kMean});
    const Variable own(0.0F, {.name = "own", .aggregation = VariableAggregation::kMean});
    const Variable total(0.0F, {.name = "total", .aggregation = VariableAggregation::kSum});
    strategy.run([&] {
      const int id = get_replica_context()->replica_id_in_sync_group();
      const at::Tensor mine = at::full({2}, 0.5F + static_cast<float>(id));
      mirrored.assign_add(mine);
      first.assign(mine);
      sum.assign_add(mine);
      first_read.assign(mine);
      number.assign(1.5F + 0x1p-22F);  // three of them add up to a number that is rounded
      // Some workers have equal numbers, others do not.
      own.assign(id == 0 ? 1.0F : 2.0F);
      if (get_replica_context()->num_replicas_in_sync() > 1) total.assign(id == 0 ? 1.0F : 2.0F);
    });
    return at::cat({mirrored.read_value(), first.read_value(), sum.read_value(),
                    first_read.read_value(), number.read_value().view({1}),
                    own.read_value().view({1}), total.read_value().view({1})});
  });
}

TEST_P(MultiWorker, RefusesToSumANumberThatAllReplicasBring) {
  if (all() == 1) return;
  const auto update = [](const Strategy& strategy) {
    const auto scope = strategy.scope();
    const Variable total(0.0F, {.name = "total", .aggregation = VariableAggregation::kSum});
    strategy.run([&] { total.assign(2.0F); });
  };
  expect_all_refuse(update, ErrorCode::kInvalidArgument, {"non-distributed value", "'total'"});
}

struct NetWithRareLayer : torch::nn::Module {
  torch::nn::Linear used{nullptr}, rare{nullptr};
  NetWithRareLayer() {
    used = register_module("used", torch::nn::Linear(3, 3));
    rare = register_module("rare", torch::nn::Linear(3, 3));
  }
};

// Workers fill the buckets of one step in different runs if a parameter is used on some only.
TEST_P(MultiWorker, MakesAStepInALaterRunThanBackward) {
  expect_as_mirrored([](const Strategy& strategy) {
    auto model = replicate<NetWithRareLayer>(strategy);
    DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1),
                                                      {.bytes_per_bucket = 1});
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        optimizer.zero_grad();
        at::Tensor out = model->used(at::full({2, 3}, 1.0F + static_cast<float>(id)));
        if (id == 0) out = model->rare(out);
        out.sum().backward();
      });
      strategy.run([&] { optimizer.step(); });
    }
    return at::cat({model.primary().used->weight.detach().flatten(),
                    model.primary().rare->weight.detach().flatten()});
  });
}

// In turns all replicas, the last one and none use the layer; Adam counts its updates.
TEST_P(MultiWorker, LeavesOutWhatNobodyUsesInAStep) {
  expect_as_mirrored([](const Strategy& strategy) {
    auto model = replicate<NetWithRareLayer>(strategy);
    DistributedOptimizer<torch::optim::Adam> optimizer(
        model, torch::optim::AdamOptions(0.1).weight_decay(0.1));
    for (int step = 0; step < 9; ++step) {
      const at::Tensor before = model.primary().rare->weight.detach().clone();
      strategy.run([&] {
        ReplicaContext& context = *get_replica_context();
        const int id = context.replica_id_in_sync_group();
        at::Tensor out = model->used(at::full({2, 3}, 1.0F + static_cast<float>(id)));
        const bool is_last = id == context.num_replicas_in_sync() - 1;
        if (step % 3 == 0 || (step % 3 == 1 && is_last)) out = model->rare(out);
        optimizer.minimize(average_loss(out.square().flatten()));
      });
      EXPECT_EQ(at::equal(model.primary().rare->weight, before), step % 3 == 2) << step;
    }
    return at::cat({model.primary().used->weight.detach().flatten(),
                    model.primary().rare->weight.detach().flatten()});
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

TEST_P(MultiWorker, ExchangesNothingInAStepBesidesBucketsAndFlags) {
  if (workers() == 1) return;
  run([&](const Strategy& strategy) {
    auto& group = strategy.extended().workers();
    const auto operations = [&] {
      std::vector<uint64_t> counts;
      for (const LaneKind each : {LaneKind::kCollectives, LaneKind::kGradients, LaneKind::kFlags}) {
        counts.push_back(group.lane(each).operations());
      }
      return counts;
    };
    auto model = replicate<torch::nn::LinearImpl>(strategy, 200, 200);
    DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
    std::vector<uint64_t> before = operations();
    for (int step = 0; step < 3; ++step) {
      strategy.run([&] { optimizer.minimize(model->forward(at::ones({2, 200})).sum()); });
      const std::vector<uint64_t> after = operations();
      EXPECT_EQ(after[0] - before[0], 0U) << "step " << step;
      EXPECT_EQ(after[1] - before[1], 2U) << "a bucket for the large weight, one for the bias";
      EXPECT_EQ(after[2] - before[2], 1U);
      before = after;
    }
  });
}

// The threads that read send the rows ahead; the loss is that of average_loss().
TEST_P(MultiWorker, AveragesOverTheRowsOfAllWorkersWithoutAnExchange) {
  const int64_t rows = 3 * 8 + 5;
  const at::Tensor all = torch::arange(rows, at::kDouble).unsqueeze(1);
  run([&](const Strategy& strategy) {
    const auto exchanges = [&] {
      return strategy.extended().workers().lane(LaneKind::kCollectives).operations();
    };
    const auto batches = strategy.distribute_dataset(data::from_tensor_slices(all).batch(8));
    std::vector<int64_t> seen;
    for (auto& step : batches) {
      seen.push_back(step.global_rows());
      const uint64_t before = exchanges();
      const auto ours = strategy.run(
          [](const at::Tensor& part, int64_t total) {
            return average_loss_over(part, static_cast<double>(total));
          },
          step, step.global_rows());
      EXPECT_EQ(exchanges(), before);
      const auto expected =
          strategy.run([](const at::Tensor& part) { return average_loss(part); }, step);
      for (size_t r = 0; r < ours.size(); ++r) EXPECT_TRUE(at::equal(ours[r], expected[r])) << r;
    }
    EXPECT_EQ(seen, (std::vector<int64_t>{8, 8, 8, 5}));
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
      at::Tensor x = of_replica(1 + id % 2).requires_grad_();
      const at::Tensor y = model->norm(x);
      mean.update(y[0]);
      (y * of_replica(2 - id % 2).sum()).square().sum().backward();
      return std::tuple(y.detach(), x.grad());
    });
    const auto [outputs, gradients] = out;
    return at::cat({strategy.gather(outputs, 0).flatten(), strategy.gather(gradients, 0).flatten(),
                    at::scalar_tensor(mean.result(), at::kFloat).view({1}),
                    model.primary().norm->running_mean, model.primary().norm->running_var});
  });
}

TEST_P(MultiWorker, EndsUnevenDataTogether) {
  run([&](const Strategy& strategy) {
    for (int pass = 0; pass < 3; ++pass) {
      // Worker w has its own w + 1 batches.
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

// It reaches every worker, even while a replica beside the one that failed computes.
TEST_P(MultiWorker, PassesAnExceptionToAllWorkersAtOnce) {
  if (workers() == 1) return;
  using Clock = std::chrono::steady_clock;
  std::atomic<int> waiting{workers() - 1};
  const auto errors = InProcessCluster(workers(), options()).try_run([&](const Strategy& strategy) {
    const int worker = strategy.extended().workers().rank();
    try {
      for (int step = 0; step < 5; ++step) {
        strategy.run([&] {
          ReplicaContext& context = *get_replica_context();
          const int last = 2 * local() - 1;  // of worker 1
          if (step == 3 && context.replica_id_in_sync_group() == last) {
            throw std::out_of_range("no such row");
          }
          if (step == 3 && worker == 1) {
            const auto limit = Clock::now() + std::chrono::seconds(20);
            while (waiting > 0 && Clock::now() < limit) std::this_thread::yield();
            EXPECT_EQ(waiting, 0) << "workers that wait for a replica that computes";
          }
          context.all_reduce(ReduceOp::kSum, at::ones({4}));
        });
      }
    } catch (...) {
      if (worker != 1) --waiting;
      throw;
    }
  });
  EXPECT_THROW(std::rethrow_exception(errors[1]), std::out_of_range);
  for (int w = 0; w < workers(); ++w) {
    if (w == 1) continue;
    const auto rethrow = [&] { std::rethrow_exception(errors[static_cast<size_t>(w)]); };
    EXPECT_TRUE(test::throws_error(rethrow, ErrorCode::kCancelled,
                                   {"/job:worker/task:1", "step 4",
                                    "replica " + std::to_string(2 * local() - 1), "no such row"}));
  }
}

TEST_P(MultiWorker, StopsAfterTheSameStepEverywhere) {
  std::vector<int> stopped(static_cast<size_t>(workers()), -1);
  run([&](const Strategy& strategy) {
    StrategyExtended& extended = strategy.extended();
    const auto batches = strategy.distribute_dataset(data::range(400).batch(4));
    int steps = 0;
    for (auto& batch : batches) {
      if (extended.stop_requested()) break;
      strategy.run([](const at::Tensor& x) { return x.size(0); }, batch);
      if (++steps == 7 && extended.workers().rank() == workers() - 1) extended.request_stop();
    }
    stopped[static_cast<size_t>(extended.workers().rank())] = steps;
    // All are in step: this would fail otherwise.
    EXPECT_EQ(strategy.reduce(ReduceOp::kSum, strategy.run([] { return 1; })), all());
  });
  for (const int each : stopped) {
    EXPECT_EQ(each, stopped[0]);
    EXPECT_GE(each, 7);
    EXPECT_LT(each, 20) << "what was read ahead, and no more";
  }
}

TEST_P(MultiWorker, RefusesModelsThatDiffer) {
  if (workers() == 1) return;
  InProcessClusterOptions options;
  options.devices = cpus(local());
  options.communication_options.implementation = GetParam().way;
  const auto errors = InProcessCluster(workers(), options).try_run([&](const Strategy& strategy) {
    const int wide = strategy.extended().workers().rank() == 1 ? 5 : 4;
    auto model = replicate<torch::nn::LinearImpl>(strategy, 3, wide);
    strategy.reduce(ReduceOp::kSum,
                    strategy.run([] { return 1; }));  // worker 0 does not wait before
  });
  for (const std::exception_ptr& each : errors) {
    try {
      ASSERT_NE(each, nullptr);
      std::rethrow_exception(each);
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
      EXPECT_NE(text.find("[5, 3]"), std::string::npos) << text;
      EXPECT_NE(text.find("weight"), std::string::npos) << text;
    }
  }
}

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
      test::throws_error(configure, ErrorCode::kFailedPrecondition, {"it already has variables"}));
  MirroredStrategy with_ops(cpus(1),
                            {.cross_device_ops = std::make_shared<ReductionToOneDevice>()});
  EXPECT_TUTTI_ERROR(with_ops.configure(ClusterSpec{{"worker", {"127.0.0.1:1"}}}, "worker", 0),
                     ErrorCode::kFailedPrecondition, "it was given cross_device_ops");
  MirroredStrategy alone(cpus(2));
  alone.configure(ClusterSpec{{"worker", {"127.0.0.1:1"}}}, "worker", 0);
  EXPECT_EQ(alone.num_replicas_in_sync(), 2);
  EXPECT_NE(alone.cluster_resolver(), nullptr);
  EXPECT_TUTTI_ERROR(alone.configure(ClusterSpec{{"worker", {"127.0.0.1:1"}}}, "worker", 0),
                     ErrorCode::kFailedPrecondition, "it is already configured");
}

TEST(MultiWorkerStrategy, ConfiguresMirroredStrategiesToOneOfTwoWorkers) {
  const ClusterSpec cluster{{"worker", test::free_addresses(2)}};
  const auto worker = [&](int task) {
    MirroredStrategy strategy(cpus(2), {.communication_options = {.bytes_per_pack = 77},
                                        .runner = {.threads_per_replica = 1}});
    strategy.configure(cluster, "worker", task);
    EXPECT_EQ(strategy.num_replicas_in_sync(), 4);
    EXPECT_EQ(strategy.extended().workers().rank(), task);
    EXPECT_EQ(strategy.extended().communication_options().bytes_per_pack, 77);
    const auto ids = strategy.run([] { return get_replica_context()->replica_id_in_sync_group(); });
    EXPECT_EQ(ids[1], 2 * task + 1);
    EXPECT_EQ(strategy.reduce(ReduceOp::kSum, ids), 6);
    EXPECT_TUTTI_ERROR(strategy.configure(cluster, "worker", task), ErrorCode::kFailedPrecondition,
                       "it is already configured");
  };
  std::thread other([&] { worker(1); });
  worker(0);
  other.join();
}

TEST(MultiWorkerStrategy, SumsWithTheFastImplementation) {
  InProcessClusterOptions options;
  options.devices = cpus(2);
  options.communication_options.implementation = CommunicationImplementation::kFast;
  InProcessCluster(2, options).run([](const Strategy& strategy) {
    strategy.run([] {
      const at::Tensor mine =
          at::full({3}, static_cast<float>(get_replica_context()->replica_id_in_sync_group()));
      const at::Tensor sum = get_replica_context()->all_reduce(ReduceOp::kSum, mine);
      EXPECT_TRUE(at::equal(sum, at::full({3}, 6.0F))) << sum;
    });
  });
}

TEST(MultiWorkerStrategy, SaysWhyThereIsNoSharedMemory) {
  GroupOptions options;
  options.names = {"a", "b"};
  options.segment_bytes = 4096;  // too small for the rings
  options.implementation = CommunicationImplementation::kHost;
  options.gather = [](const std::string& mine) { return std::vector<std::string>{mine, mine}; };
  EXPECT_TUTTI_ERROR(make_group(options), ErrorCode::kUnavailable, "a cannot share memory with b",
                     "it has none: shared memory: the rings of 2 ranks take",
                     "a segment has 4096. Use");
}

TEST(MultiWorkerStrategy, ASmallVariableIsNotMadeWithoutAWorkerThatHasLeft) {
  for (const int leaver : {0, 1}) {
    const auto errors = InProcessCluster(2).try_run([&](const Strategy& strategy) {
      if (strategy.extended().workers().rank() == leaver) throw std::runtime_error("leaves");
      strategy.scope([] { return Variable(1.0, {.name = "small"}); });
    });
    const auto rethrow = [&] {
      if (const auto& error = errors[static_cast<size_t>(1 - leaver)])
        std::rethrow_exception(error);
    };
    EXPECT_TRUE(test::throws_error(rethrow, ErrorCode::kCancelled, {"ended with an error: leaves"}))
        << leaver;
  }
}

}  // namespace tutti::multi_worker_strategy_test
