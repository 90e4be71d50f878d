// SPDX-License-Identifier: Apache-2.0
//
// Random numbers inside run depend only on the seed and the replica.

#include "tutti/strategy/replica_random.h"

#include <atomic>
#include <functional>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/eventually.h"
#include "tests/support/tensors.h"

namespace tutti::replica_random_test {

using test::bit_equal;
using test::cpus;
using test::eventually;
using test::my_id;

struct Source {
  const char* name;
  std::function<at::Tensor()> draw;
};

// All the calls with which a program may draw numbers, without a generator.
std::vector<Source> sources() {
  const auto weights = [] { return at::arange(1, 65, at::kFloat); };
  return {
      {"randn", [] { return torch::randn({64}); }},
      {"rand", [] { return torch::rand({64}); }},
      {"randint", [] { return torch::randint(1 << 30, {64}); }},
      {"randperm", [] { return torch::randperm(64); }},
      {"rand_like", [] { return torch::rand_like(at::ones({64})); }},
      {"randn_like", [] { return torch::randn_like(at::ones({64})); }},
      {"multinomial", [=] { return at::multinomial(weights(), 40, /*replacement=*/true); }},
      {"bernoulli", [] { return at::bernoulli(at::full({64}, 0.5)); }},
      {"normal", [] { return at::normal(at::zeros({64}), at::ones({64})); }},
      {"normal_", [] { return at::empty({64}).normal_(1, 2); }},
      {"uniform_", [] { return at::empty({64}).uniform_(); }},
      {"random_", [] { return at::empty({64}, at::kLong).random_(); }},
      {"bernoulli_", [] { return at::empty({64}).bernoulli_(0.5); }},
      {"exponential_", [] { return at::empty({64}).exponential_(); }},
      {"poisson", [] { return at::poisson(at::full({64}, 40.)); }},
      {"dropout", [] { return at::dropout(at::ones({64}), 0.5, /*train=*/true); }},
      {"nn::Dropout",
       [] {
         torch::nn::Dropout dropout(0.5);
         return dropout(at::ones({64}));
       }},
      {"nn::Linear", [] { return torch::nn::Linear(8, 8)->weight.detach().clone(); }},
      {"orthogonal_",
       [] {
         return torch::nn::init::orthogonal_(at::empty({8, 8}));
       }},
  };
}

PerReplica<at::Tensor> draw_seeded(const Strategy& strategy, const Source& source) {
  at::manual_seed(1234);
  return strategy.run([&] { return source.draw(); });
}

TEST(ReplicaRandom, NumbersAreEqualAfterTheSameSeed) {
  const MirroredStrategy strategy(cpus(3));
  for (const Source& source : sources()) {
    const auto first = draw_seeded(strategy, source);
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto again = draw_seeded(strategy, source);
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(bit_equal(again[i], first[i])) << source.name;
    }
  }
}

TEST(ReplicaRandom, NumbersDifferBetweenReplicasAndBetweenRuns) {
  const MirroredStrategy strategy(cpus(3));
  for (const Source& source : sources()) {
    const auto first = draw_seeded(strategy, source);
    const auto next = strategy.run([&] { return source.draw(); });
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_FALSE(at::equal(first[i], first[(i + 1) % 3])) << source.name;
      EXPECT_FALSE(at::equal(first[i], next[i])) << source.name;
      EXPECT_FALSE(at::equal(first[i], next[(i + 1) % 3])) << source.name;
    }
  }
}

TEST(ReplicaRandom, NumbersDoNotDependOnHowManyRunAtOnce) {
  const MirroredStrategy all(cpus(4));
  for (const int concurrent : {1, 2}) {
    const MirroredStrategy some(cpus(4), {.runner = {.concurrent_replicas = concurrent}});
    for (const Source& source : sources()) {
      const auto expected = draw_seeded(all, source);
      const auto actual = draw_seeded(some, source);
      for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(bit_equal(actual[i], expected[i])) << source.name;
    }
  }
}

TEST(ReplicaRandom, NumbersDoNotDependOnWhoDrawsFirst) {
  const MirroredStrategy strategy(cpus(2));
  const auto draw_with_first = [&](int first) {
    at::manual_seed(7);
    std::atomic<bool> drawn = false;
    return strategy.run([&] {
      if (my_id() != first) {
        EXPECT_TRUE(eventually([&] { return drawn.load(); }));
      }
      const at::Tensor numbers = torch::randn({100});
      drawn.store(true);
      return numbers;
    });
  };
  const auto zero_first = draw_with_first(0);
  const auto one_first = draw_with_first(1);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(bit_equal(zero_first[i], one_first[i]));
}

TEST(ReplicaRandom, NumbersInMergeCallDoNotDependOnWhoComesLast) {
  const MirroredStrategy strategy(cpus(3));
  const auto draw_with_last = [&](int last) {
    at::manual_seed(11);
    std::atomic<int> before = 0;
    return strategy.run([&] {
      const at::Tensor first = torch::rand({5});
      if (my_id() == last) {
        EXPECT_TRUE(eventually([&] { return before.load() == 2; }));
      }
      before.fetch_add(1);
      const at::Tensor merged =
          get_replica_context()->merge_call([](const Strategy&) { return torch::rand({5}); });
      return at::stack({first, merged, torch::rand({5})});
    });
  };
  const auto expected = draw_with_last(0);
  EXPECT_TRUE(at::equal(expected[0][1], expected[2][1]));
  for (int round = 0; round < 30; ++round) {
    const auto actual = draw_with_last(round % 3);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(bit_equal(actual[i], expected[i])) << round;
  }
}

TEST(ReplicaRandom, AModuleSharedByReplicasDropsDifferentElements) {
  const MirroredStrategy strategy(cpus(2));
  torch::nn::Dropout dropout(0.5);
  const auto step = [&] {
    const at::Tensor x = at::ones({1000}).requires_grad_(true);
    const at::Tensor y = dropout(x);
    y.sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), y));  // the same mask in both directions
    return y.detach();
  };
  at::manual_seed(3);
  const auto first = strategy.run(step);
  at::manual_seed(3);
  const auto second = strategy.run(step);
  EXPECT_TRUE(bit_equal(first[0], second[0]));
  EXPECT_TRUE(bit_equal(first[1], second[1]));
  EXPECT_FALSE(at::equal(first[0], first[1]));
  const double kept = first[0].count_nonzero().item<double>();
  EXPECT_GT(kept, 400);
  EXPECT_LT(kept, 600);
}

TEST(ReplicaRandom, ExplicitGeneratorsAreRespected) {
  const MirroredStrategy strategy(cpus(2));
  at::Generator plain = at::detail::createCPUGenerator(99);
  const at::Tensor expected = at::randn({8}, plain);
  at::manual_seed(5);
  const auto actual = strategy.run([] {
    at::Generator mine = at::detail::createCPUGenerator(99);
    const at::Tensor numbers = at::randn({8}, mine);
    return std::pair(numbers, at::rand({4}));
  });
  at::manual_seed(5);
  const auto without = strategy.run([] { return at::rand({4}); });
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(bit_equal(actual[i].first, expected));
    EXPECT_TRUE(bit_equal(actual[i].second, without[i]));  // nothing was drawn from the replica's
  }
}

TEST(ReplicaRandom, ARunTakesExactlyOneNumberFromTheDefaultGenerator) {
  const MirroredStrategy strategy(cpus(3));
  at::manual_seed(21);
  draw_random_key();
  draw_random_key();
  const at::Tensor expected = at::rand({4});
  at::manual_seed(21);
  strategy.run([] { static_cast<void>(torch::randn({1000})); });
  strategy.run([] {});
  EXPECT_TRUE(bit_equal(at::rand({4}), expected));
  at::manual_seed(21);
  const auto generator = at::detail::getDefaultCPUGenerator();
  at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  EXPECT_TRUE(bit_equal(at::rand({4}), expected));
}

TEST(ReplicaRandom, OneReplicaDrawsWhatAPlainProgramDraws) {
  const OneDeviceStrategy one("CPU:0");
  const MirroredStrategy mirrored({"CPU:2"});
  for (const Strategy& strategy : {get_strategy(), Strategy(one), Strategy(mirrored)}) {
    for (const Source& source : sources()) {
      at::manual_seed(1234);
      const at::Tensor plain = source.draw();
      EXPECT_TRUE(bit_equal(draw_seeded(strategy, source).only(), plain)) << source.name;
    }
  }
}

TEST(ReplicaRandom, TheCallersThreadDrawsFromTheDefaultGeneratorAfterARunThatFailed) {
  const MirroredStrategy strategy(cpus(2));
  EXPECT_THROW(strategy.run([] {
    static_cast<void>(torch::rand({3}));
    throw std::out_of_range("x");
  }),
               std::out_of_range);
  at::manual_seed(8);
  const at::Tensor first = torch::rand({3});
  const at::Tensor next = torch::rand({3});
  at::manual_seed(8);
  EXPECT_TRUE(bit_equal(torch::rand({3}), first));
  EXPECT_TRUE(bit_equal(torch::rand({3}), next));
  EXPECT_FALSE(at::equal(first, next));
}

TEST(ReplicaRandom, NumbersAreTheSameUnderInferenceMode) {
  const MirroredStrategy strategy(cpus(2));
  for (const Source& source : sources()) {
    const auto expected = draw_seeded(strategy, source);
    const c10::InferenceMode inference;
    const auto actual = draw_seeded(strategy, source);
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(bit_equal(actual[i], expected[i])) << source.name;
  }
}

TEST(ReplicaRandom, ASeedInsideAReplicaDoesNotDisturbTheOthers) {
  const MirroredStrategy strategy(cpus(2));
  at::manual_seed(31);
  const auto expected = strategy.run([] { return torch::rand({4}); });
  at::manual_seed(31);
  const auto actual = strategy.run([] {
    if (my_id() == 0) at::manual_seed(77);
    return torch::rand({4});
  });
  EXPECT_TRUE(bit_equal(actual[1], expected[1]));
}

}  // namespace tutti::replica_random_test
