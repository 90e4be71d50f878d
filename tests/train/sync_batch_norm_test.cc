// SPDX-License-Identifier: Apache-2.0
//
// SyncBatchNorm over replicas against BatchNorm on one device that has the whole batch.

#include "tutti/train/sync_batch_norm.h"

#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
#include "tutti/train/replicated.h"

#include "tests/support/expect_error.h"

namespace tutti::sync_batch_norm_test {

using torch::nn::BatchNormOptions;

Strategy mirrored(size_t count, int concurrent = 0) {
  std::vector<std::string> devices;
  for (size_t i = 0; i < count; ++i) devices.push_back("CPU:" + std::to_string(i));
  return MirroredStrategy(devices, {.runner = {.concurrent_replicas = concurrent}});
}

// The rows of each replica, one after the other in the whole batch.
using Rows = std::vector<int64_t>;

PerReplica<at::Tensor> split_rows(const at::Tensor& whole, const Rows& rows) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    parts.push_back(whole.narrow(0, begin, count));
    begin += count;
  }
  return PerReplica<at::Tensor>(std::move(parts));
}

template <class Layer>
void set_values(Layer& layer, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  layer.to(dtype);
  if (!layer.weight.defined()) return;
  layer.weight.copy_(at::linspace(0.5, 1.5, layer.weight.numel()));
  layer.bias.copy_(at::linspace(-1, 1, layer.bias.numel()));
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                  const char* what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  EXPECT_LE((actual - expected).abs().max().item<double>(), tolerance) << what;
}

struct Case {
  std::vector<int64_t> shape;  // without rows
  BatchNormOptions options;
  at::ScalarType dtype = at::kDouble;
  double tolerance = 1e-12;
  int concurrent = 0;
};

// Two steps in training, then evaluation: outputs, gradients of inputs and parameters, and
// running statistics.
template <class Sync, class Plain>
void compare(const Case& test, const Rows& rows) {
  std::ostringstream trace;
  trace << "rows of each replica:";
  for (const int64_t count : rows) trace << ' ' << count;
  SCOPED_TRACE(trace.str());
  torch::manual_seed(7);
  const Strategy strategy = mirrored(rows.size(), test.concurrent);
  Plain plain(test.options);
  const auto model = replicate<Sync>(strategy, test.options);
  set_values(*plain, test.dtype);
  model.for_each([&](auto& copy) { set_values(copy, test.dtype); });

  std::vector<int64_t> shape = test.shape;
  shape.insert(shape.begin(), std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  for (int step = 0; step < 3; ++step) {
    if (step == 2) {
      plain->eval();
      model.eval();
    }
    // A mean far from zero reveals cancellation.
    at::Tensor x = (torch::randn(shape, test.dtype) * 2 + 100).requires_grad_();
    const at::Tensor factors = torch::randn(shape, test.dtype);
    const at::Tensor expected = plain(x);
    plain->zero_grad();
    (expected * factors).sum().backward();
    model.for_each([](auto& copy) { copy.zero_grad(); });
    const auto results = strategy.run(
        [&](const at::Tensor& part, const at::Tensor& factor) {
          const at::Tensor input = part.detach().clone().requires_grad_();
          const at::Tensor output = model(input);
          (output * factor).sum().backward();
          return std::tuple(output.detach(), input.grad());
        },
        split_rows(x.detach(), rows), split_rows(factors, rows));
    const auto outputs = split_rows(expected.detach(), rows);
    const auto gradients = split_rows(x.grad(), rows);
    at::Tensor weight_gradient;
    at::Tensor bias_gradient;
    for (size_t r = 0; r < rows.size(); ++r) {
      expect_close(std::get<0>(results[r]), outputs[r], test.tolerance, "output");
      expect_close(std::get<1>(results[r]), gradients[r], test.tolerance, "gradient of the input");
      EXPECT_EQ(std::get<0>(results[r]).scalar_type(), test.dtype);
      if (!test.options.affine()) continue;
      const at::Tensor w = model.parameter("weight")[r].grad();
      const at::Tensor b = model.parameter("bias")[r].grad();
      weight_gradient = r == 0 ? w.clone() : weight_gradient + w;
      bias_gradient = r == 0 ? b.clone() : bias_gradient + b;
    }
    if (test.options.affine()) {
      const double scale = static_cast<double>(x.numel());
      expect_close(weight_gradient, plain->weight.grad(), test.tolerance * scale, "weight");
      expect_close(bias_gradient, plain->bias.grad(), test.tolerance * scale, "bias");
    }
    if (!test.options.track_running_stats()) continue;
    for (size_t r = 0; r < rows.size(); ++r) {
      expect_close(model.buffer("running_mean")[r], plain->running_mean, test.tolerance * 100,
                   "running_mean");
      expect_close(model.buffer("running_var")[r], plain->running_var, test.tolerance * 100,
                   "running_var");
      EXPECT_TRUE(at::equal(model.buffer("running_mean")[r], model.buffer("running_mean")[0]));
      EXPECT_TRUE(at::equal(model.buffer("running_var")[r], model.buffer("running_var")[0]));
      EXPECT_TRUE(at::equal(model.buffer("num_batches_tracked")[r], plain->num_batches_tracked));
    }
  }
}

const std::vector<Rows> kSplits = {{5},       {3, 3},    {4, 1},    {1, 1},       {0, 2},
                                   {2, 0, 3}, {0, 0, 4}, {1, 2, 3}, {2, 2, 2, 2}, {3, 0, 1, 1}};

TEST(SyncBatchNorm, EqualsOneDeviceInOneDimension) {
  for (const Rows& rows : kSplits) {
    compare<nn::SyncBatchNorm1d, torch::nn::BatchNorm1d>({{3}, BatchNormOptions(3)}, rows);
    compare<nn::SyncBatchNorm1d, torch::nn::BatchNorm1d>({{3, 4}, BatchNormOptions(3)}, rows);
  }
}

TEST(SyncBatchNorm, EqualsOneDeviceInTwoAndThreeDimensions) {
  for (const Rows& rows : kSplits) {
    compare<nn::SyncBatchNorm2d, torch::nn::BatchNorm2d>({{2, 3, 4}, BatchNormOptions(2)}, rows);
    compare<nn::SyncBatchNorm3d, torch::nn::BatchNorm3d>({{2, 2, 3, 2}, BatchNormOptions(2)}, rows);
  }
}

TEST(SyncBatchNorm, EqualsOneDeviceForAllOptions) {
  for (const Rows& rows : {Rows{3, 2}, Rows{2, 0, 3}}) {
    compare<nn::SyncBatchNorm2d, torch::nn::BatchNorm2d>(
        {{3, 2, 2}, BatchNormOptions(3).affine(false)}, rows);
    compare<nn::SyncBatchNorm2d, torch::nn::BatchNorm2d>(
        {{3, 2, 2}, BatchNormOptions(3).momentum(c10::nullopt).eps(0.1)}, rows);
    compare<nn::SyncBatchNorm2d, torch::nn::BatchNorm2d>(
        {{3, 2, 2}, BatchNormOptions(3).momentum(0.7), at::kFloat, 2e-4}, rows);
    compare<nn::SyncBatchNorm2d, torch::nn::BatchNorm2d>(
        {{3, 2, 2}, BatchNormOptions(3), at::kDouble, 1e-12, /*concurrent=*/1}, rows);
  }
}

TEST(SyncBatchNorm, WithoutRunningStatisticsTakesThoseOfTheBatch) {
  const Rows rows = {2, 1};
  const auto options = BatchNormOptions(3).track_running_stats(false);
  const Strategy strategy = mirrored(2);
  const auto model = replicate<nn::SyncBatchNorm1d>(strategy, options);
  torch::nn::BatchNorm1d plain(options);
  const at::Tensor x = torch::randn({3, 3});
  const auto results =
      strategy.run([&](const at::Tensor& part) { return model(part); }, split_rows(x, rows));
  EXPECT_TRUE(at::allclose(strategy.gather(results, 0), plain(x), 1e-5, 1e-6));
  EXPECT_TRUE(model.modules()->buffer_names().empty());
}

TEST(SyncBatchNorm, SixteenBitInputsAreComputedInFloat) {
  const Strategy strategy = mirrored(2);
  const auto model = replicate<nn::SyncBatchNorm1d>(strategy, 3);
  torch::nn::BatchNorm1d plain(3);
  const at::Tensor x = torch::randn({6, 3}).to(at::kBFloat16);
  const auto results = strategy.run(
      [&](const at::Tensor& part) {
        const at::Tensor input = part.detach().clone().requires_grad_();
        const at::Tensor output = model(input);
        output.sum().backward();
        EXPECT_EQ(input.grad().scalar_type(), at::kBFloat16);
        return output.detach();
      },
      split_rows(x, {4, 2}));
  EXPECT_EQ(results[0].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(strategy.gather(results, 0).to(at::kFloat), plain(x.to(at::kFloat)),
                           1e-2, 1e-2));
}

TEST(SyncBatchNorm, InputsWithoutGradientNeedNoSecondMeeting) {
  const Strategy strategy = mirrored(2);
  const auto model = replicate<nn::SyncBatchNorm1d>(strategy, 3);
  const at::Tensor x = torch::randn({5, 3});
  strategy.run([&](const at::Tensor& part) { model(part).square().sum().backward(); },
               split_rows(x, {4, 1}));
  torch::nn::BatchNorm1d plain(3);
  plain(x).square().sum().backward();
  EXPECT_TRUE(
      at::allclose(model.parameter("weight")[0].grad() + model.parameter("weight")[1].grad(),
                   plain->weight.grad(), 1e-5));
}

TEST(SyncBatchNorm, IsABatchNormOutsideOfReplicas) {
  nn::SyncBatchNorm2d sync(3);
  torch::nn::BatchNorm2d plain(3);
  const at::Tensor x = torch::randn({4, 3, 2, 2});
  EXPECT_TRUE(at::equal(sync(x), plain(x)));
  EXPECT_TRUE(at::equal(sync->running_var, plain->running_var));
  OneDeviceStrategy("CPU:0").run([&] { EXPECT_TRUE(at::equal(sync->forward(x), plain(x))); });
  sync->eval();
  plain->eval();
  EXPECT_TRUE(at::equal(sync(x), plain(x)));
  std::ostringstream text;
  text << sync;
  EXPECT_EQ(text.str(),
            "tutti::nn::SyncBatchNorm2d(3, eps=1e-05, momentum=0.1, affine=true, "
            "track_running_stats=true)");
}

TEST(SyncBatchNorm, FilesOfBatchNormLoad) {
  torch::nn::BatchNorm1d plain(3);
  plain(torch::randn({4, 3}));
  std::stringstream file;
  torch::save(plain, file);
  nn::SyncBatchNorm1d sync(3);
  torch::load(sync, file);
  EXPECT_TRUE(at::equal(sync->running_mean, plain->running_mean));
  const auto clone = std::dynamic_pointer_cast<nn::SyncBatchNorm1dImpl>(sync->clone());
  ASSERT_NE(clone, nullptr);
  EXPECT_TRUE(at::equal(clone->running_mean, plain->running_mean));
}

TEST(SyncBatchNorm, MisuseIsExplained) {
  const Strategy strategy = mirrored(2);
  const auto model = replicate<nn::SyncBatchNorm1d>(strategy, 3);
  const auto run_with = [&](const Rows& rows) {
    const at::Tensor x = torch::randn({rows[0] + rows[1], 3});
    return strategy.run([&](const at::Tensor& part) { return model(part); }, split_rows(x, rows));
  };
  EXPECT_TUTTI_ERROR(run_with({0, 1}), ErrorCode::kInvalidArgument, "all replicas together",
                     "drop_remainder");
  const at::Tensor before = model.buffer("running_mean")[0].clone();
  EXPECT_EQ(run_with({0, 0})[1].size(0), 0);
  EXPECT_TRUE(at::equal(model.buffer("running_mean")[0], before));
  EXPECT_TUTTI_ERROR(nn::SyncBatchNorm2d(3)(at::ones({2, 3})), ErrorCode::kInvalidArgument,
                     "SyncBatchNorm2d: the input has the shape [2, 3]", "[rows, 3, height, width]");
  EXPECT_TUTTI_ERROR(nn::SyncBatchNorm1d(3)(at::ones({2, 4})), ErrorCode::kInvalidArgument,
                     "SyncBatchNorm1d", "[2, 4]");
  EXPECT_TUTTI_ERROR(strategy.run([&] {
    const at::Tensor x = at::ones({2, 3}).requires_grad_();
    torch::autograd::grad({model(x).square().sum()}, {x}, {}, true, true);
  }),
                     ErrorCode::kUnimplemented, "gradients of gradients");
}

TEST(SyncBatchNorm, FrozenWeightsAndSeveralLayers) {
  const auto make = [](auto norm) {
    using Norm = decltype(norm);
    torch::nn::Sequential model(Norm(3), torch::nn::Linear(3, 3), torch::nn::Tanh(), Norm(3),
                                torch::nn::Linear(3, 1));
    model->to(at::kDouble);
    model->named_parameters()["3.weight"].requires_grad_(false);
    return model;
  };
  torch::manual_seed(4);
  torch::nn::Sequential plain = make(torch::nn::BatchNorm1d(3));
  torch::manual_seed(4);
  const Strategy strategy = mirrored(4);
  const auto model = replicate(strategy, [&] { return make(nn::SyncBatchNorm1d(3)); });
  const at::Tensor x = torch::randn({6, 3}, at::kDouble);
  for (int step = 0; step < 2; ++step) {  // gradients add up
    plain->forward(x).square().sum().backward();
    strategy.run([&](const at::Tensor& part) { model->forward(part).square().sum().backward(); },
                 split_rows(x, {1, 0, 2, 3}));
  }
  for (const auto& [name, parameter] : model.named_parameters()) {
    const at::Tensor expected = plain->named_parameters()[name].grad();
    if (!expected.defined()) {
      EXPECT_FALSE(parameter[0].grad().defined());
      continue;
    }
    at::Tensor sum = at::zeros_like(expected);
    for (const at::Tensor& copy : parameter) sum += copy.grad();
    expect_close(sum, expected, 1e-12, name.c_str());
  }
}

// ---- the converter ----------------------------------------------------------------

TEST(ConvertSyncBatchNorm, ReplacesLayersInContainers) {
  const torch::nn::BatchNorm1d shared(4);
  shared->weight.requires_grad_(false);
  torch::nn::Sequential inner(torch::nn::Linear(4, 4), shared);
  torch::nn::Sequential outer(torch::nn::ReLU(), shared);
  torch::nn::ModuleList model(inner, outer);
  inner[1]->eval();
  const at::Tensor x = torch::randn({5, 4});
  shared->running_mean.fill_(0.5);
  const at::Tensor expected = outer->forward(inner->forward(x));
  EXPECT_EQ(convert_sync_batch_norm(model), 2);
  const auto& first = inner->at<nn::SyncBatchNorm1dImpl>(1);
  EXPECT_EQ(&first, (&outer->at<nn::SyncBatchNorm1dImpl>(1)));
  EXPECT_TRUE(first.weight.is_same(shared->weight));
  EXPECT_TRUE(first.named_parameters()["weight"].is_same(shared->weight));
  EXPECT_FALSE(first.is_training());
  EXPECT_TRUE(at::equal(outer->forward(inner->forward(x)), expected));
  EXPECT_EQ(model->named_parameters().size(), 6U);
  EXPECT_EQ(convert_sync_batch_norm(model), 0);

  torch::nn::ModuleList list(torch::nn::BatchNorm2d(2), torch::nn::BatchNorm3d(2));
  EXPECT_EQ(convert_sync_batch_norm(list), 2);
  EXPECT_NE(list[0]->as<nn::SyncBatchNorm2d>(), nullptr);
  EXPECT_NE(list->named_children()["1"]->as<nn::SyncBatchNorm3d>(), nullptr);

  torch::nn::ModuleDict dict;
  dict->update({{"norm", torch::nn::BatchNorm2d(2).ptr()}});
  EXPECT_EQ(convert_sync_batch_norm(dict), 1);
  EXPECT_NE(dict["norm"]->as<nn::SyncBatchNorm2d>(), nullptr);
  EXPECT_NE(dict->named_children()["norm"]->as<nn::SyncBatchNorm2d>(), nullptr);
}

TEST(ConvertSyncBatchNorm, ConvertedModelsTrainTogether) {
  const auto make = [] {
    torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3),
                                torch::nn::ReLU(), torch::nn::Linear(3, 1));
    model->to(at::kDouble);
    return model;
  };
  torch::manual_seed(1);
  torch::nn::Sequential plain = make();
  torch::manual_seed(1);
  const Strategy strategy = mirrored(3);
  const auto model = replicate(strategy, [&] {
    auto module = make();
    convert_sync_batch_norm(module);
    return module;
  });
  const at::Tensor x = torch::randn({4, 4}, at::kDouble);
  plain->forward(x).square().sum().backward();
  strategy.run([&](const at::Tensor& part) { model->forward(part).square().sum().backward(); },
               split_rows(x, {3, 0, 1}));
  for (const auto& [name, parameter] : model.named_parameters()) {
    at::Tensor sum = at::zeros_like(parameter[0]);
    for (const at::Tensor& copy : parameter) sum += copy.grad();
    expect_close(sum, plain->named_parameters()[name].grad(), 1e-12, name.c_str());
  }
}

struct BlockImpl : torch::nn::Module {
  BlockImpl() : bn1(register_module("bn1", torch::nn::BatchNorm2d(2))) {}
  at::Tensor forward(const at::Tensor& x) { return bn1(x); }
  torch::nn::BatchNorm2d bn1;
};
TORCH_MODULE(Block);

TEST(ConvertSyncBatchNorm, LayersItCannotReplaceAreNamed) {
  torch::nn::Sequential model(torch::nn::BatchNorm2d(2), Block());
  EXPECT_TUTTI_ERROR(convert_sync_batch_norm(model), ErrorCode::kInvalidArgument,
                     "'1.bn1' (torch::nn::BatchNorm2dImpl)",
                     "Declare them as tutti::nn::SyncBatchNorm", "Nothing was changed");
  EXPECT_NE(model[0]->as<torch::nn::BatchNorm2d>(), nullptr);
  torch::nn::BatchNorm1d alone(2);
  EXPECT_TUTTI_ERROR(convert_sync_batch_norm(alone), ErrorCode::kInvalidArgument,
                     "torch::nn::BatchNorm1dImpl");
}

}  // namespace tutti::sync_batch_norm_test
