// SPDX-License-Identifier: Apache-2.0
//
// Which layers of torch::nn accept 0 rows and 1 row in training: forward, backward, and numbers
// that are finite. docs/guide/training-loop.md shows the same table. Long tables, one line each.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/train/replicated.h"

#include "tests/support/expect_error.h"

namespace tutti::few_rows_test {

using namespace torch::nn;  // NOLINT(google-build-using-namespace): the table below
using Shape = std::vector<int64_t>;

// Runs a layer with `rows` rows; returns the tensor on which to call backward().
using Run = std::function<at::Tensor(int64_t rows, std::vector<at::Tensor>& leaves)>;

struct Layer {
  std::string name;
  bool no_rows;  // accepts 0 rows
  bool one_row;  // accepts 1 row
  Run run;
};

at::Tensor leaf(Shape shape, std::vector<at::Tensor>& leaves) {
  leaves.push_back(torch::rand(shape).requires_grad_());
  return leaves.back();
}

template <class Module>
void add_parameters(Module& module, std::vector<at::Tensor>& leaves) {
  module->train();
  for (const at::Tensor& parameter : module->parameters()) {
    if (parameter.requires_grad()) leaves.push_back(parameter);
  }
}

// A layer whose input has the shape [rows, shape...].
template <class Make>
Run on(Shape shape, Make make) {
  return [shape, make](int64_t rows, std::vector<at::Tensor>& leaves) {
    auto module = make();
    add_parameters(module, leaves);
    Shape full = shape;
    full.insert(full.begin(), rows);
    const at::Tensor output = module(leaf(full, leaves));
    for (const at::Tensor& buffer : module->buffers()) {
      EXPECT_TRUE(at::isfinite(buffer).all().template item<bool>()) << "a buffer";
    }
    return output;
  };
}

// A recurrent layer with batch_first, which returns a tuple.
template <class Make>
Run recurrent(Make make) {
  return [make](int64_t rows, std::vector<at::Tensor>& leaves) {
    auto module = make();
    add_parameters(module, leaves);
    return std::get<0>(module(leaf({rows, 5, 3}, leaves)));
  };
}

// A layer whose rows are the second dimension.
template <class Make, class Call>
Run sequence(Make make, Call call) {
  return [make, call](int64_t rows, std::vector<at::Tensor>& leaves) {
    auto module = make();
    add_parameters(module, leaves);
    return call(module, leaf({5, rows, 4}, leaves));
  };
}

// A loss with a value for each row.
template <class Loss, class Target>
Run loss(Loss options, Target target) {
  return [options, target](int64_t rows, std::vector<at::Tensor>& leaves) {
    auto module = options();
    return module(leaf({rows, 3}, leaves), target(rows));
  };
}

at::Tensor like_input(int64_t rows) { return torch::rand({rows, 3}); }
at::Tensor ones(int64_t rows) { return torch::ones({rows, 3}); }
at::Tensor class_of_each(int64_t rows) { return torch::zeros({rows}, torch::kLong); }

#define TUTTI_MAKE(...) [] { return __VA_ARGS__; }
#define TUTTI_LAYER(type, ...) TUTTI_MAKE(type(__VA_ARGS__))

std::vector<Layer> linear_layers() {
  return {
      {"Linear", true, true, on({3}, TUTTI_LAYER(Linear, 3, 4))},
      {"Identity", true, true, on({3}, TUTTI_LAYER(Identity))},
      {"Flatten", true, true, on({3, 4}, TUTTI_LAYER(Flatten))},
      {"Unflatten", true, true, on({4}, TUTTI_LAYER(Unflatten, UnflattenOptions(1, {2, 2})))},
      {"Bilinear", true, true,
       [](int64_t rows, std::vector<at::Tensor>& leaves) {
         Bilinear module(3, 4, 5);
         add_parameters(module, leaves);
         return module(leaf({rows, 3}, leaves), leaf({rows, 4}, leaves));
       }},
      {"Embedding", true, true,
       [](int64_t rows, std::vector<at::Tensor>& leaves) {
         Embedding module(10, 4);
         add_parameters(module, leaves);
         return module(torch::ones({rows, 3}, torch::kLong));
       }},
      {"EmbeddingBag", true, true,
       [](int64_t rows, std::vector<at::Tensor>& leaves) {
         EmbeddingBag module(10, 4);
         add_parameters(module, leaves);
         return module(torch::ones({rows, 3}, torch::kLong));
       }},
      {"EmbeddingBag with offsets", TORCH_VERSION_MAJOR >= 2, true,
       [](int64_t rows, std::vector<at::Tensor>& leaves) {
         EmbeddingBag module(10, 4);
         add_parameters(module, leaves);
         return module(torch::ones({3 * rows}, torch::kLong), torch::arange(rows) * 3);
       }},
  };
}

std::vector<Layer> convolutions() {
  return {
      {"Conv1d", true, true, on({3, 8}, TUTTI_LAYER(Conv1d, 3, 4, 2))},
      {"Conv2d", true, true, on({3, 8, 8}, TUTTI_LAYER(Conv2d, 3, 4, 2))},
      {"Conv3d", true, true, on({3, 4, 4, 4}, TUTTI_LAYER(Conv3d, 3, 4, 2))},
      {"ConvTranspose1d", true, true, on({3, 8}, TUTTI_LAYER(ConvTranspose1d, 3, 4, 2))},
      {"ConvTranspose2d", true, true, on({3, 8, 8}, TUTTI_LAYER(ConvTranspose2d, 3, 4, 2))},
      {"ConvTranspose3d", true, true, on({3, 4, 4, 4}, TUTTI_LAYER(ConvTranspose3d, 3, 4, 2))},
      {"Unfold", true, true, on({3, 4, 4}, TUTTI_LAYER(Unfold, 2))},
      {"Fold", true, true, on({12, 12}, TUTTI_LAYER(Fold, FoldOptions({4, 5}, {2, 2})))},
      {"PixelShuffle", false, true, on({4, 3, 3}, TUTTI_LAYER(PixelShuffle, 2))},
      {"PixelUnshuffle", false, true, on({4, 4, 4}, TUTTI_LAYER(PixelUnshuffle, 2))},
      {"Upsample", true, true,
       on({3, 4, 4}, TUTTI_LAYER(Upsample, UpsampleOptions().scale_factor({{2., 2.}})))},
      {"ConstantPad1d, ZeroPad2d", true, true, on({3, 4, 4}, TUTTI_LAYER(ZeroPad2d, 1))},
      {"ReflectionPad1d", true, true, on({3, 4}, TUTTI_LAYER(ReflectionPad1d, 1))},
      {"ReflectionPad2d", true, true, on({3, 4, 4}, TUTTI_LAYER(ReflectionPad2d, 1))},
      {"ReflectionPad3d", true, true, on({3, 4, 4, 4}, TUTTI_LAYER(ReflectionPad3d, 1))},
      {"ReplicationPad1d", true, true, on({3, 4}, TUTTI_LAYER(ReplicationPad1d, 1))},
      {"ReplicationPad2d", true, true, on({3, 4, 4}, TUTTI_LAYER(ReplicationPad2d, 1))},
      {"ReplicationPad3d", true, true, on({3, 4, 4, 4}, TUTTI_LAYER(ReplicationPad3d, 1))},
  };
}

std::vector<Layer> normalizations() {
  return {
      {"BatchNorm1d", true, false, on({3}, TUTTI_LAYER(BatchNorm1d, 3))},
      {"BatchNorm1d of sequences", true, true, on({3, 5}, TUTTI_LAYER(BatchNorm1d, 3))},
      {"BatchNorm2d", true, true, on({3, 4, 4}, TUTTI_LAYER(BatchNorm2d, 3))},
      {"BatchNorm2d of 1x1 images", true, false, on({3, 1, 1}, TUTTI_LAYER(BatchNorm2d, 3))},
      {"BatchNorm3d", true, true, on({3, 2, 2, 2}, TUTTI_LAYER(BatchNorm3d, 3))},
      {"BatchNorm3d of 1x1x1 images", true, false, on({3, 1, 1, 1}, TUTTI_LAYER(BatchNorm3d, 3))},
      {"InstanceNorm1d", true, true, on({3, 4}, TUTTI_LAYER(InstanceNorm1d, 3))},
      {"InstanceNorm1d, affine", false, true,
       on({3, 4}, TUTTI_LAYER(InstanceNorm1d, InstanceNorm1dOptions(3).affine(true)))},
      {"InstanceNorm2d", true, true, on({3, 4, 4}, TUTTI_LAYER(InstanceNorm2d, 3))},
      {"InstanceNorm2d, affine", false, true,
       on({3, 4, 4}, TUTTI_LAYER(InstanceNorm2d, InstanceNorm2dOptions(3).affine(true)))},
      {"InstanceNorm3d", true, true, on({3, 2, 2, 2}, TUTTI_LAYER(InstanceNorm3d, 3))},
      {"InstanceNorm3d, affine", false, true,
       on({3, 2, 2, 2}, TUTTI_LAYER(InstanceNorm3d, InstanceNorm3dOptions(3).affine(true)))},
      {"LayerNorm", true, true, on({3}, TUTTI_LAYER(LayerNorm, LayerNormOptions({3})))},
      {"GroupNorm", true, true, on({4, 3, 3}, TUTTI_LAYER(GroupNorm, GroupNormOptions(2, 4)))},
      {"LocalResponseNorm", false, true,
       on({4, 3, 3}, TUTTI_LAYER(LocalResponseNorm, LocalResponseNormOptions(2)))},
      {"CrossMapLRN2d", true, true, on({4, 3, 3}, TUTTI_LAYER(CrossMapLRN2d, 3))},
  };
}

std::vector<Layer> pools() {
  return {
      {"MaxPool1d", true, true, on({3, 4}, TUTTI_LAYER(MaxPool1d, 2))},
      {"MaxPool2d", true, true, on({3, 4, 4}, TUTTI_LAYER(MaxPool2d, 2))},
      {"MaxPool3d", true, true, on({3, 4, 4, 4}, TUTTI_LAYER(MaxPool3d, 2))},
      {"AvgPool1d", true, true, on({3, 4}, TUTTI_LAYER(AvgPool1d, 2))},
      {"AvgPool2d", true, true, on({3, 4, 4}, TUTTI_LAYER(AvgPool2d, 2))},
      {"AvgPool3d", true, true, on({3, 4, 4, 4}, TUTTI_LAYER(AvgPool3d, 2))},
      {"AdaptiveAvgPool1d", true, true, on({3, 4}, TUTTI_LAYER(AdaptiveAvgPool1d, 2))},
      {"AdaptiveAvgPool2d", true, true, on({3, 4, 4}, TUTTI_LAYER(AdaptiveAvgPool2d, 2))},
      {"AdaptiveAvgPool2d to 1x1", true, true, on({3, 4, 4}, TUTTI_LAYER(AdaptiveAvgPool2d, 1))},
      {"AdaptiveAvgPool3d", true, true, on({3, 4, 4, 4}, TUTTI_LAYER(AdaptiveAvgPool3d, 2))},
      {"AdaptiveMaxPool1d", true, true, on({3, 4}, TUTTI_LAYER(AdaptiveMaxPool1d, 2))},
      {"AdaptiveMaxPool2d", true, true, on({3, 4, 4}, TUTTI_LAYER(AdaptiveMaxPool2d, 2))},
      {"AdaptiveMaxPool3d", true, true, on({3, 4, 4, 4}, TUTTI_LAYER(AdaptiveMaxPool3d, 2))},
      {"FractionalMaxPool2d", true, true,
       on({3, 4, 4},
          TUTTI_LAYER(FractionalMaxPool2d, FractionalMaxPool2dOptions(2).output_size(2)))},
      {"FractionalMaxPool3d", true, true,
       on({3, 4, 4, 4},
          TUTTI_LAYER(FractionalMaxPool3d, FractionalMaxPool3dOptions(2).output_size(2)))},
      {"LPPool1d", true, true, on({3, 4}, TUTTI_LAYER(LPPool1d, LPPool1dOptions(2, 2)))},
      {"LPPool2d", true, true, on({3, 4, 4}, TUTTI_LAYER(LPPool2d, LPPool2dOptions(2, 2)))},
  };
}

std::vector<Layer> recurrent_layers() {
  const auto cell = [](auto module) {
    return [module](int64_t rows, std::vector<at::Tensor>& leaves) {
      auto copy = module;
      add_parameters(copy, leaves);
      const auto output = copy(leaf({rows, 3}, leaves));
      if constexpr (std::is_same_v<std::decay_t<decltype(output)>, at::Tensor>) {
        return output;
      } else {
        return std::get<0>(output);
      }
    };
  };
  return {
      {"RNN", true, true, recurrent(TUTTI_LAYER(RNN, RNNOptions(3, 4).batch_first(true)))},
      {"LSTM", true, true,
       recurrent(TUTTI_LAYER(
           LSTM, LSTMOptions(3, 4).batch_first(true).bidirectional(true).num_layers(2)))},
      {"GRU", true, true, recurrent(TUTTI_LAYER(GRU, GRUOptions(3, 4).batch_first(true)))},
      {"RNNCell", true, true, cell(RNNCell(3, 4))},
      {"LSTMCell", true, true, cell(LSTMCell(3, 4))},
      {"GRUCell", true, true, cell(GRUCell(3, 4))},
  };
}

std::vector<Layer> attention_layers() {
  const auto one = [](auto& module, const at::Tensor& x) { return module(x); };
  const auto two = [](auto& module, const at::Tensor& x) { return module(x, x); };
  return {
      {"MultiheadAttention", false, true,
       sequence(TUTTI_LAYER(MultiheadAttention, 4, 2),
                [](auto& module, const at::Tensor& x) { return std::get<0>(module(x, x, x)); })},
      {"TransformerEncoderLayer", false, true,
       sequence(TUTTI_LAYER(TransformerEncoderLayer,
                            TransformerEncoderLayerOptions(4, 2).dim_feedforward(8)),
                one)},
      {"TransformerDecoderLayer", false, true,
       sequence(TUTTI_LAYER(TransformerDecoderLayer,
                            TransformerDecoderLayerOptions(4, 2).dim_feedforward(8)),
                two)},
      {"Transformer", false, true,
       sequence(TUTTI_LAYER(Transformer, TransformerOptions(4, 2, 1, 1).dim_feedforward(8)), two)},
  };
}

std::vector<Layer> activations() {
  return {
      {"Dropout", true, true, on({3}, TUTTI_LAYER(Dropout))},
      {"Dropout2d", true, true, on({3, 4, 4}, TUTTI_LAYER(Dropout2d))},
      {"Dropout3d", true, true, on({3, 2, 2, 2}, TUTTI_LAYER(Dropout3d))},
      {"AlphaDropout", true, true, on({3}, TUTTI_LAYER(AlphaDropout))},
      {"FeatureAlphaDropout", true, true, on({3, 4, 4}, TUTTI_LAYER(FeatureAlphaDropout))},
      {"ReLU", true, true, on({3}, TUTTI_LAYER(ReLU))},
      {"ReLU6", true, true, on({3}, TUTTI_LAYER(ReLU6))},
      {"LeakyReLU", true, true, on({3}, TUTTI_LAYER(LeakyReLU))},
      {"PReLU", true, true, on({3}, TUTTI_LAYER(PReLU, PReLUOptions().num_parameters(3)))},
      {"RReLU", true, true, on({3}, TUTTI_LAYER(RReLU))},
      {"ELU", true, true, on({3}, TUTTI_LAYER(ELU))},
      {"SELU", true, true, on({3}, TUTTI_LAYER(SELU))},
      {"CELU", true, true, on({3}, TUTTI_LAYER(CELU))},
      {"GELU", true, true, on({3}, TUTTI_LAYER(GELU))},
      {"GLU", true, true, on({4}, TUTTI_LAYER(GLU))},
      {"SiLU", true, true, on({3}, TUTTI_LAYER(SiLU))},
      {"Mish", true, true, on({3}, TUTTI_LAYER(Mish))},
      {"Sigmoid", true, true, on({3}, TUTTI_LAYER(Sigmoid))},
      {"LogSigmoid", true, true, on({3}, TUTTI_LAYER(LogSigmoid))},
      {"Tanh", true, true, on({3}, TUTTI_LAYER(Tanh))},
      {"Tanhshrink", true, true, on({3}, TUTTI_LAYER(Tanhshrink))},
      {"Hardtanh", true, true, on({3}, TUTTI_LAYER(Hardtanh))},
      {"Hardshrink", true, true, on({3}, TUTTI_LAYER(Hardshrink))},
      {"Softshrink", true, true, on({3}, TUTTI_LAYER(Softshrink))},
      {"Softplus", true, true, on({3}, TUTTI_LAYER(Softplus))},
      {"Softsign", true, true, on({3}, TUTTI_LAYER(Softsign))},
      {"Threshold", true, true, on({3}, TUTTI_LAYER(Threshold, 0.1, 20))},
      {"Softmax", true, true, on({3}, TUTTI_LAYER(Softmax, 1))},
      {"Softmin", true, true, on({3}, TUTTI_LAYER(Softmin, 1))},
      {"LogSoftmax", true, true, on({3}, TUTTI_LAYER(LogSoftmax, 1))},
      {"Softmax2d", true, true, on({3, 4, 4}, TUTTI_LAYER(Softmax2d))},
  };
}

#define TUTTI_LOSS(type) TUTTI_MAKE(type(type##Options().reduction(torch::kNone)))

std::vector<Layer> losses() {
  const auto pair = [](auto call) {
    return [call](int64_t rows, std::vector<at::Tensor>& leaves) {
      const at::Tensor first = leaf({rows, 3}, leaves);
      return call(first, torch::rand({rows, 3}));
    };
  };
  return {
      {"MSELoss", true, true, loss(TUTTI_LOSS(MSELoss), like_input)},
      {"L1Loss", true, true, loss(TUTTI_LOSS(L1Loss), like_input)},
      {"SmoothL1Loss", true, true, loss(TUTTI_LOSS(SmoothL1Loss), like_input)},
      {"HuberLoss", true, true, loss(TUTTI_LOSS(HuberLoss), like_input)},
      {"BCELoss", true, true, loss(TUTTI_LOSS(BCELoss), like_input)},
      {"BCEWithLogitsLoss", true, true, loss(TUTTI_LOSS(BCEWithLogitsLoss), like_input)},
      {"CrossEntropyLoss", true, true, loss(TUTTI_LOSS(CrossEntropyLoss), class_of_each)},
      {"NLLLoss", true, true, loss(TUTTI_LOSS(NLLLoss), class_of_each)},
      {"KLDivLoss", true, true, loss(TUTTI_LOSS(KLDivLoss), like_input)},
      {"PoissonNLLLoss", true, true, loss(TUTTI_LOSS(PoissonNLLLoss), like_input)},
      {"HingeEmbeddingLoss", true, true, loss(TUTTI_LOSS(HingeEmbeddingLoss), ones)},
      {"SoftMarginLoss", true, true, loss(TUTTI_LOSS(SoftMarginLoss), ones)},
      {"MultiMarginLoss", true, true, loss(TUTTI_LOSS(MultiMarginLoss), class_of_each)},
      {"MultiLabelMarginLoss", true, true,
       loss(TUTTI_LOSS(MultiLabelMarginLoss),
            [](int64_t rows) {
              return torch::zeros({rows, 3}, torch::kLong);
            })},
      {"MultiLabelSoftMarginLoss", true, true, loss(TUTTI_LOSS(MultiLabelSoftMarginLoss), ones)},
      {"CosineEmbeddingLoss", true, true, pair([](const at::Tensor& a, const at::Tensor& b) {
         return TUTTI_LOSS(CosineEmbeddingLoss)()(a, b, torch::ones({a.size(0)}));
       })},
      {"MarginRankingLoss", true, true, pair([](const at::Tensor& a, const at::Tensor& b) {
         return TUTTI_LOSS(MarginRankingLoss)()(a, b, torch::ones_like(b));
       })},
      {"TripletMarginLoss", true, true, pair([](const at::Tensor& a, const at::Tensor& b) {
         return TUTTI_LOSS(TripletMarginLoss)()(a, b, torch::rand_like(b));
       })},
      {"CTCLoss", TORCH_VERSION_MAJOR < 2, true,
       [](int64_t rows, std::vector<at::Tensor>& leaves) {
         const at::Tensor scores = leaf({5, rows, 4}, leaves).log_softmax(2);
         return TUTTI_LOSS(CTCLoss)()(scores, torch::ones({rows, 1}, torch::kLong),
                                      torch::full({rows}, 5, torch::kLong),
                                      torch::full({rows}, 1, torch::kLong));
       }},
      {"AdaptiveLogSoftmaxWithLoss", true, true,
       [](int64_t rows, std::vector<at::Tensor>& leaves) {
         AdaptiveLogSoftmaxWithLoss module(AdaptiveLogSoftmaxWithLossOptions(8, 12, {4}));
         add_parameters(module, leaves);
         return module(leaf({rows, 8}, leaves), class_of_each(rows)).output;
       }},
      {"CosineSimilarity", true, true,
       pair([](const at::Tensor& a, const at::Tensor& b) { return CosineSimilarity()(a, b); })},
      {"PairwiseDistance", true, true,
       pair([](const at::Tensor& a, const at::Tensor& b) { return PairwiseDistance()(a, b); })},
  };
}

bool accepts(const Layer& layer, int64_t rows) {
  try {
    std::vector<at::Tensor> leaves;
    layer.run(rows, leaves).sum().backward();
    for (const at::Tensor& each : leaves) {
      const at::Tensor gradient = each.grad();
      // A parameter without a gradient counts as one with zeros.
      if (!gradient.defined() || gradient.numel() == 0) continue;
      EXPECT_TRUE(at::isfinite(gradient).all().item<bool>()) << layer.name << ", " << rows;
      if (rows == 0) {
        EXPECT_EQ(gradient.count_nonzero().item<int64_t>(), 0) << layer.name;
      }
    }
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

class FewRows : public ::testing::TestWithParam<std::vector<Layer> (*)()> {};
INSTANTIATE_TEST_SUITE_P(Layers, FewRows,
                         ::testing::Values(linear_layers, convolutions, normalizations, pools,
                                           recurrent_layers, attention_layers, activations,
                                           losses));

TEST_P(FewRows, LayersAcceptWhatTheTableSays) {
  torch::manual_seed(2);
  for (const Layer& layer : GetParam()()) {
    EXPECT_EQ(accepts(layer, 0), layer.no_rows) << layer.name << " with no rows";
    EXPECT_EQ(accepts(layer, 1), layer.one_row) << layer.name << " with one row";
    EXPECT_TRUE(accepts(layer, 3)) << layer.name << " with three rows";
  }
}

// ---- the user's message -----------------------------------------------------------

struct FeaturesImpl : Module {
  FeaturesImpl()
      : bn1(register_module("bn1", BatchNorm1d(4))), bn2(register_module("bn2", BatchNorm1d(4))) {}
  at::Tensor forward(const at::Tensor& x) { return bn2(bn1(x)); }
  BatchNorm1d bn1;
  BatchNorm1d bn2;
};
TORCH_MODULE(Features);

struct NetImpl : Module {
  NetImpl()
      : features(register_module("features", Features())),
        attention(register_module("attention", MultiheadAttention(4, 2))) {}
  Features features;
  MultiheadAttention attention;
};

// The text of the LibTorch error that leaves run().
template <class F>
std::string error_of(const Strategy& strategy, const F& step) {
  try {
    strategy.run(step);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "no c10::Error was thrown";
  return {};
}

TEST(FewRowsErrors, NameTheLayersTheReplicaAndTheRemedy) {
  const Strategy strategy = MirroredStrategy({"CPU:0", "CPU:1"});
  const auto model = replicate<NetImpl>(strategy);
  const auto rows = [] { return get_replica_context()->replica_id_in_sync_group() == 0 ? 3 : 1; };
  const std::string one = error_of(strategy, [&] {
    model->features->forward(torch::rand({rows(), 4}));
  });
  for (const char* part :
       {"Expected more than 1 value per channel", "Replica 1 had a single row",
        "'features.bn1' (torch::nn::BatchNorm1dImpl), 'features.bn2' (torch::nn::BatchNorm1dImpl)",
        "drop_remainder", "convert_sync_batch_norm()", "GroupNorm"}) {
    EXPECT_NE(one.find(part), std::string::npos) << part << " is not in:\n" << one;
  }
  const std::string none = error_of(strategy, [&] {
    const at::Tensor x = torch::rand({5, rows() - 1, 4});
    model->attention->forward(x, x, x);
  });
  for (const char* part : {"Replica 1 may have had no rows",
                           "'attention' (torch::nn::MultiheadAttentionImpl)", "drop_remainder"}) {
    EXPECT_NE(none.find(part), std::string::npos) << part << " is not in:\n" << none;
  }
}

TEST(FewRowsErrors, LeaveOtherErrorsAlone) {
  const Strategy strategy = MirroredStrategy({"CPU:0", "CPU:1"});
  const auto model = replicate<NetImpl>(strategy);
  const std::string shapes = error_of(strategy, [&] {
    model->features->bn1->forward(torch::rand({3, 5}));
  });
  EXPECT_EQ(shapes.find("Replica"), std::string::npos) << shapes;
  // A model of a different run does not explain anything.
  const std::string other = error_of(strategy, [] { BatchNorm1d(3)(torch::rand({1, 3})); });
  EXPECT_EQ(other.find("features"), std::string::npos) << other;
  // The type of the error is unchanged.
  EXPECT_THROW(strategy.run([&] {
    model->features->bn1->is_training();
    TORCH_CHECK_INDEX(false, "tensor of 0 elements");
  }),
               c10::IndexError);
}

}  // namespace tutti::few_rows_test
