// SPDX-License-Identifier: Apache-2.0
//
// What the options of a DistributedOptimizer do, against plain LibTorch on one device: groups,
// schedulers, dtypes, clipping, numbers that are not finite, replicas that drift apart, memory.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/collectives/reduction_to_one_device.h"
#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/train/loss.h"
#include "tutti/train/optimizer/distributed_optimizer.h"

#include "tests/support/expect_error.h"
#include "tests/train/train_twins.h"

namespace tutti::optimizer_options_test {

using test::Batch;
using test::copy_values;
using test::cpus;
using test::make_batch;
using test::my_id;
using test::near;
using test::random_tensor;
using test::Twin;
using test::TwoLayersImpl;

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr double kExact = 1e-12;
constexpr auto kInvalid = ErrorCode::kInvalidArgument;

using SgdTwin = Twin<TwoLayersImpl, SGD, SGDOptions>;
using SgdGroups = std::vector<ParameterGroup<SGDOptions>>;

Strategy mirrored(int replicas) { return MirroredStrategy(cpus(replicas)); }
Strategy central(int replicas) { return CentralStorageStrategy(cpus(replicas)); }

// Sums by CrossDeviceOps at the end of backward instead of chunk by chunk.
Strategy by_one_device(int replicas) {
  return MirroredStrategy(cpus(replicas),
                          {.cross_device_ops = std::make_shared<ReductionToOneDevice>()});
}

std::vector<Strategy> strategies() {
  return {mirrored(1), mirrored(2), mirrored(4), central(3), by_one_device(3)};
}

// ---- groups and schedulers ---------------------------------------------------------------------

TEST(OptimizerGroups, HaveOptionsOfTheirOwnAndLeaveTheRestAlone) {
  for (const int64_t bucket : {64, 1 << 20}) {
    for (const bool fused : {true, false}) {
      const Strategy strategy = mirrored(3);
      auto model = replicate<TwoLayersImpl>(strategy);
      model.to(at::kDouble);
      TwoLayersImpl plain;
      plain.to(at::kDouble);
      copy_values(model.primary(), plain);
      const SGDOptions slow = SGDOptions(0.01).momentum(0.5);
      const SGDOptions fast = SGDOptions(0.2).weight_decay(0.1);
      DistributedOptimizer<SGD> optimizer(
          model, SgdGroups{{{"second.weight", "first.weight"}, slow}, {{"first.bias"}, fast}},
          {.bytes_per_bucket = bucket, .fused = fused});
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<at::Tensor>{plain.second->weight, plain.first->weight},
                          std::make_unique<SGDOptions>(slow));
      groups.emplace_back(std::vector<at::Tensor>{plain.first->bias},
                          std::make_unique<SGDOptions>(fast));
      SGD reference(groups, slow);
      for (uint64_t step = 0; step < 4; ++step) {
        const Batch x = make_batch(3, step);
        strategy.run([&] {
          model->zero_grad();
          optimizer.minimize(average_loss(model->forward(x[my_id()])));
        });
        plain.zero_grad();
        plain.forward(at::cat(x)).mean().backward();
        reference.step();
      }
      model.for_each([&](TwoLayersImpl& copy) {
        for (const auto& each : copy.named_parameters()) {
          EXPECT_TRUE(near(each.value(), plain.named_parameters()[each.key()], kExact))
              << each.key();
        }
      });
    }
  }
}

TEST(OptimizerGroups, RefuseWrongNames) {
  auto model = replicate<TwoLayersImpl>(mirrored(2));
  const SGDOptions options(0.1);
  EXPECT_TUTTI_ERROR(DistributedOptimizer<SGD>(model, SgdGroups{{{"third.weight"}, options}}),
                     ErrorCode::kNotFound, "third.weight", "first.weight");
  EXPECT_TUTTI_ERROR(DistributedOptimizer<SGD>(model, SgdGroups{{{"first.weight"}, options},
                                                                {{"first.weight"}, options}}),
                     kInvalid, "first.weight", "groups 0 and 1");
  EXPECT_TUTTI_ERROR(
      DistributedOptimizer<SGD>(model, SgdGroups{{{"first.bias", "first.bias"}, options}}),
      kInvalid, "first.bias");
  EXPECT_TUTTI_ERROR(DistributedOptimizer<SGD>(model, SgdGroups{}), kInvalid, "empty");
}

TEST(OptimizerOptions, AreChecked) {
  auto model = replicate<TwoLayersImpl>(mirrored(2));
  const auto make = [&](const DistributedOptimizerOptions& options) {
    DistributedOptimizer<SGD> optimizer(model, SGDOptions(0.1), options);
  };
  EXPECT_TUTTI_ERROR(make({.accumulate = 0}), kInvalid, "accumulate is 0");
  EXPECT_TUTTI_ERROR(make({.clip_norm = 0.0}), kInvalid, "clip_norm is 0");
  EXPECT_TUTTI_ERROR(make({.clip_norm = std::nan("")}), kInvalid, "clip_norm");
  EXPECT_TUTTI_ERROR(make({.communication_dtype = at::kLong}), kInvalid, "communication_dtype");
  EXPECT_TUTTI_ERROR(make({.check_every = -1}), kInvalid, "check_every is -1");
  EXPECT_TUTTI_ERROR(make({.bytes_per_bucket = 0}), kInvalid, "bytes_per_bucket is 0");
}

TEST(OptimizerSchedulers, ChangeTheLearningRate) {
  for (const Strategy& strategy : strategies()) {
    SgdTwin twin(strategy, SGDOptions(0.4).momentum(0.9));
    torch::optim::StepLR schedule(twin.optimizer, 2, 0.5);
    torch::optim::StepLR plain_schedule(twin.reference, 2, 0.5);
    for (uint64_t step = 0; step < 7; ++step) {
      twin.step(step);
      schedule.step();
      plain_schedule.step();
    }
    const auto& group = twin.optimizer.param_groups()[0];
    EXPECT_DOUBLE_EQ(static_cast<const SGDOptions&>(group.options()).lr(), 0.05);
    twin.expect_equal(kExact);
  }
}

// Changed options may need state that was not needed before.
TEST(OptimizerSchedulers, MayBeginWithMomentumLater) {
  for (const Strategy& strategy : strategies()) {
    SgdTwin twin(strategy, SGDOptions(0.1));
    for (uint64_t step = 0; step < 6; ++step) {
      if (step == 3) {
        const auto begin = [](torch::optim::Optimizer& optimizer) {
          static_cast<SGDOptions&>(optimizer.param_groups()[0].options()).momentum(0.9);
        };
        begin(twin.optimizer);
        begin(twin.reference);
      }
      twin.step(step);
      twin.expect_equal(kExact);
    }
  }
}

// ---- dtypes ------------------------------------------------------------------------------------

// A master copy in float32, and parameters that are its rounded values.
TEST(OptimizerDtypes, ParametersOf16BitsAreRoundedFromFloat32) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Strategy& strategy : strategies()) {
      if (dtype == at::kHalf) continue;  // LibTorch 1.13 has no linear layer of float16 on CPUs
      auto model = replicate<TwoLayersImpl>(strategy);
      model.to(dtype);
      DistributedOptimizer<SGD> optimizer(model, SGDOptions(0.003).momentum(0.9));
      std::vector<at::Tensor> masters;
      for (const at::Tensor& each : model.primary().parameters()) {
        masters.push_back(each.detach().to(at::kFloat).clone());
      }
      SGD reference(masters, SGDOptions(0.003).momentum(0.9));
      const int n = strategy.num_replicas_in_sync();
      for (uint64_t step = 0; step < 20; ++step) {
        const Batch x = make_batch(n, step, dtype);
        strategy.run([&] { optimizer.minimize(average_loss(model->forward(x[my_id()]))); });
        // It uses the replicas' gradient, so that only the update is compared.
        const auto parameters = model.primary().parameters();
        for (size_t i = 0; i < masters.size(); ++i) {
          masters[i].mutable_grad() = parameters[i].grad().to(at::kFloat);
        }
        reference.step();
        model.for_each([&](TwoLayersImpl& copy) {
          const auto mine = copy.parameters();
          for (size_t i = 0; i < mine.size(); ++i) {
            EXPECT_TRUE(test::bit_equal(mine[i], masters[i].to(dtype))) << i << " step " << step;
          }
        });
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// A module whose operations LibTorch has for float16 on CPUs.
struct ScaleImpl : torch::nn::Module {
  ScaleImpl() {
    weight = register_parameter("weight", torch::linspace(0.1, 2, 40));
    bias = register_parameter("bias", torch::zeros({40}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return (x.to(at::kFloat) * weight.to(at::kFloat) + bias.to(at::kFloat)).pow(2).sum(1);
  }
  at::Tensor weight, bias;
};

TEST(OptimizerDtypes, SmallUpdatesOfFloat16AddUpInTheMasterCopy) {
  for (const Strategy& strategy : strategies()) {
    const int n = strategy.num_replicas_in_sync();
    auto model = replicate<ScaleImpl>(strategy);
    model.to(at::kHalf);
    DistributedOptimizer<Adam> optimizer(model, AdamOptions(1e-4));
    ScaleImpl plain;
    copy_values(model.primary(), plain);
    Adam reference(plain.parameters(), AdamOptions(1e-4));
    const at::Tensor before = model.primary().weight.detach().clone();
    for (uint64_t step = 0; step < 30; ++step) {
      const Batch x = make_batch(n, step % 2, at::kFloat, 40);
      strategy.run([&] { optimizer.minimize(average_loss(model->forward(x[my_id()]))); });
      reference.zero_grad();
      plain.forward(at::cat(x)).mean().backward();
      reference.step();
    }
    // 1e-4 is less than half a unit in the last place of numbers from 1 on.
    EXPECT_FALSE(at::equal(model.primary().weight.slice(0, 20), before.slice(0, 20)));
    model.for_each([&](ScaleImpl& copy) {
      EXPECT_TRUE(near(copy.weight, plain.weight, 1e-3));
      EXPECT_TRUE(near(copy.bias, plain.bias, 5e-2));
    });
  }
}

TEST(OptimizerDtypes, KeepWhatAProgramWritesIntoParametersOf16Bits) {
  const Strategy strategy = mirrored(2);
  auto model = replicate<ScaleImpl>(strategy);
  model.to(at::kBFloat16);
  DistributedOptimizer<SGD> optimizer(model, SGDOptions(1e-6));
  const Batch x = make_batch(2, 0, at::kFloat, 40);
  const auto train = [&] {
    strategy.run([&] { optimizer.minimize(average_loss(model->forward(x[my_id()]))); });
  };
  train();
  model.for_each([](ScaleImpl& copy) {
    const torch::NoGradGuard no_grad;
    copy.weight.fill_(3);
  });
  train();
  EXPECT_TRUE(near(model.primary().weight, at::full({40}, 3.0), 1e-2));
}

TEST(OptimizerDtypes, GradientsMayTravelIn16Bits) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool fused : {true, false}) {
      for (const Strategy& strategy : strategies()) {
        Twin<TwoLayersImpl, SGD, SGDOptions> twin(strategy, SGDOptions(0.1).momentum(0.9),
                                                  {.communication_dtype = dtype, .fused = fused},
                                                  at::kFloat);
        for (uint64_t step = 0; step < 4; ++step) {
          const Batch x = make_batch(twin.n(), step, at::kFloat);
          twin.step(x);
          twin.model.for_each([&](TwoLayersImpl& copy) {
            for (const at::Tensor& each : copy.parameters()) {
              EXPECT_EQ(each.scalar_type(), at::kFloat);
              EXPECT_TRUE(at::equal(each.grad(), each.grad().to(dtype).to(at::kFloat)));
            }
          });
        }
        twin.expect_equal(dtype == at::kHalf ? 1e-2 : 5e-2);
        EXPECT_FALSE(near(twin.model.primary().first->weight, twin.plain->first->weight, 1e-7))
            << "the rounding can be seen";
      }
    }
  }
}

// Buffers of several dtypes, with slots that alternate between them.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    for (int i = 0; i < 6; ++i) {
      const at::ScalarType dtype = i % 2 == 0 ? at::kDouble : at::kFloat;
      weights.push_back(
          register_parameter("weight" + std::to_string(i), torch::linspace(-1 - i, 1, 5, dtype)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor out = x;
    for (const at::Tensor& each : weights) out = torch::sin(out * each.to(at::kDouble));
    return out.pow(2).sum(1);
  }
  std::vector<at::Tensor> weights;
};

TEST(OptimizerDtypes, MayDifferBetweenParameters) {
  for (const Strategy& strategy : strategies()) {
    for (const bool convert : {false, true}) {
      DistributedOptimizerOptions options{.clip_norm = 0.5, .bytes_per_bucket = 64};
      if (convert) options.communication_dtype = at::kDouble;
      auto model = replicate<MixedImpl>(strategy);
      DistributedOptimizer<SGD> optimizer(model, SGDOptions(0.1).momentum(0.9), options);
      MixedImpl plain;
      SGD reference(plain.parameters(), SGDOptions(0.1).momentum(0.9));
      for (uint64_t step = 0; step < 4; ++step) {
        const Batch x = make_batch(strategy.num_replicas_in_sync(), step);
        strategy.run([&] { optimizer.minimize(average_loss(model->forward(x[my_id()]))); });
        reference.zero_grad();
        plain.forward(at::cat(x)).mean().backward();
        double squares = 0;
        for (const at::Tensor& each : plain.weights) {
          squares += each.grad().to(at::kDouble).pow(2).sum().item<double>();
        }
        for (const at::Tensor& each : plain.weights) {
          each.grad().mul_(std::min(1.0, 0.5 / std::sqrt(squares)));
        }
        reference.step();
      }
      model.for_each([&](MixedImpl& copy) {
        for (size_t i = 0; i < plain.weights.size(); ++i) {
          EXPECT_EQ(copy.weights[i].scalar_type(), plain.weights[i].scalar_type());
          EXPECT_TRUE(near(copy.weights[i], plain.weights[i], 1e-5)) << i;
        }
      });
    }
  }
}

// ---- clipping and numbers that are not finite --------------------------------------------------

TEST(OptimizerClipping, IsByTheNormOfAllParameters) {
  for (const Strategy& strategy : strategies()) {
    for (const bool fused : {true, false}) {
      for (const double most : {0.05, 1e6}) {
        SgdTwin twin(strategy, SGDOptions(0.1).momentum(0.9),
                     {.clip_norm = most, .bytes_per_bucket = 64, .fused = fused});
        for (uint64_t step = 0; step < 4; ++step) {
          const Batch x = make_batch(twin.n(), step);
          twin.plain_backward(x);
          // clip_grad_norm_ would add 1e-6 to the norm.
          double squares = 0;
          for (const at::Tensor& each : twin.plain->parameters()) {
            squares += each.grad().pow(2).sum().item<double>();
          }
          const double norm = std::sqrt(squares);
          for (const at::Tensor& each : twin.plain->parameters()) {
            each.grad().mul_(std::min(1.0, most / norm));
          }
          twin.reference.step();
          twin.strategy.run([&] {
            twin.optimizer.zero_grad();
            average_loss(twin.model->forward(x[my_id()])).backward();
            EXPECT_NEAR(twin.optimizer.step().norm, norm, 1e-10 * norm);
          });
        }
        twin.expect_equal(kExact, false);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(OptimizerClipping, HoldsInTheStepAfterAnotherDtype) {
  SgdTwin twin(mirrored(2), SGDOptions(0.1), {.clip_norm = 0.05}, at::kFloat);
  twin.distributed_step(make_batch(2, 0, at::kFloat));
  twin.model.to(at::kDouble);
  const Batch x = make_batch(2, 1);
  twin.strategy.run([&] {
    twin.optimizer.zero_grad();
    average_loss(twin.model->forward(x[my_id()])).backward();
    EXPECT_GT(twin.optimizer.step().norm, 0.05);
  });
}

class NonFiniteGradients : public testing::TestWithParam<bool> {
 protected:
  static Strategy strategy() { return GetParam() ? by_one_device(4) : mirrored(4); }

  // A step whose gradient is not finite on one replica only.
  static void bad_step(SgdTwin& twin, double number, std::vector<StepResult>& results) {
    Batch x = make_batch(4, 0);
    x[2].slice(0, 0, 1).fill_(number);
    twin.strategy.run([&] {
      twin.optimizer.zero_grad();
      average_loss(twin.model->forward(x[my_id()])).backward();
      results[my_id()] = twin.optimizer.step();
    });
  }
};

TEST_P(NonFiniteGradients, StopAllReplicasAtTheSameStep) {
  for (const double number : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    SgdTwin twin(strategy(), SGDOptions(0.1).momentum(0.9), {.non_finite = NonFinite::kStop});
    twin.step(0);
    const std::string before = test::parameter_bytes(twin.model.primary());
    std::vector<StepResult> results(4);
    EXPECT_TUTTI_ERROR(bad_step(twin, number, results), ErrorCode::kDataLoss, "not finite",
                       "in step 2", "first.weight", "No parameter has changed");
    twin.model.for_each(
        [&](const TwoLayersImpl& copy) { EXPECT_TRUE(test::parameter_bytes(copy) == before); });
    for (uint64_t step = 1; step < 4; ++step) twin.step(step);
    twin.expect_equal(kExact);
  }
}

TEST_P(NonFiniteGradients, MayBeCaughtInsideTheReplicas) {
  for (const int accumulate : {1, 2}) {
    SgdTwin twin(strategy(), SGDOptions(0.1).momentum(0.9),
                 {.accumulate = accumulate, .non_finite = NonFinite::kStop});
    std::atomic<int> stopped{0};
    for (uint64_t step = 0; step < 4; ++step) {
      Batch x = make_batch(4, step == 1 ? 0 : step);
      Batch good = x;
      if (step == 1) x[2].slice(0, 0, 1).fill_(std::nan(""));
      twin.strategy.run([&] {
        twin.optimizer.zero_grad();
        for (int b = 0; b < accumulate; ++b) {
          average_loss(twin.model->forward(x[my_id()])).div(accumulate).backward();
          try {
            twin.optimizer.step();
          } catch (const Error&) {
            ++stopped;
          }
        }
      });
      if (step != 1) twin.plain_step(good);
    }
    EXPECT_EQ(stopped, 4);
    twin.expect_equal(kExact);
  }
}

TEST_P(NonFiniteGradients, SkipTheStepOnAllReplicas) {
  for (const double number : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    SgdTwin twin(strategy(), SGDOptions(0.1).momentum(0.9), {.non_finite = NonFinite::kSkip});
    for (uint64_t step = 0; step < 4; ++step) {
      std::vector<StepResult> results(4);
      bad_step(twin, number, results);
      for (const StepResult& each : results) {
        EXPECT_FALSE(each.updated);
        EXPECT_TRUE(each.non_finite);
      }
      twin.step(step);
      twin.expect_equal(kExact);
      if (HasFailure()) return;
    }
  }
}

TEST_P(NonFiniteGradients, AreUsedAsTheyAreUnlessAsked) {
  SgdTwin twin(strategy(), SGDOptions(0.1));
  std::vector<StepResult> results(4);
  bad_step(twin, std::nan(""), results);
  EXPECT_TRUE(results[0].updated);
  EXPECT_TRUE(twin.model.primary().first->weight.isnan().any().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Reducers, NonFiniteGradients, testing::Bool(), [](const auto& each) {
  return each.param ? "ReductionToOneDevice" : "HostAllReduce";
});

// ---- replicas that drift apart -----------------------------------------------------------------

void flip_a_bit(at::Tensor& parameter) { *static_cast<uint8_t*>(parameter.data_ptr()) ^= 1; }

TEST(OptimizerCheck, FindsABitInTheSameStep) {
  for (const char* name : {"first.weight", "second.bias"}) {
    SgdTwin twin(mirrored(3), SGDOptions(0.1), {.check_every = 1});
    for (uint64_t step = 0; step < 3; ++step) twin.step(step);
    at::Tensor bad = twin.model.parameter(name)[2];
    flip_a_bit(bad);
    EXPECT_TUTTI_ERROR(twin.distributed_step(make_batch(3, 5)), ErrorCode::kDataLoss, name,
                       "replica 2", "in step 4");
    twin.model.copy_from_primary();
    copy_values(twin.model.primary(), *twin.plain);
    for (uint64_t step = 3; step < 6; ++step) twin.step(step);
    twin.expect_equal(kExact);
  }
}

// Parameters that the optimizer does not write stay different until they are detected.
TEST(OptimizerCheck, FindsABitWithinTheStepsItPromises) {
  const int every = 7;
  for (const char* name : {"first.weight", "first.bias", "second.weight", "second.bias"}) {
    const Strategy strategy = mirrored(3);
    auto model = replicate<TwoLayersImpl>(strategy);
    const std::string trained = std::string(name) == "first.bias" ? "second.bias" : "first.bias";
    DistributedOptimizer<SGD> optimizer(model, SgdGroups{{{trained}, SGDOptions(0.1)}},
                                        {.check_every = every});
    const bool is_trained = trained == name;
    ASSERT_FALSE(is_trained);
    at::Tensor bad = model.parameter(name)[1];
    flip_a_bit(bad);
    int steps = 0;
    try {
      for (; steps < 3 * every; ++steps) {
        const Batch x = make_batch(3, 1, at::kFloat);
        strategy.run([&] { optimizer.minimize(average_loss(model->forward(x[my_id()]))); });
      }
      ADD_FAILURE() << name << " was not found";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_LT(steps, every);
    }
  }
}

TEST(OptimizerCheck, FindsATrainedParameterUnlessItIsEqualAgain) {
  SgdTwin twin(mirrored(3), SGDOptions(0.1), {.check_every = 5});
  twin.step(0);
  at::Tensor bad = twin.model.parameter("first.weight")[2];
  flip_a_bit(bad);
  try {
    for (uint64_t step = 1; step < 6; ++step) twin.distributed_step(make_batch(3, step));
    const std::string first = test::parameter_bytes(twin.model.primary());
    twin.model.for_each(
        [&](const TwoLayersImpl& copy) { EXPECT_TRUE(test::parameter_bytes(copy) == first); });
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("first.weight"), std::string::npos) << error.what();
  }
}

TEST(OptimizerCheck, FindsNothingInEqualReplicas) {
  struct OneImpl : torch::nn::Module {
    OneImpl() { weight = register_parameter("weight", torch::ones({1})); }
    at::Tensor weight;
  };
  // Small steps on more replicas than cores: some are a step ahead of others.
  const Strategy strategy = mirrored(6);
  auto model = replicate<OneImpl>(strategy);
  DistributedOptimizer<SGD> optimizer(model, SGDOptions(1e-3), {.check_every = 1});
  strategy.run([&] {
    for (int step = 0; step < 500; ++step) optimizer.minimize((model->weight * 2).sum());
  });
  EXPECT_TRUE(near(model.primary().weight, at::ones({1}) * (1 - 500 * 12e-3), 1e-4));
}

// ---- sizes -------------------------------------------------------------------------------------

// A gradient of this many elements is not copied into its bucket.
struct LargeImpl : torch::nn::Module {
  LargeImpl() {
    table = register_parameter("table", torch::linspace(-1, 1, 600 * 700).view({600, 700}));
    small = register_parameter("small", torch::ones({700}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return (torch::tanh(x.matmul(table)) * small).pow(2).sum(1);
  }
  at::Tensor table, small;
};

TEST(OptimizerSizes, LargeParametersEqualOneDevice) {
  for (const Strategy& strategy : strategies()) {
    const int n = strategy.num_replicas_in_sync();
    for (const bool fused : {true, false}) {
      Twin<LargeImpl, SGD, SGDOptions> twin(strategy, SGDOptions(0.01).momentum(0.9),
                                            {.fused = fused});
      for (uint64_t step = 0; step < 3; ++step) {
        const Batch x = make_batch(n, step + 1, at::kDouble, 600);
        twin.strategy.run([&] {
          if (step == 1) {
            twin.model->zero_grad();  // in place: the gradient is in the bucket
          } else {
            twin.optimizer.zero_grad();
          }
          const at::Tensor part = x[my_id()];
          if (step == 2) {
            const auto alone = twin.optimizer.no_sync();
            average_loss(twin.model->forward(part)).mul(0.5).backward();
          }
          average_loss(twin.model->forward(part)).mul(step == 2 ? 0.5 : 1).backward();
          twin.optimizer.step();
        });
        twin.plain_step(x);
        twin.expect_equal(kExact);
      }
    }
  }
}

// ---- memory ------------------------------------------------------------------------------------

std::set<const void*> storages(const Replicated<LargeImpl>& model) {
  std::set<const void*> all;
  model.for_each([&](const LargeImpl& copy) {
    for (const at::Tensor& each : copy.parameters()) all.insert(each.data_ptr());
  });
  return all;
}

TEST(OptimizerMemory, CentralStorageHasOneCopyOfParametersAndState) {
  constexpr size_t kElements = 600 * 700 + 700;
  constexpr size_t kPadding = 2 * 64 * sizeof(float);
  for (const int replicas : {1, 2, 4}) {
    for (const bool shared : {true, false}) {
      const Strategy strategy = shared ? central(replicas) : mirrored(replicas);
      const size_t copies = shared ? 1 : static_cast<size_t>(replicas);
      auto model = replicate<LargeImpl>(strategy);
      EXPECT_EQ(storages(model).size(), 2 * copies) << "before there is an optimizer";
      DistributedOptimizer<Adam> optimizer(model, AdamOptions(0.01));
      for (uint64_t step = 0; step < 2; ++step) {
        const Batch x = make_batch(replicas, step, at::kFloat, 600);
        strategy.run([&] { optimizer.minimize(average_loss(model->forward(x[my_id()]))); });
      }
      EXPECT_EQ(storages(model).size(), 2 * copies);
      EXPECT_GE(optimizer.parameter_bytes(), copies * kElements * sizeof(float));
      EXPECT_LE(optimizer.parameter_bytes(), copies * (kElements * sizeof(float) + kPadding));
      // Both moments are stored once per process.
      EXPECT_GE(optimizer.state_bytes(), 2 * kElements * sizeof(float));
      EXPECT_LE(optimizer.state_bytes(), 2 * (kElements * sizeof(float) + kPadding));
      // Replicas have separate leaves, so that gradients stay apart.
      std::set<const void*> leaves;
      model.for_each(
          [&](const LargeImpl& copy) { leaves.insert(copy.table.unsafeGetTensorImpl()); });
      EXPECT_EQ(leaves.size(), static_cast<size_t>(replicas));
    }
  }
}

// LibTorch 1.13 knows the states by the printed address of their parameters, 2.x by the address.
template <class States>
const auto& state_of(const States& states, const at::Tensor& parameter) {
  if constexpr (std::is_same_v<typename States::key_type, std::string>) {
    std::ostringstream address;
    address << parameter.unsafeGetTensorImpl();
    return states.at(address.str());
  } else {
    return states.at(parameter.unsafeGetTensorImpl());
  }
}

TEST(OptimizerMemory, StatesAreThoseOfThePlainOptimizer) {
  const Strategy strategy = mirrored(2);
  torch::manual_seed(3);
  auto model = replicate<torch::nn::LinearImpl>(strategy, 5, 3);
  model.to(at::kDouble);
  torch::nn::Linear plain(5, 3);
  plain->to(at::kDouble);
  {
    const torch::NoGradGuard no_grad;
    plain->weight.copy_(model.primary().weight);
    plain->bias.copy_(model.primary().bias);
  }
  DistributedOptimizer<Adam> optimizer(model, AdamOptions(0.01));
  Adam plain_optimizer(plain->parameters(), AdamOptions(0.01));
  EXPECT_TRUE(optimizer.states_of("weight").empty()) << "before the first update";
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = torch::randn({8, 5}, at::kDouble);
    strategy.run([&] {
      const at::Tensor part = x.narrow(0, 4 * my_id(), 4);
      optimizer.minimize(average_loss(model->forward(part).square().sum(1)));
    });
    plain_optimizer.zero_grad();
    plain->forward(x).square().sum(1).mean().backward();
    plain_optimizer.step();
  }
  for (const auto& each : plain->named_parameters()) {
    const auto& expected = static_cast<const torch::optim::AdamParamState&>(
        *state_of(plain_optimizer.state(), each.value()));
    const std::vector<at::Tensor> states = optimizer.states_of(each.key());
    ASSERT_EQ(states.size(), 2U) << each.key();
    EXPECT_TRUE(at::allclose(states[0], expected.exp_avg(), 1e-12, 1e-15)) << each.key();
    EXPECT_TRUE(at::allclose(states[1], expected.exp_avg_sq(), 1e-12, 1e-15)) << each.key();
    EXPECT_EQ(states[0].sizes(), each.value().sizes());
  }
  EXPECT_TUTTI_ERROR(optimizer.states_of("wait"), ErrorCode::kNotFound, "wait");
}

TEST(OptimizerOptions, BracesStandForOptionsAndForGroups) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto model = replicate<torch::nn::LinearImpl>(strategy, 2, 1);
  {
    DistributedOptimizer<SGD> by_rate(model, {0.25});
    EXPECT_EQ(by_rate.param_groups()[0].options().get_lr(), 0.25);
  }
  DistributedOptimizer<SGD> by_groups(model, {{{"weight"}, SGDOptions(0.5)}, {{"bias"}, 0.125}});
  ASSERT_EQ(by_groups.param_groups().size(), 2U);
  EXPECT_EQ(by_groups.param_groups()[1].options().get_lr(), 0.125);
}

}  // namespace tutti::optimizer_options_test
