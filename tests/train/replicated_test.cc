// SPDX-License-Identifier: Apache-2.0
//
// Modules on many replicas: how copies are made, what is equal, and where each copy may be used.

#include "tutti/train/replicated.h"

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/strategy/local_extended.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

#include "tests/support/expect_error.h"

namespace tutti::replicated_test {

std::vector<std::string> cpus(int count) {
  std::vector<std::string> devices;
  for (int i = 0; i < count; ++i) devices.push_back("CPU:" + std::to_string(i));
  return devices;
}

Strategy mirrored(int count) { return MirroredStrategy(cpus(count)); }

// A plain module: registered in the constructor, without clone().
struct NetImpl : torch::nn::Module {
  NetImpl(int64_t in, int64_t out)
      : first(register_module("first", torch::nn::Linear(in, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        last(register_module("last", torch::nn::Linear(8, out))) {}
  at::Tensor forward(const at::Tensor& x) { return last(norm(first(x)).relu()); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

void expect_equal_copies(const ReplicatedModules& modules) {
  for (size_t r = 1; r < modules.size(); ++r) {
    for (size_t i = 0; i < modules.parameter_names().size(); ++i) {
      const at::Tensor& first = modules.parameter(0, i);
      const at::Tensor& other = modules.parameter(r, i);
      EXPECT_TRUE(at::equal(first, other)) << modules.parameter_names()[i];
      EXPECT_EQ(first.requires_grad(), other.requires_grad()) << modules.parameter_names()[i];
      EXPECT_TRUE(other.is_leaf());
      EXPECT_NE(first.data_ptr(), other.data_ptr()) << modules.parameter_names()[i];
    }
    for (size_t i = 0; i < modules.buffer_names().size(); ++i) {
      EXPECT_TRUE(at::equal(modules.buffer(0, i), modules.buffer(r, i)))
          << modules.buffer_names()[i];
      EXPECT_NE(modules.buffer(0, i).data_ptr(), modules.buffer(r, i).data_ptr());
    }
  }
}

// ---- making copies ----------------------------------------------------------------

class ReplicatedSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Replicas, ReplicatedSizes, ::testing::Values(1, 2, 3, 4));

TEST_P(ReplicatedSizes, CopiesOfAPlainModuleAreEqualAndSeparate) {
  const Strategy strategy = mirrored(GetParam());
  const auto model = replicate<Net>(strategy, 3, 2);
  EXPECT_EQ(model.modules()->size(), static_cast<size_t>(GetParam()));
  EXPECT_EQ(model.modules()->parameter_names(),
            (std::vector<std::string>{"first.weight", "first.bias", "norm.weight", "norm.bias",
                                      "last.weight", "last.bias"}));
  EXPECT_EQ(model.modules()->buffer_names(),
            (std::vector<std::string>{"norm.running_mean", "norm.running_var",
                                      "norm.num_batches_tracked"}));
  expect_equal_copies(*model.modules());
  EXPECT_TRUE(strategy == model.strategy());
}

TEST_P(ReplicatedSizes, EveryReplicaUsesItsOwnCopy) {
  const Strategy strategy = mirrored(GetParam());
  const auto model = replicate<Net>(strategy, 3, 2);
  const at::Tensor x = at::ones({4, 3});
  const auto seen = strategy.run([&] {
    const at::Tensor y = model(x);
    EXPECT_EQ(&*model, model.operator->());
    return std::pair(y, static_cast<int64_t>(reinterpret_cast<uintptr_t>(&*model)));
  });
  std::set<int64_t> objects;
  for (size_t r = 0; r < seen.size(); ++r) {
    EXPECT_TRUE(at::equal(seen[r].first, seen[0].first));
    objects.insert(seen[r].second);
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(dynamic_cast<NetImpl*>(model.modules()->copies()[r].get())),
        static_cast<uintptr_t>(seen[r].second));
  }
  EXPECT_EQ(objects.size(), seen.size());
}

TEST_P(ReplicatedSizes, RandomNumbersGoOnAsAfterOneModule) {
  torch::manual_seed(5);
  const Net plain(3, 2);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(5);
  const auto model = replicate<Net>(mirrored(GetParam()), 3, 2);
  EXPECT_TRUE(at::equal(torch::rand({4}), expected));
  EXPECT_TRUE(at::equal(model.primary().last->weight, plain->last->weight));
}

TEST_P(ReplicatedSizes, AdoptingDrawsNoRandomNumbers) {
  torch::manual_seed(5);
  const torch::nn::Sequential plain(torch::nn::Linear(3, 4), torch::nn::Dropout(0.5),
                                    torch::nn::Linear(4, 1));
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const auto model = adopt(mirrored(GetParam()), plain);
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  EXPECT_EQ(&model.primary(), plain.ptr().get());
  expect_equal_copies(*model.modules());
}

TEST(Replicated, UnregisteredRandomStateIsEqualToo) {
  struct Masked : torch::nn::Module {
    Masked() : mask(torch::rand({5})) {}
    at::Tensor mask;
  };
  const auto model = replicate<Masked>(mirrored(3));
  model.for_each([&](Masked& copy) { EXPECT_TRUE(at::equal(copy.mask, model.primary().mask)); });
}

TEST(Replicated, HoldersImplsSequentialsAndFactoriesAllWork) {
  const Strategy strategy = mirrored(2);
  const auto by_impl = replicate<NetImpl>(strategy, 3, 2);
  const auto by_options = replicate<torch::nn::Linear>(strategy, torch::nn::LinearOptions(3, 2));
  const auto by_holder = replicate(strategy, [] { return Net(3, 2); });
  const auto by_pointer = replicate(strategy, [] { return std::make_shared<NetImpl>(3, 2); });
  const auto sequential = replicate(strategy, [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::ReLU(), Net(4, 2));
  });
  const at::Tensor x = at::ones({4, 3});
  strategy.run([&] {
    EXPECT_EQ(by_impl(x).sizes(), at::IntArrayRef({4, 2}));
    EXPECT_EQ(by_options->forward(x).size(1), 2);
    EXPECT_EQ(by_holder(x).size(1), 2);
    EXPECT_EQ(by_pointer(x).size(1), 2);
    EXPECT_EQ(sequential->forward(x).size(1), 2);
  });
  EXPECT_EQ(sequential.modules()->parameter_names()[2], "2.first.weight");
  expect_equal_copies(*sequential.modules());
}

TEST(Replicated, HandlesAreCheapAndMeanTheSameModules) {
  const auto model = replicate<Net>(mirrored(2), 3, 2);
  const auto copy = model;  // NOLINT(performance-unnecessary-copy-initialization): what is tested
  EXPECT_EQ(copy.modules(), model.modules());
  EXPECT_LE(sizeof(copy), 3 * sizeof(void*));
}

TEST(Replicated, CustomFirstValuesReachAllCopies) {
  const auto model = replicate(mirrored(3), [] {
    auto net = Net(3, 2);
    torch::nn::init::constant_(net->last->weight, 0.5);
    net->last->weight.requires_grad_(false);
    net->eval();
    return net;
  });
  expect_equal_copies(*model.modules());
  model.for_each([](NetImpl& copy) {
    EXPECT_FALSE(copy.last->weight.requires_grad());
    EXPECT_TRUE(copy.first->weight.requires_grad());
    EXPECT_FALSE(copy.norm->is_training());
  });
}

// ---- tied weights -----------------------------------------------------------------

// The three ways to tie weights in C++: one module twice, one tensor registered twice, and a member
// that is replaced behind the registry's back.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(5, 3))),
        again(register_module("again", embedding.ptr())),
        decoder(register_module("decoder",
                                torch::nn::Linear(torch::nn::LinearOptions(3, 5).bias(false)))),
        scale(register_parameter("scale", embedding->weight)) {
    decoder->weight = embedding->weight;
  }
  at::Tensor forward(const at::Tensor& ids) {
    return decoder(embedding(ids) + again(ids)) * scale.sum();
  }
  torch::nn::Embedding embedding;
  torch::nn::Embedding again;
  torch::nn::Linear decoder;
  at::Tensor scale;
};

TEST_P(ReplicatedSizes, TiedWeightsStayTied) {
  torch::manual_seed(3);
  auto plain = std::make_shared<TiedImpl>();
  torch::manual_seed(3);
  const Strategy strategy = mirrored(GetParam());
  const auto model = replicate<TiedImpl>(strategy);
  const at::Tensor ids = at::arange(5, at::kLong);
  plain->forward(ids).square().sum().backward();
  strategy.run([&] {
    model(ids).square().sum().backward();
    EXPECT_TRUE(model->decoder->weight.is_same(model->embedding->weight));
    EXPECT_TRUE(at::equal(model->embedding->weight.grad(), plain->embedding->weight.grad()));
  });
  // One leaf under its first name, and the decoder's own weight, which is unused.
  EXPECT_EQ(model.modules()->parameter_names(),
            (std::vector<std::string>{"scale", "decoder.weight"}));
}

// A module that LibTorch can clone, with a tie that clone() loses.
struct TiedCloneImpl : torch::nn::Cloneable<TiedCloneImpl> {
  TiedCloneImpl() { reset(); }
  void reset() override {
    encoder = register_module("encoder", torch::nn::Linear(4, 4));
    decoder = register_module("decoder", torch::nn::Linear(4, 4));
    decoder->weight = encoder->weight;
  }
  at::Tensor forward(const at::Tensor& x) { return decoder(encoder(x)); }
  torch::nn::Linear encoder{nullptr};
  torch::nn::Linear decoder{nullptr};
};
TORCH_MODULE(TiedClone);

TEST_P(ReplicatedSizes, AdoptTiesClonesAgain) {
  const Strategy strategy = mirrored(GetParam());
  TiedClone plain;
  plain->encoder->bias.requires_grad_(false);
  const at::Tensor x = torch::randn({6, 4});
  const auto loss = [&](TiedCloneImpl& module) { return module.forward(x).square().sum(); };
  loss(*plain).backward();
  const at::Tensor expected = plain->encoder->weight.grad().clone();
  plain->zero_grad();
  const auto model = adopt(strategy, plain);
  strategy.run([&] {
    loss(*model).backward();
    EXPECT_TRUE(model->decoder->weight.is_same(model->encoder->weight));
    EXPECT_TRUE(at::equal(model->encoder->weight.grad(), expected));
    EXPECT_FALSE(model->encoder->bias.requires_grad());
  });
  expect_equal_copies(*model.modules());
}

TEST(Replicated, AdoptTiesRegisteredWeightsAgain) {
  const torch::nn::Linear shared(4, 4);
  const torch::nn::Sequential plain(shared, torch::nn::Tanh(), shared);
  const auto model = adopt(mirrored(3), plain);
  EXPECT_EQ(model.modules()->parameter_names(), (std::vector<std::string>{"0.weight", "0.bias"}));
  model.for_each([](torch::nn::SequentialImpl& copy) {
    const auto& first = copy.at<torch::nn::LinearImpl>(0);
    EXPECT_TRUE(first.weight.is_same(copy.at<torch::nn::LinearImpl>(2).weight));
    EXPECT_TRUE(first.weight.is_same(copy.named_parameters()["2.weight"]));
  });
}

TEST(Replicated, AdoptRefusesTiesItCannotMake) {
  const torch::nn::LSTM shared(4, 4);
  const torch::nn::ModuleList plain(shared, shared);
  EXPECT_TUTTI_ERROR(adopt(mirrored(2), plain), ErrorCode::kInvalidArgument,
                     "adopt: '1.weight_ih_l0' is tied to '0.weight_ih_l0'",
                     "Give adopt() a factory");
  EXPECT_EQ(adopt(mirrored(1), plain).modules()->size(), 1U);
  torch::nn::Linear changed(3, 2);
  changed->weight = torch::rand({2, 3});
  EXPECT_TUTTI_ERROR(adopt(mirrored(2), changed), ErrorCode::kInvalidArgument,
                     "'weight' is not the tensor that the layer uses");
}

// ---- existing modules -------------------------------------------------------------

TEST_P(ReplicatedSizes, AdoptKeepsFlagsOfNestedModules) {
  torch::nn::ModuleList plain(torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::Dropout()),
                              torch::nn::BatchNorm1d(3));
  plain->to(at::kDouble);
  plain[0]->eval();
  plain->named_parameters()["0.0.weight"].requires_grad_(false);
  const auto model = adopt(mirrored(GetParam()), plain);
  model.for_each([&](torch::nn::ModuleListImpl& copy, int replica) {
    if (replica == 0) {
      EXPECT_EQ(&copy, plain.ptr().get());
    }
    EXPECT_TRUE(copy.is_training());
    EXPECT_FALSE(copy[0]->is_training());
    EXPECT_FALSE(copy.named_modules()["0.1"]->is_training());
    EXPECT_TRUE(copy[1]->is_training());
    EXPECT_FALSE(copy.named_parameters()["0.0.weight"].requires_grad());
    EXPECT_TRUE(copy.named_parameters()["0.0.bias"].requires_grad());
    EXPECT_EQ(copy.named_parameters()["1.weight"].scalar_type(), at::kDouble);
  });
  expect_equal_copies(*model.modules());
}

TEST(Replicated, AdoptOfAPlainModuleNeedsAFactory) {
  Net plain(3, 2);
  EXPECT_TUTTI_ERROR(adopt(mirrored(2), plain), ErrorCode::kInvalidArgument,
                     "adopt: LibTorch cannot clone tutti::replicated_test::NetImpl",
                     "Give adopt() a factory as the third argument");
  plain->eval();
  plain->first->bias.requires_grad_(false);
  const auto model = adopt(mirrored(3), plain, [] { return Net(3, 2); });
  expect_equal_copies(*model.modules());
  model.for_each([](NetImpl& copy) { EXPECT_FALSE(copy.norm->is_training()); });
  EXPECT_EQ(&model.primary(), plain.ptr().get());
}

// LibTorch's clone() makes it a TiedCloneImpl.
struct DerivedCloneImpl : TiedCloneImpl {};

TEST(Replicated, AdoptFindsClonesOfAnotherType) {
  EXPECT_TUTTI_ERROR(adopt(mirrored(2), std::make_shared<DerivedCloneImpl>()),
                     ErrorCode::kInvalidArgument,
                     "a tutti::replicated_test::DerivedCloneImpl, into",
                     "tutti::replicated_test::TiedCloneImpl", "Give adopt() a factory");
}

// ---- copies that are not copies ---------------------------------------------------

TEST(Replicated, SharedMemoryIsFoundAndNamed) {
  const Strategy strategy = mirrored(2);
  const Net one(3, 2);
  EXPECT_TUTTI_ERROR(replicate(strategy, [&] { return one; }), ErrorCode::kInvalidArgument,
                     "replicate: the modules of replicas 0 and 1 are the same object",
                     "parameter 'first.weight'", "captured module");
  const torch::nn::Linear layer(3, 2);
  EXPECT_TUTTI_ERROR(replicate<torch::nn::Sequential>(strategy, torch::nn::Linear(2, 3), layer),
                     ErrorCode::kInvalidArgument, "replicas 0 and 1 share the memory of parameter",
                     "An argument of replicate() holds a tensor or module");
  struct Table : torch::nn::Module {
    Table() {
      static const at::Tensor table = torch::rand({3});
      register_buffer("table", table);
    }
  };
  EXPECT_TUTTI_ERROR(replicate<Table>(strategy), ErrorCode::kInvalidArgument,
                     "share the memory of buffer 'table'", "static variable");
  EXPECT_EQ(replicate<Table>(mirrored(1)).modules()->size(), 1U);
}

TEST(Replicated, CopiesThatDifferAreRefused) {
  const Strategy strategy = mirrored(2);
  int64_t width = 3;
  EXPECT_TUTTI_ERROR(replicate(strategy, [&] { return torch::nn::Linear(width++, 2); }),
                     ErrorCode::kInvalidArgument, "parameter 0 is 'weight'", "[2, 3]", "[2, 4]",
                     "constructed in the same way");
  bool bias = false;
  EXPECT_TUTTI_ERROR(
      replicate(strategy,
                [&] {
                  bias = !bias;
                  return torch::nn::Linear(torch::nn::LinearOptions(3, 2).bias(bias));
                }),
      ErrorCode::kInvalidArgument, "parameter 1 is 'bias'", "missing on replica 1");
  EXPECT_TUTTI_ERROR(replicate(strategy, [] { return torch::nn::Linear(nullptr); }),
                     ErrorCode::kInvalidArgument, "the module is empty");
  EXPECT_TUTTI_ERROR(
      adopt(strategy, torch::nn::Linear(3, 2), [] { return torch::nn::Linear(2, 2); }),
      ErrorCode::kInvalidArgument, "adopt: the modules of replicas 0 and 1 differ");
}

// ---- where a call is allowed ------------------------------------------------------

TEST(Replicated, ArrowThrowsOutsideOfRunWithAdvice) {
  const Strategy strategy = mirrored(2);
  const auto model = replicate<Net>(strategy, 3, 2);
  EXPECT_TUTTI_ERROR(model->forward(at::ones({2, 3})), ErrorCode::kFailedPrecondition,
                     "Replicated::operator->", "tutti::replicated_test::NetImpl",
                     "MirroredStrategy(CPU:0, CPU:1)", "outside of Strategy::run",
                     "primary() reads", "for_each(), train() and eval() reach all copies");
  EXPECT_TUTTI_ERROR(model(at::ones({2, 3})), ErrorCode::kFailedPrecondition, "operator()");
  EXPECT_TUTTI_ERROR(strategy.scope([&] { return &*model; }), ErrorCode::kFailedPrecondition,
                     "operator*", "in cross-replica context");
  EXPECT_TUTTI_ERROR(strategy.run([&] {
    get_replica_context()->merge_call([&](const Strategy&) { model->eval(); });
  }),
                     ErrorCode::kFailedPrecondition, "in cross-replica context");
}

TEST(Replicated, ArrowInsideAnotherStrategyNamesBoth) {
  const auto model = replicate<Net>(mirrored(2), 3, 2);
  EXPECT_TUTTI_ERROR(OneDeviceStrategy("CPU:3").run([&] { model->eval(); }),
                     ErrorCode::kFailedPrecondition, "MirroredStrategy(CPU:0, CPU:1)",
                     "in replica 0 of OneDeviceStrategy(CPU:3)");
  EXPECT_TUTTI_ERROR(mirrored(2).run([&] { model->eval(); }), ErrorCode::kFailedPrecondition,
                     "(another object)");
}

TEST(Replicated, TheDefaultStrategyNeedsNoRun) {
  const auto model = replicate<Net>(get_strategy(), 3, 2);
  EXPECT_EQ(model->forward(at::ones({2, 3})).size(1), 2);
  const auto one = replicate<Net>(OneDeviceStrategy("CPU:0"), 3, 2);
  EXPECT_TUTTI_ERROR(one->eval(), ErrorCode::kFailedPrecondition, "OneDeviceStrategy(CPU:0)");
}

TEST(Replicated, ThreadsOfAReplicaUseItsCopy) {
  const Strategy strategy = mirrored(2);
  const auto model = replicate<Net>(strategy, 3, 2);
  strategy.run([&] {
    NetImpl* const mine = &*model;
    ReplicaContext* const context = get_replica_context();
    NetImpl* seen = nullptr;
    std::thread([&] {
      const auto frame = context->enter();
      seen = &*model;
    }).join();
    EXPECT_EQ(seen, mine);
  });
}

TEST(Replicated, ThrowsInsideAReplicaForWhatConcernsAllComponents) {
  const Strategy strategy = mirrored(2);
  const auto model = replicate<Net>(strategy, 3, 2);
  const auto refused = [&](auto call, const char* name) {
    EXPECT_TUTTI_ERROR(strategy.run([&] { call(); }), ErrorCode::kFailedPrecondition, name,
                       "called inside replica 0 of MirroredStrategy(CPU:0, CPU:1)");
  };
  refused([&] { model.train(); }, "Replicated::train");
  refused([&] { model.to(at::kDouble); }, "Replicated::to");
  refused([&] { model.primary(); }, "Replicated::primary");
  refused([&] { model.for_each([](NetImpl&) {}); }, "Replicated::for_each");
  refused([&] { model.synchronize_buffers(); }, "Replicated::synchronize_buffers");
  refused([&] { model.copy_from_primary(); }, "Replicated::copy_from_primary");
  EXPECT_TUTTI_ERROR(strategy.run([&] { replicate<Net>(strategy, 3, 2); }),
                     ErrorCode::kFailedPrecondition, "replicate: called inside run()",
                     "before run()");
  EXPECT_TUTTI_ERROR(mirrored(2).scope([&] { adopt(strategy, torch::nn::Linear(1, 1)); }),
                     ErrorCode::kFailedPrecondition, "adopt: mixing different strategies");
  EXPECT_EQ(strategy.scope([&] { return replicate<Net>(strategy, 3, 2); }).modules()->size(), 2U);
}

// ---- all copies -------------------------------------------------------------------

TEST_P(ReplicatedSizes, TrainEvalAndToReachAllCopies) {
  const Strategy strategy = mirrored(GetParam());
  const auto model = replicate<Net>(strategy, 3, 2);
  model.eval();
  EXPECT_FALSE(model.is_training());
  model.for_each([](NetImpl& copy) { EXPECT_FALSE(copy.norm->is_training()); });
  model.train();
  const at::Tensor handle = model.parameter("last.bias")[0];
  model.to(at::kDouble);
  EXPECT_EQ(handle.scalar_type(), at::kDouble);
  strategy.run([&] {
    EXPECT_TRUE(model->norm->is_training());
    EXPECT_EQ(model(at::ones({3, 3}, at::kDouble)).scalar_type(), at::kDouble);
    EXPECT_EQ(model->norm->num_batches_tracked.scalar_type(), at::kDouble);  // as Module::to does
  });
  for (size_t r = 0; r < model.modules()->size(); ++r) {
    EXPECT_TRUE(model.modules()->parameter(r, 0).is_same(
        model.modules()->copies()[r]->named_parameters()["first.weight"]));
  }
}

TEST(Replicated, ParametersAreFoundByName) {
  const Strategy strategy = mirrored(2);
  const auto model = replicate<Net>(strategy, 3, 2);
  EXPECT_EQ(model.named_parameters().size(), 6U);
  EXPECT_EQ(model.named_parameters()[5].first, "last.bias");
  strategy.run([&] {
    EXPECT_TRUE(model.parameter("last.bias").value().is_same(model->last->bias));
    model->norm->running_mean.fill_(get_replica_context()->replica_id_in_sync_group());
  });
  EXPECT_TRUE(at::equal(model.buffer("norm.running_mean")[1], at::ones({8})));
  EXPECT_TUTTI_ERROR(model.parameter("lost.bias"), ErrorCode::kNotFound, "'lost.bias'",
                     "last.weight, last.bias");
  EXPECT_TUTTI_ERROR(model.buffer("bias"), ErrorCode::kNotFound, "no buffer 'bias'");
}

TEST(Replicated, LoadedValuesOfThePrimaryReachAllCopies) {
  const Net source(3, 2);
  std::stringstream file;
  torch::save(source, file);
  const auto model = replicate<Net>(mirrored(3), 3, 2);
  auto target = model.primary_ptr();
  torch::load(target, file);
  model.copy_from_primary();
  expect_equal_copies(*model.modules());
  EXPECT_TRUE(at::equal(model.parameter("first.weight")[2], source->first->weight));
}

// ---- buffers ----------------------------------------------------------------------

struct BuffersImpl : torch::nn::Module {
  BuffersImpl()
      : mean(register_buffer("mean", at::zeros({3}, at::kFloat))),
        half(register_buffer("half", at::zeros({2}, at::kHalf))),
        count(register_buffer("count", at::zeros({}, at::kLong))),
        flag(register_buffer("flag", at::zeros({2}, at::kBool))),
        constant(register_buffer("constant", at::full({5}, 0.1F))),
        strided(register_buffer("strided", at::zeros({2, 3}, at::kDouble).t())) {}
  at::Tensor mean, half, count, flag, constant, strided;
};

TEST_P(ReplicatedSizes, BuffersComeToAgree) {
  const int replicas = GetParam();
  for (const size_t members : {1, 2, 3}) {
    const auto model = replicate<BuffersImpl>(mirrored(replicas));
    double sum = 0;
    model.for_each([&](BuffersImpl& copy, int r) {
      const double value = 0.25 * r * r;
      sum += value;
      copy.mean.fill_(value);
      copy.half.fill_(value);
      copy.strided.fill_(value);
      copy.count.fill_(r + 7);
      copy.flag.fill_(r % 2 == 1);
    });
    if (members == 1) {
      model.synchronize_buffers();
    } else {
      for (size_t m = 0; m < members; ++m) model.modules()->synchronize_buffers({}, m, members);
    }
    const double mean = sum / replicas;
    model.for_each([&](BuffersImpl& copy, int r) {
      EXPECT_TRUE(at::equal(copy.mean, at::full({3}, static_cast<float>(mean)))) << r;
      EXPECT_TRUE(at::equal(copy.half, at::full({2}, mean).to(at::kHalf))) << r;
      EXPECT_TRUE(at::allclose(copy.strided, at::full({3, 2}, mean, at::kDouble), 1e-15)) << r;
      EXPECT_EQ(copy.count.item<int64_t>(), 7) << r;
      EXPECT_FALSE(copy.flag.any().item<bool>()) << r;
      EXPECT_TRUE(at::equal(copy.constant, at::full({5}, 0.1F))) << r;
    });
  }
}

// ---- one memory for the parameters of all replicas --------------------------------

TEST(Replicated, ParametersOfCentralStorageLieInOneMemory) {
  const Strategy like = mirrored(3);
  const Strategy strategy(std::make_shared<LocalExtended>(
      "SharingStrategy", like.extended().worker_devices(), nullptr, ReplicaRunnerOptions{},
      StrategyTraits{.shares_parameters = true}));
  const auto model = replicate<Net>(strategy, 3, 2);
  const auto check = [&] {
    for (size_t i = 0; i < model.modules()->parameter_names().size(); ++i) {
      const at::Tensor& first = model.modules()->parameter(0, i);
      for (size_t r = 1; r < 3; ++r) {
        const at::Tensor& other = model.modules()->parameter(r, i);
        EXPECT_EQ(first.data_ptr(), other.data_ptr());
        EXPECT_FALSE(first.is_same(other));
        EXPECT_TRUE(other.is_leaf() && other.requires_grad());
      }
    }
    EXPECT_NE(model.modules()->buffer(0, 0).data_ptr(), model.modules()->buffer(1, 0).data_ptr());
  };
  check();
  model.to(at::kDouble);
  check();
  strategy.run([&] { model(at::ones({2, 3}, at::kDouble)).sum().backward(); });
  EXPECT_NE(model.parameter("last.bias")[0].grad().data_ptr(),
            model.parameter("last.bias")[1].grad().data_ptr());
}

}  // namespace tutti::replicated_test
