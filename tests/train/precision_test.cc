// SPDX-License-Identifier: Apache-2.0
//
// Loss scaling, autocast and sparse gradients.

#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/train/autocast.h"
#include "tutti/train/loss.h"
#include "tutti/train/optimizer/distributed_optimizer.h"
#include "tutti/train/optimizer/grad_scaler.h"

#include "tests/support/expect_error.h"

namespace tutti::precision_test {

std::vector<std::string> devices(int n) {
  std::vector<std::string> names;
  for (int i = 0; i < n; ++i) names.push_back(message("CPU:", i));
  return names;
}

int replica_id() { return get_replica_context()->replica_id_in_sync_group(); }

TEST(GradScaler, AllReplicasSkipTheSameStepAndHaveTheSameScale) {
  const MirroredStrategy strategy(devices(4));
  auto model = replicate<torch::nn::LinearImpl>(strategy, torch::nn::LinearOptions(3, 1));
  DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  GradScaler scaler(strategy, {.init_scale = 1024, .growth_interval = 3});
  std::vector<double> scales;
  for (int step = 0; step < 8; ++step) {
    const at::Tensor before = model.primary().weight.detach().clone();
    const auto results = strategy.run([&] {
      at::Tensor x = torch::ones({2, 3});
      if (step == 1 && replica_id() == 2) x[0][0] = INFINITY;
      const at::Tensor loss = average_loss(model->forward(x).square());
      optimizer.zero_grad();
      scaler.scale(loss).backward();
      const StepResult result = scaler.step(optimizer);
      scaler.update();
      return result.updated;
    });
    for (size_t r = 0; r < results.size(); ++r) EXPECT_EQ(results[r], step != 1);
    model.for_each(
        [&](torch::nn::LinearImpl& copy) { EXPECT_EQ(at::equal(copy.weight, before), step == 1); });
    scales.push_back(scaler.scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{1024, 512, 512, 512, 1024, 1024, 1024, 2048}));
}

TEST(GradScaler, GivesTheUpdateWithoutScaling) {
  const MirroredStrategy strategy(devices(2));
  const auto train = [&](bool scaled) {
    torch::manual_seed(3);
    auto model = replicate<torch::nn::LinearImpl>(strategy, torch::nn::LinearOptions(3, 2));
    DistributedOptimizer<torch::optim::Adam> optimizer(model, torch::optim::AdamOptions(0.1),
                                                       {.clip_norm = 0.5});
    GradScaler scaler(strategy, {.enabled = scaled});
    for (int step = 0; step < 5; ++step) {
      strategy.run([&] {
        const at::Tensor x = torch::full({2, 3}, 0.25F * static_cast<float>(replica_id() + step));
        const at::Tensor loss = average_loss(model->forward(x).square());
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
      });
    }
    return model.primary().weight.detach().clone();
  };
  EXPECT_TRUE(at::equal(train(true), train(false)));  // powers of two scale exactly
}

TEST(GradScaler, RefusesBadOptionsAndWrongPlaces) {
  const MirroredStrategy strategy(devices(2));
  EXPECT_TUTTI_ERROR(GradScaler(strategy, {.growth_factor = 1}), ErrorCode::kInvalidArgument,
                     "growth_factor");
  EXPECT_TUTTI_ERROR(GradScaler(strategy, {.init_scale = 0}), ErrorCode::kInvalidArgument,
                     "positive");
  GradScaler scaler(strategy);
  EXPECT_TUTTI_ERROR(scaler.update(), ErrorCode::kFailedPrecondition, "run()");
}

TEST(Autocast, ComputesInBfloat16OnEveryReplicaAndSeesUpdates) {
  const MirroredStrategy strategy(devices(2));
  auto model = replicate<torch::nn::LinearImpl>(strategy, torch::nn::LinearOptions(8, 4));
  DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(1.0));
  const Autocast outside;  // over several steps
  std::vector<at::Tensor> outputs;
  for (int step = 0; step < 2; ++step) {
    const auto results = strategy.run([&] {
      const at::Tensor y = model->forward(torch::ones({2, 8}));
      optimizer.minimize(average_loss(y.sum(1)));
      return y.detach();
    });
    EXPECT_EQ(results[1].scalar_type(), at::kBFloat16);
    outputs.push_back(results[1]);
  }
  EXPECT_FALSE(at::equal(outputs[0], outputs[1]));
  EXPECT_TUTTI_ERROR(Autocast(at::kHalf), ErrorCode::kInvalidArgument, "bfloat16");
}

TEST(Autocast, IsRefusedWhereItWouldEndTheProcess) {
  using internal::bfloat16_advice;
  EXPECT_EQ(bfloat16_advice(2, true, std::nullopt), "");
  EXPECT_EQ(bfloat16_advice(1, false, std::nullopt), "");
  for (const char* const limit : {"AVX512_CORE_BF16", "AVX2", "SSE41", "avx512_core_vnni"}) {
    EXPECT_EQ(bfloat16_advice(1, true, limit), "") << limit;
  }
  for (const std::optional<std::string>& limit :
       {std::optional<std::string>(), std::optional<std::string>("ALL"),
        std::optional<std::string>("avx512_core_amx"), std::optional<std::string>("DEFAULT")}) {
    const std::string advice = bfloat16_advice(1, true, limit);
    EXPECT_NE(advice.find("ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"), std::string::npos) << advice;
  }
}

// Backward gives both parameters views of one memory.
struct SharedGradientImpl : torch::nn::Module {
  SharedGradientImpl() {
    a = register_parameter("a", torch::ones({200, 100}, at::kDouble));
    b = register_parameter("b", torch::ones({100, 200}, at::kDouble));
    c = register_parameter("c", torch::ones({20000}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return (a.view(-1) + b.view(-1) + c) * x; }
  at::Tensor a, b, c;
};

TEST(LargeGradients, AreSummedOnceEachWhenTheyShareMemory) {
  const MirroredStrategy strategy(devices(3));
  auto model = replicate<SharedGradientImpl>(strategy);
  DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(1.0));
  for (int step = 0; step < 2; ++step) {
    strategy.run([&] {
      optimizer.minimize(
          model->forward(torch::full({20000}, replica_id() + 1.0, at::kDouble)).sum());
      for (const at::Tensor& each : model->parameters()) {
        EXPECT_TRUE(at::equal(each.grad(), at::full_like(each, 6.0)));
      }
    });
  }
  EXPECT_TRUE(at::equal(model.primary().b, at::full_like(model.primary().b, 1.0 - 2 * 6.0)));
}

// A copy would lie in the optimizer's buffers, which are larger.
TEST(LargeGradients, StayInTheMemoryThatBackwardGaveThem) {
  struct Layers : torch::nn::Module {
    torch::nn::Linear dense{nullptr};
    torch::nn::Conv2d convolution{nullptr};
    Layers() {
      dense = register_module("dense", torch::nn::Linear(400, 200));
      convolution = register_module("convolution", torch::nn::Conv2d(64, 64, 3));
    }
  };
  const MirroredStrategy strategy(devices(2));
  auto model = replicate<Layers>(strategy);
  DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.01));
  strategy.run([&] {
    const at::Tensor a = model->dense(torch::ones({3, 400}));
    const at::Tensor b = model->convolution(torch::ones({3, 64, 5, 5}));
    optimizer.minimize(average_loss(a.flatten()) + average_loss(b.flatten()));
    for (const at::Tensor& each : {model->dense->weight, model->convolution->weight}) {
      EXPECT_EQ(each.grad().storage().nbytes(), each.nbytes());
    }
    EXPECT_GT(model->dense->bias.grad().storage().nbytes(), model->dense->bias.nbytes());
  });
}

struct TableImpl : torch::nn::Module {
  TableImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 4).sparse(true)));
    out = register_module("out", torch::nn::Linear(4, 1));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& rows) { return out(table(rows)); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear out{nullptr};
};

template <class O, class Options>
void compare_tables(const Strategy& strategy, Options options,
                    const DistributedOptimizerOptions& distributed, bool stays_sparse) {
  torch::manual_seed(11);
  auto model = replicate<TableImpl>(strategy);
  TableImpl plain;
  {
    torch::NoGradGuard no_grad;
    auto from = model.primary().parameters();
    auto to = plain.parameters();
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
  // A dense table gives the same numbers, and works with every optimizer.
  plain.table->options.sparse(false);
  O reference(plain.parameters(), options);
  DistributedOptimizer<O> optimizer(model, options, distributed);
  const int replicas = strategy.num_replicas_in_sync();
  for (int step = 0; step < 4; ++step) {
    const at::Tensor rows = torch::randint(0, 50, {6 * replicas}, at::kLong);
    reference.zero_grad();
    plain.forward(rows).square().mean().backward();
    if (distributed.clip_norm) {
      torch::nn::utils::clip_grad_norm_(plain.parameters(), *distributed.clip_norm);
    }
    reference.step();
    strategy.run([&] {
      const at::Tensor mine = rows.narrow(0, 6 * replica_id(), 6);
      optimizer.minimize(average_loss(model->forward(mine).square()));
      EXPECT_EQ(model->table->weight.grad().is_sparse(), stays_sparse);
    });
  }
  const double tolerance = distributed.clip_norm ? 1e-6 : 1e-9;
  model.for_each([&](TableImpl& copy) {
    EXPECT_TRUE(at::allclose(copy.table->weight, plain.table->weight, tolerance, tolerance));
    EXPECT_TRUE(at::allclose(copy.out->weight, plain.out->weight, tolerance, tolerance));
    at::Tensor gradient = copy.table->weight.grad();
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    if (!distributed.clip_norm) {
      EXPECT_TRUE(at::allclose(gradient, plain.table->weight.grad(), 1e-9, 1e-9));
    }
  });
}

TEST(SparseGradients, UpdateTheRowsThatSomeReplicaUsed) {
  for (const int n : {1, 2, 3}) {
    const MirroredStrategy mirrored(devices(n));
    const CentralStorageStrategy central(devices(n));
    for (const Strategy& strategy : {Strategy(mirrored), Strategy(central)}) {
      compare_tables<torch::optim::SGD>(strategy, torch::optim::SGDOptions(0.5), {}, true);
      compare_tables<torch::optim::SGD>(strategy, torch::optim::SGDOptions(0.5), {.clip_norm = 0.1},
                                        true);
      compare_tables<torch::optim::SGD>(strategy, torch::optim::SGDOptions(0.5), {.fused = false},
                                        true);
      compare_tables<torch::optim::Adagrad>(
          strategy, torch::optim::AdagradOptions(0.5).initial_accumulator_value(0.1), {}, true);
      compare_tables<torch::optim::SGD>(strategy, torch::optim::SGDOptions(0.5).momentum(0.9), {},
                                        false);
      compare_tables<torch::optim::Adam>(strategy, torch::optim::AdamOptions(0.1), {}, false);
    }
  }
}

}  // namespace tutti::precision_test
