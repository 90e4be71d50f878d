// SPDX-License-Identifier: Apache-2.0
//
// Training on replicas against plain LibTorch that sees all rows of a step at once: the same
// gradients and the same parameters, however the rows are spread.

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/data/dataset.h"
#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/distributed_dataset.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
#include "tutti/train/loss.h"
#include "tutti/train/optimizer/distributed_optimizer.h"

#include "tests/train/train_twins.h"

namespace tutti::exactness_test {

using test::Batch;
using test::cpus;
using test::make_batch;
using test::my_id;
using test::near;
using test::random_tensor;
using test::Twin;
using test::TwoLayersImpl;

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

// An optimizer that a user might write: p -= lr * g / (1 + |g|).
struct SoftSignOptions : torch::optim::OptimizerCloneableOptions<SoftSignOptions> {
  explicit SoftSignOptions(double rate) : lr(rate) {}
  double lr;
};

class SoftSign : public torch::optim::Optimizer {
 public:
  SoftSign(std::vector<at::Tensor> parameters, const SoftSignOptions& options)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<SoftSignOptions>(options)) {}

  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const double lr = static_cast<const SoftSignOptions&>(group.options()).lr;
      for (at::Tensor& p : group.params()) {
        if (p.grad().defined()) p.sub_(p.grad() / (p.grad().abs() + 1), lr);
      }
    }
    return {};
  }
};

enum class Kind { kDefault, kOneDevice, kMirrored, kCentral };

struct Case {
  Kind kind;
  int replicas = 1;

  Strategy make() const {
    switch (kind) {
      case Kind::kDefault:
        return get_strategy();
      case Kind::kOneDevice:
        return OneDeviceStrategy("CPU:0");
      case Kind::kMirrored:
        return MirroredStrategy(cpus(replicas));
      case Kind::kCentral:
        return CentralStorageStrategy(cpus(replicas));
    }
    return get_strategy();
  }
};

std::string name_of(const Case& each) {
  switch (each.kind) {
    case Kind::kDefault:
      return "Default";
    case Kind::kOneDevice:
      return "OneDevice";
    case Kind::kMirrored:
      return "Mirrored" + std::to_string(each.replicas);
    case Kind::kCentral:
      return "CentralStorage" + std::to_string(each.replicas);
  }
  return "";
}

void PrintTo(const Case& each, std::ostream* out) { *out << name_of(each); }

enum class Accumulate { kOption, kNoSync };

struct Way {
  int batches = 1;  // per step
  Accumulate accumulate = Accumulate::kOption;
  bool weights = false;
};

class Exactness : public testing::TestWithParam<Case> {
 protected:
  // As in a program without a strategy, there is no run().
  void run(const Strategy& strategy, FunctionRef<void()> fn) const {
    if (GetParam().kind == Kind::kDefault) return fn();
    strategy.run([&] { fn(); });
  }

  template <class T>
  void distributed(T& twin, const Way& way, const std::vector<Batch>& x,
                   const std::vector<Batch>& w) const {
    run(twin.strategy, [&] {
      const auto r = static_cast<size_t>(my_id());
      twin.optimizer.zero_grad();
      for (size_t b = 0; b < x.size(); ++b) {
        const bool last = b + 1 == x.size();
        const auto weights = way.weights ? std::optional(w[b][r]) : std::nullopt;
        const at::Tensor loss =
            x.size() == 1 ? average_loss(twin.model->forward(x[b][r]), weights)
                          : twin.optimizer.average_loss(twin.model->forward(x[b][r]), weights);
        std::shared_ptr<void> alone;
        if (way.accumulate == Accumulate::kNoSync && !last) alone = twin.optimizer.no_sync();
        loss.backward();
        if (way.accumulate == Accumulate::kNoSync && !last) continue;
        EXPECT_EQ(twin.optimizer.step().updated, last);
      }
    });
  }

  template <class T>
  void plain(T& twin, const Way& way, const std::vector<Batch>& x,
             const std::vector<Batch>& w) const {
    std::vector<at::Tensor> rows;
    std::vector<at::Tensor> weights;
    for (size_t b = 0; b < x.size(); ++b) {
      rows.push_back(at::cat(x[b]));
      weights.push_back(at::cat(w[b]));
    }
    const at::Tensor losses = twin.plain->forward(at::cat(rows));
    const at::Tensor weight = at::cat(weights);
    twin.reference.zero_grad();
    (way.weights ? (losses * weight).sum() / weight.sum() : losses.mean()).backward();
    twin.reference.step();
  }

  template <class O, class Options>
  void expect_exact(const Options& options, double tolerance,
                    DistributedOptimizerOptions distributed_options = {}) const {
    for (const Way& way : ways()) {
      SCOPED_TRACE(testing::Message()
                   << way.batches << " batches, "
                   << (way.accumulate == Accumulate::kOption ? "accumulate" : "no_sync")
                   << (way.weights ? ", weights" : ""));
      if (way.accumulate == Accumulate::kOption) distributed_options.accumulate = way.batches;
      Twin<TwoLayersImpl, O, Options> twin(GetParam().make(), options, distributed_options);
      distributed_options.accumulate = 1;
      for (uint64_t step = 0; step < 4; ++step) {
        std::vector<Batch> x;
        std::vector<Batch> w;
        for (int b = 0; b < way.batches; ++b) {
          x.push_back(make_batch(twin.n(), step * 5 + static_cast<uint64_t>(b)));
          w.emplace_back();
          for (const at::Tensor& each : x.back()) {
            w.back().push_back(random_tensor({each.size(0)}, at::kDouble, 99 + step).abs());
          }
        }
        distributed(twin, way, x, w);
        plain(twin, way, x, w);
        twin.expect_equal(tolerance, way.batches == 1);
        if (HasFailure()) return;
      }
    }
  }

  static std::vector<Way> ways() {
    std::vector<Way> all;
    for (const bool weights : {false, true}) {
      for (int batches = 1; batches <= 4; ++batches) {
        all.push_back({batches, Accumulate::kOption, weights});
        if (batches > 1) all.push_back({batches, Accumulate::kNoSync, weights});
      }
    }
    return all;
  }
};

TEST_P(Exactness, SgdEqualsOneDevice) {
  expect_exact<torch::optim::SGD>(SGDOptions(0.1), 1e-12);
  expect_exact<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true),
                                  1e-12);
  expect_exact<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9), 1e-12, {.bytes_per_bucket = 64});
}

// Where a gradient is near zero, g / sqrt(g * g) amplifies its last bits.
TEST_P(Exactness, AdaptiveOptimizersEqualOneDevice) {
  expect_exact<torch::optim::Adam>(AdamOptions(0.01).weight_decay(0.01).amsgrad(true), 1e-11);
  expect_exact<torch::optim::AdamW>(AdamWOptions(0.01), 1e-11);
  expect_exact<torch::optim::Adagrad>(AdagradOptions(0.01).lr_decay(0.1), 1e-11);
  expect_exact<torch::optim::RMSprop>(RMSpropOptions(0.01).centered(true).momentum(0.5), 1e-11);
}

TEST_P(Exactness, HoldsWithoutTheFusedUpdate) {
  expect_exact<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9), 1e-12, {.fused = false});
  expect_exact<torch::optim::Adam>(AdamOptions(0.01), 1e-11, {.fused = false});
}

TEST_P(Exactness, HoldsForAnOptimizerOfTheUser) {
  expect_exact<SoftSign>(SoftSignOptions(0.1), 1e-12);
}

TEST_P(Exactness, GradientsAfterAStepOfSeveralBatchesAreThoseOfOneDevice) {
  for (const bool fused : {true, false}) {
    for (const Accumulate accumulate : {Accumulate::kOption, Accumulate::kNoSync}) {
      const int batches = accumulate == Accumulate::kOption ? 3 : 1;
      Twin<TwoLayersImpl, torch::optim::SGD, SGDOptions> twin(
          GetParam().make(), SGDOptions(0.1), {.accumulate = batches, .fused = fused});
      const std::vector<Batch> x = {make_batch(twin.n(), 0), make_batch(twin.n(), 1),
                                    make_batch(twin.n(), 5)};
      distributed(twin, {3, accumulate}, x, x);
      std::vector<at::Tensor> rows;
      for (const Batch& each : x) rows.push_back(at::cat(each));
      twin.plain_step(rows);
      twin.expect_equal(1e-12);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Exactness, ClippedGradientsAreThoseOfOneDevice) {
  for (const bool fused : {true, false}) {
    Twin<TwoLayersImpl, torch::optim::SGD, SGDOptions> twin(
        GetParam().make(), SGDOptions(0.1).momentum(0.9),
        {.accumulate = 2, .clip_norm = 0.05, .fused = fused});
    for (uint64_t step = 0; step < 4; ++step) {
      const std::vector<Batch> x = {make_batch(twin.n(), step), make_batch(twin.n(), step + 3)};
      distributed(twin, {.batches = 2}, x, x);
      twin.reference.zero_grad();
      twin.plain->forward(at::cat({at::cat(x[0]), at::cat(x[1])})).mean().backward();
      const double norm = torch::nn::utils::clip_grad_norm_(twin.plain->parameters(), 0.05);
      ASSERT_GT(norm, 0.05) << "clipping can be seen";
      twin.reference.step();
      // clip_grad_norm_ adds 1e-6 to the norm.
      twin.expect_equal(1e-4, false);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, Exactness,
                         testing::Values(Case{Kind::kDefault}, Case{Kind::kOneDevice},
                                         Case{Kind::kMirrored, 1}, Case{Kind::kMirrored, 2},
                                         Case{Kind::kMirrored, 3}, Case{Kind::kMirrored, 4},
                                         Case{Kind::kCentral, 1}, Case{Kind::kCentral, 2},
                                         Case{Kind::kCentral, 3}, Case{Kind::kCentral, 4}),
                         [](const auto& each) { return name_of(each.param); });

// The loss is computed before zero_grad(), as minimize() does with its argument.
TEST(ExactnessOfMinimize, AveragesOverAllBatchesSinceTheLastUpdate) {
  for (const bool by_minimize : {true, false}) {
    Twin<TwoLayersImpl, torch::optim::SGD, SGDOptions> twin(MirroredStrategy(cpus(2)),
                                                            SGDOptions(0.1), {.accumulate = 3});
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<at::Tensor> rows;
      for (uint64_t b = 0; b < 3; ++b) {
        const Batch x = make_batch(2, step * 3 + b);
        rows.push_back(at::cat(x));
        twin.strategy.run([&] {
          const at::Tensor loss = twin.optimizer.average_loss(twin.model->forward(x[my_id()]));
          if (by_minimize) {
            twin.optimizer.minimize(loss);
          } else {
            twin.optimizer.zero_grad();
            loss.backward();
            twin.optimizer.step();
          }
        });
      }
      twin.plain_step({at::cat(rows)});
    }
    twin.expect_equal(1e-12, false);
  }
}

TEST(ExactnessOfValues, AverageLossOfTheOptimizerIsTheAverageOfItsBatch) {
  Twin<TwoLayersImpl, torch::optim::SGD, SGDOptions> twin(MirroredStrategy(cpus(3)),
                                                          SGDOptions(0.1), {.accumulate = 3});
  for (uint64_t b = 0; b < 3; ++b) {
    const Batch x = make_batch(3, b);
    const auto parts = twin.strategy.run([&] {
      const at::Tensor loss = twin.optimizer.average_loss(twin.model->forward(x[my_id()]));
      loss.backward();
      twin.optimizer.step();
      return loss.detach();
    });
    if (b == 2) break;  // the parameters have changed
    EXPECT_TRUE(
        near(parts[0] + parts[1] + parts[2], twin.plain->forward(at::cat(x)).mean(), 1e-12));
  }
}

TEST(ExactnessOfValues, RegularizationCountsOnce) {
  for (const int replicas : {1, 3}) {
    Twin<TwoLayersImpl, torch::optim::SGD, SGDOptions> twin(MirroredStrategy(cpus(replicas)),
                                                            SGDOptions(0.1));
    const Batch x = make_batch(replicas, 1);
    twin.strategy.run([&] {
      twin.optimizer.zero_grad();
      const at::Tensor decay = twin.model->first->weight.pow(2).sum();
      (average_loss(twin.model->forward(x[my_id()])) + scale_regularization_loss(decay)).backward();
      twin.optimizer.step();
    });
    twin.reference.zero_grad();
    (twin.plain->forward(at::cat(x)).mean() + twin.plain->first->weight.pow(2).sum()).backward();
    twin.reference.step();
    twin.expect_equal(1e-12);
  }
}

// Every size of data, batch and strategy: no step hangs, no row is lost.
TEST(ExactnessOfDatasets, HoldsForAnyNumberOfRowsReplicasAndBatches) {
  for (int replicas = 1; replicas <= 5; ++replicas) {
    Twin<TwoLayersImpl, torch::optim::SGD, SGDOptions> twin(MirroredStrategy(cpus(replicas)),
                                                            SGDOptions(0.02).momentum(0.5));
    for (int64_t rows = 1; rows <= 40; rows += rows < 8 ? 1 : 4) {
      for (int64_t batch = 1; batch <= 7; batch += rows < 8 ? 1 : 3) {
        SCOPED_TRACE(testing::Message() << rows << " rows in batches of " << batch << " on "
                                        << replicas << " replicas");
        const at::Tensor x = random_tensor({rows, 5}, at::kDouble, static_cast<uint64_t>(rows));
        const auto dataset = data::from_tensor_slices(x).batch(batch);
        for (const auto& step : twin.strategy.distribute_dataset(dataset)) {
          twin.strategy.run(
              [&](const at::Tensor& part) {
                twin.optimizer.minimize(average_loss(twin.model->forward(part)));
              },
              step);
        }
        for (int64_t at = 0; at < rows; at += batch) {
          twin.plain_step({x.slice(0, at, std::min(rows, at + batch))});
        }
        twin.expect_equal(1e-10);
        if (HasFailure()) return;
      }
    }
  }
}

struct WithDropoutImpl : torch::nn::Module {
  WithDropoutImpl() {
    first = register_module("first", torch::nn::Linear(5, 300));
    second = register_module("second", torch::nn::Linear(300, 70));
    third = register_module("third", torch::nn::Linear(70, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = torch::dropout(torch::relu(first(x)), 0.3, is_training());
    return third(torch::dropout(torch::tanh(second(hidden)), 0.5, is_training())).pow(2).sum(1);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};

// 50 steps; the last batch of every five is ragged.
std::string train_with_dropout(int replicas, int concurrent, bool central,
                               const DistributedOptimizerOptions& options) {
  const ReplicaRunnerOptions runner = {.threads_per_replica = 1, .concurrent_replicas = concurrent};
  const Strategy strategy =
      central ? Strategy(CentralStorageStrategy(cpus(replicas), {}, {.runner = runner}))
              : Strategy(MirroredStrategy(cpus(replicas), {.runner = runner}));
  torch::manual_seed(3);
  auto model = replicate<WithDropoutImpl>(strategy);
  DistributedOptimizer<torch::optim::Adam> optimizer(model, AdamOptions(0.01), options);
  for (int step = 0; step < 50; ++step) {
    Batch x;
    for (int r = 0; r < replicas; ++r) {
      const int64_t rows = step % 5 < 4 ? 4 : (r == 0 ? 3 : r == 1 ? 1 : 0);
      x.push_back(random_tensor({rows, 5}, at::kFloat, static_cast<uint64_t>(step * 8 + r)));
    }
    strategy.run([&] { optimizer.minimize(average_loss(model->forward(x[my_id()]))); });
  }
  std::string bytes;
  model.for_each([&](const WithDropoutImpl& copy) {
    const std::string mine = test::parameter_bytes(copy);
    EXPECT_TRUE(bytes.empty() || bytes == mine) << "replicas differ";
    bytes = mine;
  });
  return bytes;
}

TEST(Determinism, ThreadsDoNotDecideTheBits) {
  const std::vector<DistributedOptimizerOptions> all_options = {
      {},
      {.bytes_per_bucket = 256},
      {.clip_norm = 0.1},
      {.communication_dtype = at::kBFloat16},
      {.communication_dtype = at::kHalf},
      {.fused = false}};
  for (const DistributedOptimizerOptions& options : all_options) {
    const bool all = options.communication_dtype == at::kBFloat16;
    for (const int replicas : {2, 4}) {
      if (replicas == 4 && !all) continue;  // they take long on few cores
      const std::string first = train_with_dropout(replicas, replicas, false, options);
      ASSERT_FALSE(first.empty());
      for (int concurrent = 1; concurrent <= replicas; ++concurrent) {
        EXPECT_TRUE(train_with_dropout(replicas, concurrent, false, options) == first)
            << replicas << " replicas on " << concurrent << " threads";
      }
      EXPECT_TRUE(train_with_dropout(replicas, replicas, true, options) == first)
          << "central storage";
    }
  }
}

TEST(Determinism, DetectsADifference) {
  EXPECT_FALSE(train_with_dropout(2, 2, false, {}) ==
               train_with_dropout(2, 2, false, {.communication_dtype = at::kBFloat16}));
}

}  // namespace tutti::exactness_test
