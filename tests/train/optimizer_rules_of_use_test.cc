// SPDX-License-Identifier: Apache-2.0
//
// In which order a program may call an optimizer, LibTorch and a strategy; which errors it gets for
// the wrong order; and that everything allowed trains exactly as plain LibTorch does.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
#include "tutti/train/loss.h"
#include "tutti/train/optimizer/distributed_optimizer.h"

#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"
#include "tests/train/train_twins.h"

namespace tutti::optimizer_rules_of_use_test {

using test::Batch;
using test::cpus;
using test::LogCapture;
using test::make_batch;
using test::my_id;
using test::near;
using test::random_tensor;
using test::TrainCase;
using test::Twin;
using test::TwoLayersImpl;

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr auto kPrecondition = ErrorCode::kFailedPrecondition;
constexpr double kExact = 1e-12;

const SGDOptions kSgd = SGDOptions(0.1).momentum(0.9).weight_decay(0.01);

class OptimizerRulesOfUse : public testing::TestWithParam<TrainCase> {
 protected:
  Strategy strategy() const { return GetParam().make(); }
  int n() const { return GetParam().replicas; }

  using SgdTwin = Twin<TwoLayersImpl, SGD, SGDOptions>;
};

using SgdTwin = Twin<TwoLayersImpl, SGD, SGDOptions>;

// ---- what is an error --------------------------------------------------------------------------

TEST_P(OptimizerRulesOfUse, ReportsASecondBackward) {
  SgdTwin twin(strategy(), kSgd);
  twin.step(0);
  const Batch x = make_batch(n(), 0);  // rows on every replica
  EXPECT_TUTTI_ERROR(twin.strategy.run([&] {
    twin.optimizer.zero_grad();
    average_loss(twin.model->forward(x[my_id()])).backward();
    average_loss(twin.model->forward(x[my_id()])).backward();
    twin.optimizer.step();
  }),
                     kPrecondition, "a second time before step()", "no_sync()", "second.");
  for (uint64_t step = 1; step < 4; ++step) twin.step(step);
  twin.expect_equal(kExact);
}

TEST_P(OptimizerRulesOfUse, ReportsAMissingZeroGrad) {
  for (const bool no_sync : {false, true}) {
    SgdTwin twin(strategy(), kSgd);
    twin.step(0);
    EXPECT_TUTTI_ERROR(twin.strategy.run([&] {
      auto alone = no_sync ? twin.optimizer.no_sync() : nullptr;
      average_loss(twin.model->forward(make_batch(n(), 0)[my_id()])).backward();
      alone = nullptr;
      twin.optimizer.step();
    }),
                       kPrecondition, "Call zero_grad() before backward");
    twin.step(1);
    twin.expect_equal(kExact);
  }
}

TEST_P(OptimizerRulesOfUse, ReportsAMissingZeroGradAfterChangedGradientsToo) {
  SgdTwin twin(strategy(), kSgd);
  const Batch x = make_batch(n(), 0);
  EXPECT_TUTTI_ERROR(twin.strategy.run([&] {
    for (int step = 0; step < 2; ++step) {
      average_loss(twin.model->forward(x[my_id()])).backward();
      twin.optimizer.synchronize();
      for (at::Tensor& each : twin.model->parameters()) each.mutable_grad().mul_(0.5);
      twin.optimizer.step();
    }
  }),
                     kPrecondition, "Call zero_grad() before backward");
}

TEST_P(OptimizerRulesOfUse, ReportsTwoStepsAfterOneBackwardOrDoesAsLibTorch) {
  SgdTwin twin(strategy(), kSgd);
  twin.step(0);
  try {
    twin.strategy.run([&] { twin.optimizer.step(); });
    twin.reference.step();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), kPrecondition) << error.what();
  }
  twin.step(1);
  twin.expect_equal(kExact);
}

TEST_P(OptimizerRulesOfUse, ReportsAStepOnSomeReplicasOnly) {
  if (n() == 1) return;
  SgdTwin twin(strategy(), kSgd);
  const Batch x = make_batch(n(), 0);
  EXPECT_THROW(twin.strategy.run([&] {
    twin.optimizer.zero_grad();
    average_loss(twin.model->forward(x[my_id()])).backward();
    if (my_id() != 1) twin.optimizer.step();
  }),
               Error);
  for (uint64_t step = 1; step < 4; ++step) twin.step(step);
  twin.expect_equal(kExact);
}

TEST(OptimizerRulesOfUse, BelongsInRunOfItsStrategy) {
  const Strategy strategy = MirroredStrategy(cpus(2));
  auto model = replicate<TwoLayersImpl>(strategy);
  DistributedOptimizer<SGD> optimizer(model, kSgd);
  EXPECT_TUTTI_ERROR(optimizer.step(), kPrecondition, "DistributedOptimizer::step",
                     "outside of Strategy::run");
  EXPECT_TUTTI_ERROR(optimizer.zero_grad(), kPrecondition, "DistributedOptimizer::zero_grad");
  EXPECT_TUTTI_ERROR(optimizer.synchronize(), kPrecondition, "DistributedOptimizer::synchronize");
  EXPECT_TUTTI_ERROR(optimizer.no_sync(), kPrecondition, "DistributedOptimizer::no_sync");
  const Strategy other = MirroredStrategy(cpus(2));
  EXPECT_TUTTI_ERROR(other.run([&] { optimizer.step(); }), kPrecondition, "another object");
  EXPECT_TUTTI_ERROR(strategy.run([&] { DistributedOptimizer<SGD> inside(model, kSgd); }),
                     kPrecondition, "outside of run()");
}

TEST(OptimizerRulesOfUse, NeedsParametersAndWarnsIfNoneCanBeTrained) {
  struct EmptyImpl : torch::nn::Module {};
  const MirroredStrategy strategy(cpus(2));
  auto empty = replicate<EmptyImpl>(strategy);
  EXPECT_TUTTI_ERROR(DistributedOptimizer<SGD>(empty, kSgd), ErrorCode::kInvalidArgument,
                     "the model has no parameters", "register_parameter");
  auto model = replicate<torch::nn::LinearImpl>(strategy, torch::nn::LinearOptions(3, 2));
  using Groups = std::vector<ParameterGroup<SGDOptions>>;
  EXPECT_TUTTI_ERROR(DistributedOptimizer<SGD>(model, Groups{{{}, kSgd}}),
                     ErrorCode::kInvalidArgument, "list none of the 2 parameters of the model");
  model.for_each([](torch::nn::LinearImpl& copy) {
    for (at::Tensor& each : copy.parameters()) each.requires_grad_(false);
  });
  const test::LogCapture log;
  const DistributedOptimizer<SGD> optimizer(model, kSgd);
  EXPECT_EQ(log.count("requires_grad() is false for all 2 parameters"), 1) << log.text();
}

TEST(OptimizerRulesOfUse, RefusesLearningRatesThatReplicasChangedInsideRun) {
  const MirroredStrategy strategy(cpus(2), {.runner = {.concurrent_replicas = 1}});
  auto model = replicate<torch::nn::LinearImpl>(strategy, torch::nn::LinearOptions(3, 2));
  DistributedOptimizer<SGD> optimizer(model, SGDOptions(0.5));
  const auto step = [&](bool changes) {
    strategy.run([&] {
      optimizer.zero_grad();
      average_loss(model->forward(torch::ones({2, 3})).sum(1)).backward();
      auto& options = static_cast<SGDOptions&>(optimizer.param_groups()[0].options());
      if (changes) options.lr(options.lr() / 2);
      optimizer.step();
    });
  };
  step(false);
  EXPECT_TUTTI_ERROR(step(true), ErrorCode::kInvalidArgument, "DistributedOptimizer::step",
                     "learning rate 0.25", "learning rate 0.125",
                     "options may change between runs only");
}

TEST(OptimizerRulesOfUse, RefusesALossThatWasAveragedByTheReplica) {
  for (const bool accumulate : {false, true}) {
    SgdTwin twin(MirroredStrategy(cpus(2)), kSgd, {.accumulate = accumulate ? 2 : 1});
    const Batch x = make_batch(2, 0);
    EXPECT_TUTTI_ERROR(twin.strategy.run([&] {
      twin.optimizer.average_loss(twin.model->forward(x[my_id()]).mean());
    }),
                       ErrorCode::kInvalidArgument, "no dimensions");
    EXPECT_TUTTI_ERROR(twin.strategy.run([&] {
      twin.optimizer.average_loss(twin.model->forward(x[my_id()]), at::ones({77}));
    }),
                       ErrorCode::kInvalidArgument, "weights");
  }
}

// ---- gradients that LibTorch clears or replaces ------------------------------------------------

enum class Clear { kInPlace, kToNone, kOptimizer };

TEST_P(OptimizerRulesOfUse, AcceptsZeroGradOfLibTorch) {
  for (const bool convert : {false, true}) {
    for (const Clear clear : {Clear::kInPlace, Clear::kToNone, Clear::kOptimizer}) {
      DistributedOptimizerOptions options;
      if (convert) options.communication_dtype = at::kFloat;
      SgdTwin twin(strategy(), kSgd, options);
      for (uint64_t step = 0; step < 5; ++step) {
        const Batch x = make_batch(n(), step);
        twin.strategy.run([&] {
          if (clear == Clear::kOptimizer) {
            twin.optimizer.zero_grad();
          } else {
            twin.model->zero_grad(clear == Clear::kToNone);
          }
          average_loss(twin.model->forward(x[my_id()])).backward();
          twin.optimizer.step();
        });
        twin.plain_step(x);
      }
      twin.expect_equal(convert ? 1e-5 : kExact);
    }
  }
}

// The gradient of a tied weight is accumulated in place, so it is not a fresh tensor.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    in = register_module("in", torch::nn::Linear(5, 5));
    out = register_module("out", torch::nn::Linear(5, 5));
    out->weight = out->register_parameter("tied", in->weight);
    frozen = register_parameter("frozen", torch::ones({5}), false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = torch::tanh(torch::linear(x, in->weight, in->bias));
    return (torch::linear(hidden, in->weight) * frozen + out->bias).pow(2).sum(1);
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  at::Tensor frozen;
};

struct SharedWeightImpl : torch::nn::Module {
  SharedWeightImpl() {
    weight = register_parameter("weight", torch::randn({5, 5}) * 0.3);
    bias = register_parameter("bias", torch::zeros({5}));
    frozen = register_parameter("frozen", torch::ones({5}) * 2, false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor once = torch::tanh(torch::linear(x, weight, bias));
    return (torch::linear(torch::tanh(torch::linear(once, weight)), weight) * frozen).pow(2).sum(1);
  }
  at::Tensor weight, bias, frozen;
};

TEST_P(OptimizerRulesOfUse, AcceptsWeightsUsedSeveralTimesAndFrozenOnes) {
  for (const bool convert : {false, true}) {
    for (const bool to_none : {false, true}) {
      DistributedOptimizerOptions options;
      if (convert) options.communication_dtype = at::kFloat;
      Twin<SharedWeightImpl, SGD, SGDOptions> twin(strategy(), kSgd, options);
      for (uint64_t step = 0; step < 5; ++step) {
        const Batch x = make_batch(n(), step);
        twin.strategy.run([&] {
          twin.model->zero_grad(to_none);
          average_loss(twin.model->forward(x[my_id()])).backward();
          twin.optimizer.step();
        });
        twin.plain_step(x);
      }
      twin.expect_equal(convert ? 1e-5 : kExact);
      EXPECT_FALSE(twin.model.primary().frozen.grad().defined());
    }
  }
}

TEST_P(OptimizerRulesOfUse, AcceptsWeightsRegisteredTwice) {
  const Strategy on = strategy();
  torch::manual_seed(1);
  auto model = replicate<TiedImpl>(on);
  model.to(at::kDouble);
  auto plain = std::make_shared<TiedImpl>();
  plain->to(at::kDouble);
  test::copy_values(model.primary(), *plain);
  DistributedOptimizer<SGD> optimizer(model, kSgd);
  SGD reference({plain->in->weight, plain->in->bias, plain->out->bias}, kSgd);
  for (uint64_t step = 0; step < 3; ++step) {
    const Batch x = make_batch(n(), step);
    on.run([&] { optimizer.minimize(average_loss(model->forward(x[my_id()]))); });
    reference.zero_grad();
    plain->forward(at::cat(x)).mean().backward();
    reference.step();
  }
  model.for_each([&](TiedImpl& copy) {
    EXPECT_TRUE(near(copy.in->weight, plain->in->weight, kExact));
    EXPECT_TRUE(copy.in->weight.is_same(copy.out->weight));
    EXPECT_TRUE(near(copy.out->bias, plain->out->bias, kExact));
  });
}

TEST_P(OptimizerRulesOfUse, AcceptsABackwardThatCreatesAGraph) {
  SgdTwin twin(strategy(), kSgd);
  for (uint64_t step = 0; step < 4; ++step) {
    const Batch x = make_batch(n(), step);
    twin.strategy.run([&] {
      twin.optimizer.zero_grad();
      average_loss(twin.model->forward(x[my_id()])).backward({}, true, step % 2 == 0);
      twin.optimizer.step();
    });
    twin.plain_step(x);
    twin.expect_equal(kExact);
  }
}

TEST_P(OptimizerRulesOfUse, AcceptsParametersLoadedBetweenSteps) {
  Twin<TwoLayersImpl, Adam, AdamOptions> twin(strategy(), AdamOptions(0.01));
  std::stringstream file;
  {
    auto other = std::make_shared<TwoLayersImpl>();
    other->to(at::kDouble);
    torch::save(other, file);
  }
  for (uint64_t step = 0; step < 6; ++step) {
    if (step == 3) {
      for (const auto& copy : twin.model.modules()->copies()) {
        std::stringstream again(file.str());
        torch::serialize::InputArchive archive;
        archive.load_from(again);
        copy->load(archive);
      }
      std::stringstream again(file.str());
      torch::load(twin.plain, again);
    }
    twin.step(step);
    twin.expect_equal(1e-11);
  }
}

// torch::optim keeps its momentum in float32 and cannot continue, so the options need no state.
TEST_P(OptimizerRulesOfUse, AcceptsAnotherDtypeInTheMiddleOfTraining) {
  SgdTwin twin(strategy(), SGDOptions(0.1), {}, at::kFloat);
  for (uint64_t step = 0; step < 3; ++step) twin.step(step);
  twin.expect_equal(1e-5);
  twin.model.to(at::kDouble);
  twin.plain->to(at::kDouble);
  test::copy_values(twin.model.primary(), *twin.plain);
  twin.dtype = at::kDouble;
  twin.plain->zero_grad(true);
  for (uint64_t step = 3; step < 6; ++step) {
    twin.step(step);
    twin.expect_equal(kExact);
    if (HasFailure()) return;
  }
}

// As above, but the momentum continues too.
TEST_P(OptimizerRulesOfUse, KeepsTheStateWhenTheDtypeChanges) {
  SgdTwin twin(strategy(), kSgd, {}, at::kFloat);
  SgdTwin other(strategy(), kSgd, {}, at::kFloat);
  for (uint64_t step = 0; step < 6; ++step) {
    if (step == 3) {
      twin.model.to(at::kDouble);
      twin.dtype = at::kDouble;
    }
    twin.distributed_step(make_batch(n(), step, twin.dtype));
    other.step(make_batch(n(), step, at::kFloat));
  }
  const auto want = other.plain->named_parameters();
  twin.model.for_each([&](TwoLayersImpl& copy) {
    for (const auto& each : copy.named_parameters()) {
      EXPECT_EQ(each.value().scalar_type(), at::kDouble);
      EXPECT_EQ(each.value().grad().scalar_type(), at::kDouble);
      EXPECT_TRUE(near(each.value(), want[each.key()], 1e-5)) << each.key();
    }
  });
}

TEST_P(OptimizerRulesOfUse, AcceptsAParameterFrozenLater) {
  SgdTwin twin(strategy(), SGDOptions(0.1));
  twin.step(0);
  const auto freeze = [](TwoLayersImpl& net) { net.first->weight.set_requires_grad(false); };
  twin.model.for_each([&](TwoLayersImpl& copy) { freeze(copy); });
  freeze(*twin.plain);
  twin.step(1);
  // The optimizer finds its parameters elsewhere and puts them back.
  twin.model.for_each([&](TwoLayersImpl& copy) {
    for (at::Tensor& each : copy.parameters()) each.set_data(each.detach().clone());
  });
  for (uint64_t step = 2; step < 5; ++step) twin.step(step);
  twin.expect_equal(kExact, false);
}

// ---- missing gradients -------------------------------------------------------------------------

TEST_P(OptimizerRulesOfUse, AcceptsAReplicaWithoutBackward) {
  SgdTwin twin(strategy(), kSgd);
  for (uint64_t step = 0; step < 6; ++step) {
    const Batch x = make_batch(n(), step);
    twin.strategy.run([&] {
      const at::Tensor& mine = x[my_id()];
      twin.optimizer.zero_grad();
      const at::Tensor loss = average_loss(twin.model->forward(mine));
      if (mine.size(0) > 0) loss.backward();
      twin.optimizer.step();
    });
    twin.plain_step(x);
  }
  twin.expect_equal(kExact);
}

struct EmptyParameterImpl : torch::nn::Module {
  EmptyParameterImpl() {
    weight = register_parameter("weight", torch::ones({5}));
    empty = register_parameter("empty", torch::ones({0, 3}));
    scale = register_parameter("scale", torch::ones({}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return (x * weight).sum(1).pow(2) * scale + empty.sum();
  }
  at::Tensor weight, empty, scale;
};

TEST_P(OptimizerRulesOfUse, AcceptsParametersWithoutElementsOrDimensions) {
  for (const int64_t bucket : {1, 1 << 20}) {
    Twin<EmptyParameterImpl, SGD, SGDOptions> twin(strategy(), kSgd, {.bytes_per_bucket = bucket});
    for (uint64_t step = 0; step < 3; ++step) twin.step(step);
    twin.expect_equal(kExact);
  }
}

TEST_P(OptimizerRulesOfUse, AcceptsAModelWithoutTrainableParameters) {
  const Strategy on = strategy();
  auto model = replicate<TwoLayersImpl>(on);
  model.for_each([](TwoLayersImpl& copy) {
    for (at::Tensor& each : copy.parameters()) each.set_requires_grad(false);
  });
  const at::Tensor before = model.primary().first->weight.clone();
  DistributedOptimizer<SGD> optimizer(model, kSgd);
  for (int step = 0; step < 20; ++step) {
    on.run([&] {
      optimizer.zero_grad();
      model->forward(at::ones({2, 5}));
      optimizer.step();
    });
  }
  EXPECT_TRUE(at::equal(model.primary().first->weight, before));
}

// ---- failures ----------------------------------------------------------------------------------

struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            bool fails) {
    context->saved_data["fails"] = fails;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (context->saved_data["fails"].toBool()) throw std::runtime_error("no gradient today");
    return {gradients[0], at::Tensor()};
  }
};

struct FragileImpl : torch::nn::Module {
  FragileImpl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = ThrowInBackward::apply(torch::tanh(first(x)), fails);
    return (second(hidden) - 0.5).pow(2).sum(1);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  bool fails = false;
};

enum class Fails { kInBackward, kBeforeStep, kBetweenBatches, kAfterStep };

// One replica fails in every other run, a different one each time.
void train_with_failures(const Strategy& strategy, Fails fails, int64_t bucket,
                         bool clear_by_module) {
  Twin<FragileImpl, SGD, SGDOptions> twin(strategy, kSgd, {.bytes_per_bucket = bucket});
  for (uint64_t step = 0; step < 6; ++step) {
    const Batch x = make_batch(twin.n(), step);
    const int bad = static_cast<int>(step) % twin.n();
    const auto fail = [&] {
      const bool me = my_id() == bad;
      twin.optimizer.zero_grad();
      twin.model->fails = me && fails == Fails::kInBackward;
      std::shared_ptr<void> alone;
      if (fails == Fails::kBetweenBatches) alone = twin.optimizer.no_sync();
      average_loss(twin.model->forward(x[my_id()])).backward();
      if (me && fails != Fails::kAfterStep) throw std::runtime_error("stop");
      alone.reset();
      if (fails != Fails::kInBackward) twin.optimizer.step();
      if (me) throw std::runtime_error("stop");
    };
    EXPECT_THROW(twin.strategy.run(fail), std::runtime_error);
    if (fails == Fails::kAfterStep) twin.plain_step(x);
    twin.model.for_each([](FragileImpl& copy) { copy.fails = false; });
    twin.strategy.run([&] {
      if (clear_by_module) {
        twin.model->zero_grad();
      } else {
        twin.optimizer.zero_grad();
      }
      average_loss(twin.model->forward(x[my_id()])).backward();
      twin.optimizer.step();
    });
    twin.plain_step(x);
    twin.expect_equal(kExact);
    if (testing::Test::HasFailure()) return;
  }
}

constexpr Fails kAllFails[] = {Fails::kInBackward, Fails::kBeforeStep, Fails::kBetweenBatches,
                               Fails::kAfterStep};

TEST_P(OptimizerRulesOfUse, GoesOnAfterAReplicaThatThrows) {
  for (const Fails fails : kAllFails) {
    for (const int64_t bucket : {64, 1 << 20}) {
      train_with_failures(strategy(), fails, bucket, false);
    }
  }
}

TEST_P(OptimizerRulesOfUse, GoesOnAfterAFailureWithZeroGradOfLibTorch) {
  for (const Fails fails : kAllFails) train_with_failures(strategy(), fails, 1 << 20, true);
}

// It derives from an optimizer with a fused rule, but has none itself.
class Moody : public SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (fails) throw std::runtime_error("not today");
    return SGD::step(closure);
  }
  bool fails = false;
};

TEST_P(OptimizerRulesOfUse, GoesOnAfterAnOptimizerThatThrows) {
  Twin<TwoLayersImpl, Moody, SGDOptions> twin(strategy(), kSgd);
  for (uint64_t step = 0; step < 4; ++step) {
    twin.optimizer.torch_optimizer().fails = true;
    EXPECT_THROW(twin.distributed_step(make_batch(n(), step + 1)), std::runtime_error);
    twin.optimizer.torch_optimizer().fails = false;
    twin.step(step);
    twin.expect_equal(kExact);
    if (HasFailure()) return;
  }
}

TEST_P(OptimizerRulesOfUse, StepWithoutAnyBackwardChangesNothing) {
  SgdTwin twin(strategy(), kSgd);
  twin.strategy.run([&] { twin.optimizer.step(); });
  twin.reference.step();
  twin.expect_equal(0);
  for (uint64_t step = 0; step < 3; ++step) twin.step(step);
  twin.expect_equal(kExact);
}

TEST_P(OptimizerRulesOfUse, ZeroGradDropsGradientsThatNoStepUsed) {
  SgdTwin twin(strategy(), kSgd);
  for (uint64_t step = 0; step < 5; ++step) {
    const Batch dropped = make_batch(n(), step + 7);
    twin.strategy.run([&] {
      twin.optimizer.zero_grad();
      average_loss(twin.model->forward(dropped[my_id()])).backward();
      if (step % 2 == 0) twin.optimizer.synchronize();
    });
    twin.step(step);
  }
  twin.expect_equal(kExact);
}

TEST_P(OptimizerRulesOfUse, AcceptsBackwardAndStepInDifferentRuns) {
  SgdTwin twin(strategy(), kSgd);
  for (uint64_t step = 0; step < 5; ++step) {
    const Batch x = make_batch(n(), step);
    twin.strategy.run([&] { twin.optimizer.zero_grad(); });
    twin.strategy.run([&] { average_loss(twin.model->forward(x[my_id()])).backward(); });
    twin.strategy.run([&] { twin.optimizer.step(); });
    twin.plain_step(x);
  }
  twin.expect_equal(kExact);
}

// ---- gradients before the step -----------------------------------------------------------------

enum class Change { kNone, kInPlace, kReplaced };

void change_gradients(const Strategy& strategy, Change change, bool convert) {
  for (const bool fused : {true, false}) {
    DistributedOptimizerOptions options{.fused = fused};
    if (convert) options.communication_dtype = at::kFloat;
    const double tolerance = convert ? 1e-5 : kExact;
    SgdTwin twin(strategy, kSgd, options);
    for (uint64_t step = 0; step < 4; ++step) {
      const Batch x = make_batch(twin.n(), step);
      twin.plain_backward(x);
      const auto want = twin.plain->named_parameters();
      twin.strategy.run([&] {
        twin.optimizer.zero_grad();
        average_loss(twin.model->forward(x[my_id()])).backward();
        twin.optimizer.synchronize();
        twin.optimizer.synchronize();  // nothing is left to do
        for (auto& each : twin.model->named_parameters()) {
          at::Tensor& gradient = each.value().mutable_grad();
          EXPECT_TRUE(near(gradient, want[each.key()].grad(), tolerance)) << each.key();
          if (change == Change::kInPlace) gradient.mul_(0.25);
          if (change == Change::kReplaced) gradient = gradient * 0.25;
        }
        twin.optimizer.step();
      });
      if (change != Change::kNone) {
        for (at::Tensor& each : twin.plain->parameters()) each.mutable_grad().mul_(0.25);
      }
      twin.reference.step();
      twin.expect_equal(tolerance);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_P(OptimizerRulesOfUse, GradientsMayBeReadAndChangedAfterSynchronize) {
  change_gradients(strategy(), Change::kNone, false);
  change_gradients(strategy(), Change::kNone, true);
  change_gradients(strategy(), Change::kInPlace, false);
}

TEST_P(OptimizerRulesOfUse, GradientsMayBeReplacedAfterSynchronize) {
  change_gradients(strategy(), Change::kReplaced, false);
}

TEST_P(OptimizerRulesOfUse, GradientsOfAnotherDtypeMayBeChangedAfterSynchronize) {
  change_gradients(strategy(), Change::kInPlace, true);
  change_gradients(strategy(), Change::kReplaced, true);
}

// Some replicas arrive at step() while others are still leaving synchronize().
TEST_P(OptimizerRulesOfUse, SynchronizesAndStepsAfterParametersWereMoved) {
  SgdTwin twin(strategy(), SGDOptions(0.01));
  for (uint64_t step = 0; step < 200; ++step) {
    twin.model.for_each([](TwoLayersImpl& copy) {
      for (at::Tensor& each : copy.parameters()) each.set_data(each.detach().clone());
    });
    const Batch x = make_batch(n(), step);
    twin.strategy.run([&] {
      twin.optimizer.zero_grad();
      average_loss(twin.model->forward(x[my_id()])).backward();
      twin.optimizer.synchronize();
      twin.optimizer.step();
    });
    twin.plain_step(x);
  }
  twin.expect_equal(1e-10);
}

// ---- several optimizers, several lives ---------------------------------------------------------

TEST_P(OptimizerRulesOfUse, AcceptsTwoModelsInOneStep) {
  using GTwin = Twin<SharedWeightImpl, SGD, SGDOptions>;
  SgdTwin critic(strategy(), kSgd);
  // One strategy for both.
  GTwin generator(critic.strategy, kSgd);
  const auto made = [](SharedWeightImpl& g, const at::Tensor& z) {
    return torch::linear(z, g.weight, g.bias) * g.frozen;
  };
  for (uint64_t step = 0; step < 4; ++step) {
    const Batch z = make_batch(n(), step);
    critic.strategy.run([&] {
      const at::Tensor& mine = z[my_id()];
      critic.optimizer.zero_grad();
      average_loss(critic.model->forward(mine) +
                   critic.model->forward(made(*generator.model, mine).detach()))
          .backward();
      critic.optimizer.step();
      generator.optimizer.zero_grad();
      critic.optimizer.zero_grad();  // the next backward goes through the critic
      average_loss(critic.model->forward(made(*generator.model, mine))).backward();
      generator.optimizer.step();
    });
    const at::Tensor all = at::cat(z);
    critic.reference.zero_grad();
    (critic.plain->forward(all) + critic.plain->forward(made(*generator.plain, all).detach()))
        .mean()
        .backward();
    critic.reference.step();
    generator.reference.zero_grad();
    critic.plain->forward(made(*generator.plain, all)).mean().backward();
    generator.reference.step();
    critic.expect_equal(kExact, false);
    generator.expect_equal(kExact, false);
  }
}

TEST_P(OptimizerRulesOfUse, AcceptsTwoOptimizersForPartsOfOneModel) {
  const Strategy on = strategy();
  torch::manual_seed(2);
  auto model = replicate<TwoLayersImpl>(on);
  model.to(at::kDouble);
  TwoLayersImpl plain;
  plain.to(at::kDouble);
  test::copy_values(model.primary(), plain);
  DistributedOptimizer<SGD> first(
      model, std::vector<ParameterGroup<SGDOptions>>{{{"first.weight", "first.bias"}, kSgd}});
  DistributedOptimizer<Adam> second(model,
                                    std::vector<ParameterGroup<AdamOptions>>{
                                        {{"second.weight", "second.bias"}, AdamOptions(0.01)}});
  SGD plain_first(plain.first->parameters(), kSgd);
  Adam plain_second(plain.second->parameters(), AdamOptions(0.01));
  for (uint64_t step = 0; step < 4; ++step) {
    const Batch x = make_batch(n(), step);
    on.run([&] {
      first.zero_grad();
      second.zero_grad();
      average_loss(model->forward(x[my_id()])).backward();
      first.step();
      second.step();
    });
    plain.zero_grad();
    plain.forward(at::cat(x)).mean().backward();
    plain_first.step();
    plain_second.step();
  }
  model.for_each([&](TwoLayersImpl& copy) {
    for (const auto& each : copy.named_parameters()) {
      EXPECT_TRUE(near(each.value(), plain.named_parameters()[each.key()], 1e-11)) << each.key();
    }
  });
}

TEST_P(OptimizerRulesOfUse, OptimizerAndModelMayDieInAnyOrder) {
  const Strategy on = strategy();
  auto model = std::make_optional(replicate<TwoLayersImpl>(on));
  using Optimizer = DistributedOptimizer<Adam>;
  auto optimizer = std::make_unique<Optimizer>(*model, AdamOptions(0.01));
  const Batch x = make_batch(n(), 0, at::kFloat);
  const auto train = [&] {
    on.run([&] { optimizer->minimize(average_loss((*model)->forward(x[my_id()]))); });
  };
  train();
  const std::string bytes = test::parameter_bytes(model->primary());
  optimizer.reset();
  EXPECT_EQ(test::parameter_bytes(model->primary()), bytes);
  // Without it backward is LibTorch's alone, and may run twice.
  on.run([&] {
    for (int i = 0; i < 2; ++i) (*model)->forward(x[my_id()]).sum().backward();
  });
  optimizer = std::make_unique<Optimizer>(*model, AdamOptions(0.01));
  train();
  EXPECT_NE(test::parameter_bytes(model->primary()), bytes);
  model.reset();
  optimizer.reset();
}

INSTANTIATE_TEST_SUITE_P(Strategies, OptimizerRulesOfUse,
                         testing::Values(TrainCase{false, 1}, TrainCase{false, 2},
                                         TrainCase{false, 4}, TrainCase{true, 1},
                                         TrainCase{true, 3}),
                         test::train_case_name);

}  // namespace tutti::optimizer_rules_of_use_test
