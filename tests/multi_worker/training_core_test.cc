// SPDX-License-Identifier: Apache-2.0
//
// What the training core offers, on several workers: each case gives the bits of one process with
// as many replicas.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/multi_worker/shapes.h"

namespace tutti::multi_worker_training_test {

class TrainingOverWorkers : public testing::MultiWorker {};

INSTANTIATE_TEST_SUITE_P(Shapes, TrainingOverWorkers, testing::shapes(), testing::shape_name);

struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Net() {
    first = register_module("first", torch::nn::Linear(6, 20));
    norm = register_module("norm", torch::nn::BatchNorm1d(20));
    second = register_module("second", torch::nn::Linear(20, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(norm(first(x)))); }
};

// Rows that differ between replicas and steps.
at::Tensor rows_of(int step, at::ScalarType dtype = at::kFloat) {
  const int id = get_replica_context()->replica_id_in_sync_group();
  const int64_t rows = 3 + (id + step) % 3;
  return (at::arange(rows * 6, at::kFloat).view({rows, 6}) * 0.21F +
          static_cast<float>(7 * id + step))
      .sin()
      .to(dtype);
}

at::Tensor all_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& each : module.parameters()) {
    all.push_back(each.detach().flatten().to(at::kDouble));
  }
  for (const at::Tensor& each : module.buffers()) {
    all.push_back(each.detach().flatten().to(at::kDouble));
  }
  return at::cat(all);
}

using Steps = std::function<void(Replicated<Net>& model,
                                 DistributedOptimizer<torch::optim::Adam>& optimizer, int step)>;

// Four runs of `inside` on every replica; returns all parameters and buffers.
std::function<at::Tensor(const Strategy&)> training(const DistributedOptimizerOptions& options,
                                                    const Steps& inside) {
  return [=](const Strategy& strategy) {
    auto model = replicate<Net>(strategy);
    DistributedOptimizer<torch::optim::Adam> optimizer(model, torch::optim::AdamOptions(0.05),
                                                       options);
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] { inside(model, optimizer, step); });
    }
    return all_of(model.primary());
  };
}

at::Tensor loss_of(const Replicated<Net>& model, int step) {
  return average_loss(model->forward(rows_of(step)).square());
}

TEST_P(TrainingOverWorkers, RoundsGradientsToAnotherType) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    expect_as_mirrored(training(
        {.communication_dtype = dtype},
        [](auto& model, auto& optimizer, int step) { optimizer.minimize(loss_of(model, step)); }));
  }
}

TEST_P(TrainingOverWorkers, AccumulatesGradients) {
  expect_as_mirrored(training({.accumulate = 3}, [](auto& model, auto& optimizer, int step) {
    for (int part = 0; part < 3; ++part) {
      optimizer.zero_grad();
      const at::Tensor losses = model->forward(rows_of(3 * step + part)).square();
      optimizer.average_loss(losses).backward();
      optimizer.step();
    }
  }));
}

TEST_P(TrainingOverWorkers, AddsUpWithoutSummingInBetween) {
  expect_as_mirrored(training({}, [](auto& model, auto& optimizer, int step) {
    optimizer.zero_grad();
    {
      const auto alone = optimizer.no_sync();
      loss_of(model, step).backward();
    }
    loss_of(model, step + 10).backward();
    optimizer.step();
  }));
}

TEST_P(TrainingOverWorkers, LetsSumsBeChangedBeforeAStep) {
  expect_as_mirrored(training({}, [](auto& model, auto& optimizer, int step) {
    optimizer.zero_grad();
    loss_of(model, step).backward();
    optimizer.synchronize();
    {
      const torch::NoGradGuard no_grad;
      model->second->weight.mutable_grad().clamp_(-0.01, 0.01);
    }
    optimizer.step();
  }));
}

TEST_P(TrainingOverWorkers, ClipsTheNormAndSkipsWhatIsNotFinite) {
  for (const bool fused : {true, false}) {
    const DistributedOptimizerOptions options{
        .clip_norm = 0.02, .non_finite = NonFinite::kSkip, .fused = fused};
    expect_as_mirrored(training(options, [](auto& model, auto& optimizer, int step) {
      at::Tensor loss = loss_of(model, step);
      const int id = get_replica_context()->replica_id_in_sync_group();
      if (step == 2 && id == get_replica_context()->num_replicas_in_sync() - 1) {
        loss = loss * std::numeric_limits<double>::infinity();
      }
      const StepResult result = optimizer.minimize(loss);
      EXPECT_EQ(result.updated, step != 2);
      EXPECT_EQ(result.non_finite, step == 2);
    }));
  }
}

TEST_P(TrainingOverWorkers, StopsEverywhereAtWhatIsNotFinite) {
  if (workers() == 1) return;
  const auto fn =
      training({.non_finite = NonFinite::kStop}, [](auto& model, auto& optimizer, int step) {
        at::Tensor loss = loss_of(model, step);
        const int id = get_replica_context()->replica_id_in_sync_group();
        if (step == 2 && id == 0) loss = loss * std::numeric_limits<double>::quiet_NaN();
        optimizer.minimize(loss);
      });
  // Every worker detects it itself, or gets the error of one that did.
  const auto errors = InProcessCluster(workers(), options()).try_run(fn);
  for (const std::exception_ptr& each : errors) {
    try {
      ASSERT_NE(each, nullptr);
      std::rethrow_exception(each);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kCancelled);
      EXPECT_NE(std::string(error.what()).find("is not finite in step 3"), std::string::npos)
          << error.what();
    }
  }
}

TEST_P(TrainingOverWorkers, ScalesLosses) {
  expect_as_mirrored([](const Strategy& strategy) {
    auto model = replicate<Net>(strategy);
    DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.05));
    GradScaler scaler(strategy, {.init_scale = 1024, .growth_interval = 2});
    std::vector<double> scales;
    for (int step = 0; step < 5; ++step) {
      strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        at::Tensor loss = loss_of(model, step);
        if (step == 3 && id == 0) loss = loss * std::numeric_limits<double>::infinity();
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
      });
      scales.push_back(scaler.scale());
    }
    EXPECT_EQ(scales, (std::vector<double>{1024, 2048, 2048, 1024, 1024}));
    return all_of(model.primary());
  });
}

TEST_P(TrainingOverWorkers, HasSeveralOptimizers) {
  expect_as_mirrored([](const Strategy& strategy) {
    auto one = replicate<Net>(strategy);
    auto two = replicate<Net>(strategy);
    DistributedOptimizer<torch::optim::SGD> first(one, torch::optim::SGDOptions(0.05));
    DistributedOptimizer<torch::optim::Adam> second(two, torch::optim::AdamOptions(0.05));
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        first.zero_grad();
        second.zero_grad();
        const at::Tensor out = one->forward(rows_of(step)) - two->forward(rows_of(step));
        average_loss(out.square()).backward();
        second.step();
        first.step();
      });
    }
    return at::cat({all_of(one.primary()), all_of(two.primary())});
  });
}

TEST_P(TrainingOverWorkers, GoesOnInAnotherType) {
  expect_as_mirrored([](const Strategy& strategy) {
    auto model = replicate<Net>(strategy);
    DistributedOptimizer<torch::optim::Adam> optimizer(model, torch::optim::AdamOptions(0.05));
    for (int step = 0; step < 4; ++step) {
      if (step == 2) model.to(at::kDouble);
      strategy.run([&] {
        const at::Tensor x = rows_of(step, step < 2 ? at::kFloat : at::kDouble);
        optimizer.minimize(average_loss(model->forward(x).square()));
      });
    }
    return all_of(model.primary());
  });
}

// An optimizer that the library does not know.
struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {
  explicit SignOptions(double each) : rate(each) {}
  double rate;
};

struct Sign : torch::optim::Optimizer {
  Sign(const std::vector<torch::optim::OptimizerParamGroup>& groups, SignOptions defaults)
      : Optimizer(groups, std::make_unique<SignOptions>(defaults)) {}
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const double rate = static_cast<SignOptions&>(group.options()).rate;
      for (at::Tensor& each : group.params()) {
        if (each.grad().defined()) each.add_(each.grad().tanh(), -rate);
      }
    }
    return {};
  }
};

TEST_P(TrainingOverWorkers, TakesTheUsersOwnOptimizerAndModule) {
  expect_as_mirrored([](const Strategy& strategy) {
    auto mine = std::make_shared<Net>();
    auto model = adopt(strategy, mine, [] { return std::make_shared<Net>(); });
    DistributedOptimizer<Sign> optimizer(model, SignOptions(0.05));
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] { optimizer.minimize(loss_of(model, step)); });
    }
    return all_of(*mine);
  });
}

TEST_P(TrainingOverWorkers, ClipsWithSparseTables) {
  struct Tables : torch::nn::Module {
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear dense{nullptr};
    Tables() {
      table = register_module(
          "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(30, 5).sparse(true)));
      dense = register_module("dense", torch::nn::Linear(5, 3));
      to(at::kDouble);
    }
  };
  expect_as_mirrored([](const Strategy& strategy) {
    auto model = replicate<Tables>(strategy);
    DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1),
                                                      {.clip_norm = 1e-3});
    std::vector<double> norms;
    for (int step = 0; step < 4; ++step) {
      const auto results = strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        const at::Tensor rows = at::tensor({id, id + step, 29 - id, (7 * id + step) % 30});
        return optimizer.minimize(average_loss(model->dense(model->table(rows)).square().flatten()))
            .norm;
      });
      norms.push_back(results[0]);
    }
    return at::cat({all_of(model.primary()), torch::tensor(norms, at::kDouble)});
  });
}

// A whole loop with a model that has buffers: every message that is sent in a step is known.
TEST_P(TrainingOverWorkers, SendsNothingInAStepBesidesBucketsAndOneNote) {
  if (workers() == 1) return;
  run([&](const Strategy& strategy) {
    auto& group = strategy.extended().workers();
    const auto operations = [&](LaneKind channel) { return group.lane(channel).operations(); };
    auto model = replicate<Net>(strategy);
    DistributedOptimizer<torch::optim::Adam> optimizer(model, torch::optim::AdamOptions(0.05));
    const at::Tensor rows = at::arange(6 * 40, at::kFloat).view({40, 6}).sin();
    const auto batches = strategy.distribute_dataset(data::from_tensor_slices(rows).batch(12));
    const uint64_t collectives = operations(LaneKind::kCollectives);
    const uint64_t gradients = operations(LaneKind::kGradients);
    const uint64_t notes = operations(LaneKind::kFlags);
    const uint64_t input = group.lane(LaneKind::kInput).bytes_sent();
    uint64_t steps = 0;
    for (auto& batch : batches) {
      strategy.run(
          [&](const at::Tensor& x, int64_t all) {
            if (x.size(0) == 1) model->eval();  // BatchNorm cannot train on one row
            const at::Tensor losses = model->forward(x).square().sum(1);
            model->train();
            optimizer.minimize(average_loss_over(losses, static_cast<double>(all)));
          },
          batch, batch.global_rows());
      ++steps;
    }
    EXPECT_EQ(steps, 4U);
    EXPECT_EQ(operations(LaneKind::kCollectives), collectives);
    EXPECT_EQ(operations(LaneKind::kGradients), gradients + steps) << "one bucket";
    EXPECT_EQ(operations(LaneKind::kFlags), notes + steps);
    // One message of 40 bytes to each other worker before each step, and one that says it is over.
    const uint64_t peers = static_cast<uint64_t>(workers()) - 1;
    EXPECT_EQ(group.lane(LaneKind::kInput).bytes_sent(), input + (steps + 1) * peers * 40);
  });
}

}  // namespace tutti::multi_worker_training_test
