// SPDX-License-Identifier: Apache-2.0
//
// Compares the update rules with torch::optim on one tensor, and tests that slices may be cut
// anywhere.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/update_rules/update_rule.h"

#include "tests/support/expect_error.h"

namespace tutti::update_rules_test {

// Leaves a tail for vectors of any width.
constexpr int64_t kCount = 1037;

std::vector<SgdRule> sgd_rules() {
  std::vector<SgdRule> rules;
  for (const double decay : {0.0, 0.1}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double dampening : {0.0, 0.3}) {
        rules.push_back(
            {.lr = 0.07, .momentum = momentum, .dampening = dampening, .weight_decay = decay});
      }
    }
    rules.push_back({.lr = 0.07, .momentum = 0.9, .weight_decay = decay, .nesterov = true});
  }
  return rules;
}

std::vector<UpdateRule> other_rules() {
  std::vector<UpdateRule> rules;
  for (const double decay : {0.0, 0.1}) {
    for (const bool flag : {false, true}) {
      rules.push_back(AdamRule{.lr = 0.01, .weight_decay = decay, .amsgrad = flag});
      rules.push_back(AdamWRule{.lr = 0.01, .weight_decay = decay, .amsgrad = flag});
      for (const double value : {0.0, 0.5}) {
        rules.push_back(AdagradRule{.lr = 0.02,
                                    .lr_decay = flag ? 0.1 : 0.0,
                                    .weight_decay = decay,
                                    .initial_accumulator_value = value});
        rules.push_back(
            RmspropRule{.lr = 0.005, .weight_decay = decay, .momentum = value, .centered = flag});
      }
    }
  }
  rules.push_back(AdamRule{.beta1 = 0.5, .beta2 = 0.75, .eps = 1e-3});
  rules.push_back(AdamWRule{.beta1 = 0.5, .beta2 = 0.75, .eps = 1e-3});
  rules.push_back(AdagradRule{.eps = 1e-3});
  rules.push_back(RmspropRule{.lr = 0.01, .alpha = 0.5, .eps = 1e-3});
  return rules;
}

std::vector<UpdateRule> all_rules() {
  std::vector<UpdateRule> rules = other_rules();
  for (const SgdRule& rule : sgd_rules()) rules.push_back(rule);
  return rules;
}

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using Tensors = std::vector<torch::Tensor>;

Optimizer make_optimizer(const SgdRule& r, const Tensors& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(r.lr)
                                                             .momentum(r.momentum)
                                                             .dampening(r.dampening)
                                                             .weight_decay(r.weight_decay)
                                                             .nesterov(r.nesterov));
}
Optimizer make_optimizer(const AdamRule& r, const Tensors& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(r.lr)
                                                              .betas({r.beta1, r.beta2})
                                                              .eps(r.eps)
                                                              .weight_decay(r.weight_decay)
                                                              .amsgrad(r.amsgrad));
}
Optimizer make_optimizer(const AdamWRule& r, const Tensors& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(r.lr)
                                                               .betas({r.beta1, r.beta2})
                                                               .eps(r.eps)
                                                               .weight_decay(r.weight_decay)
                                                               .amsgrad(r.amsgrad));
}
Optimizer make_optimizer(const AdagradRule& r, const Tensors& parameters) {
  return std::make_unique<torch::optim::Adagrad>(
      parameters, torch::optim::AdagradOptions(r.lr)
                      .lr_decay(r.lr_decay)
                      .weight_decay(r.weight_decay)
                      .initial_accumulator_value(r.initial_accumulator_value)
                      .eps(r.eps));
}
Optimizer make_optimizer(const RmspropRule& r, const Tensors& parameters) {
  return std::make_unique<torch::optim::RMSprop>(parameters, torch::optim::RMSpropOptions(r.lr)
                                                                 .alpha(r.alpha)
                                                                 .eps(r.eps)
                                                                 .weight_decay(r.weight_decay)
                                                                 .momentum(r.momentum)
                                                                 .centered(r.centered));
}

std::string describe(const UpdateRule& rule) {
  std::string text = name_of(rule);
  std::visit(
      [&](const auto& r) {
        using Rule = std::decay_t<decltype(r)>;
        text += " decay " + std::to_string(r.weight_decay);
        if constexpr (requires { r.momentum; }) text += " momentum " + std::to_string(r.momentum);
        if constexpr (requires { r.amsgrad; }) text += r.amsgrad ? " amsgrad" : "";
        if constexpr (requires { r.centered; }) text += r.centered ? " centered" : "";
        if constexpr (requires { r.nesterov; }) text += r.nesterov ? " nesterov" : "";
        if constexpr (std::is_same_v<Rule, SgdRule>) {
          text += " dampening " + std::to_string(r.dampening);
        }
        if constexpr (std::is_same_v<Rule, AdagradRule>) {
          text += " lr_decay " + std::to_string(r.lr_decay);
        }
      },
      rule);
  return text;
}

// Numbers whose distance from 0 is between least and most.
template <class T>
std::vector<T> random_numbers(uint64_t seed, double least, double most, int64_t count = kCount) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> distance(least, most);
  std::vector<T> numbers(static_cast<size_t>(count));
  for (T& number : numbers) {
    const double value = distance(engine);
    number = static_cast<T>(engine() % 2 == 0 ? value : -value);
  }
  return numbers;
}

template <class T>
std::vector<T> parameters_before(int64_t count = kCount) {
  return random_numbers<T>(1, 0.2, 3, count);
}

template <class T>
std::vector<T> gradient_of_step(int64_t step, int64_t count = kCount) {
  return random_numbers<T>(static_cast<uint64_t>(100 + step), 0, 2, count);
}

// Parameters and their state, changed by a rule. The first element lies `offset` elements after
// the beginning of an allocation.
template <class T>
class Fused {
 public:
  explicit Fused(UpdateRule rule, const std::vector<T>& parameters = parameters_before<T>(),
                 int64_t offset = 0)
      : rule_(std::move(rule)), offset_(offset), count_(static_cast<int64_t>(parameters.size())) {
    parameter_ = shifted(parameters);
    for (int i = 0; i < num_states(rule_); ++i) {
      const T initial = static_cast<T>(initial_state(rule_, i));
      states_.push_back(shifted(std::vector<T>(parameters.size(), initial)));
    }
  }

  void step(int64_t step, const std::vector<T>& gradient, double factor = 1) {
    step_in_pieces(step, gradient, {count_}, factor);
  }

  // Repeats the lengths until nothing is left.
  void step_in_pieces(int64_t step, const std::vector<T>& gradient,
                      const std::vector<int64_t>& lengths, double factor = 1) {
    const std::vector<T> moved = shifted(gradient);
    int64_t begin = 0;
    for (size_t i = 0; begin < count_; ++i) {
      const int64_t length = std::min(lengths[i % lengths.size()], count_ - begin);
      UpdateSlice<T> slice{.parameter = parameter_.data() + offset_ + begin,
                           .gradient = moved.data() + offset_ + begin,
                           .count = length,
                           .step = step,
                           .gradient_factor = factor};
      for (size_t s = 0; s < states_.size(); ++s) {
        slice.state[s] = states_[s].data() + offset_ + begin;
      }
      apply(rule_, slice);
      begin += length;
    }
  }

  std::vector<T> parameter() const { return {parameter_.begin() + offset_, parameter_.end()}; }
  std::vector<T> state(size_t i) const { return {states_[i].begin() + offset_, states_[i].end()}; }
  size_t states() const { return states_.size(); }
  void fill_states(T value) {
    for (std::vector<T>& state : states_) std::fill(state.begin(), state.end(), value);
  }

 private:
  std::vector<T> shifted(const std::vector<T>& values) const {
    std::vector<T> result(static_cast<size_t>(offset_), T{-1});
    result.insert(result.end(), values.begin(), values.end());
    return result;
  }

  UpdateRule rule_;
  int64_t offset_;
  int64_t count_;
  std::vector<T> parameter_;
  std::vector<std::vector<T>> states_;
};

// The same parameters, changed by torch::optim.
template <class T>
class Reference {
 public:
  explicit Reference(const UpdateRule& rule,
                     const std::vector<T>& parameters = parameters_before<T>())
      : parameter_(tensor_of(parameters).set_requires_grad(true)) {
    optimizer_ =
        std::visit([&](const auto& r) { return make_optimizer(r, Tensors{parameter_}); }, rule);
  }

  void step(const std::vector<T>& gradient) {
    parameter_.mutable_grad() = tensor_of(gradient);
    optimizer_->step();
  }

  std::vector<T> parameter() const {
    const T* begin = parameter_.template data_ptr<T>();
    return {begin, begin + parameter_.numel()};
  }

 private:
  static torch::Tensor tensor_of(const std::vector<T>& values) {
    return torch::tensor(values, torch::dtype(c10::CppTypeToScalarType<T>::value));
  }

  torch::Tensor parameter_;
  Optimizer optimizer_;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// All NaNs count as equal: the compiler chooses which of two NaNs a sum keeps.
template <class T>
bool same_or_nan(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](T x, T y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

// How many representable numbers lie between the two that are farthest apart.
template <class T>
int64_t most_ulps(const std::vector<T>& a, const std::vector<T>& b) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  const auto position = [](T value) {
    Bits bits;
    std::memcpy(&bits, &value, sizeof value);
    return static_cast<int64_t>(bits < 0 ? std::numeric_limits<Bits>::min() - bits : bits);
  };
  int64_t most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(position(a[i]) - position(b[i])));
  }
  return most;
}

template <class T>
double most_relative(const std::vector<T>& a, const std::vector<T>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs((double{a[i]} - double{b[i]}) / double{b[i]}));
  }
  return most;
}

template <class T>
class UpdateRules : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(UpdateRules, Types);

TYPED_TEST(UpdateRules, SgdMatchesLibTorchBitForBit) {
  using T = TypeParam;
  for (const SgdRule& rule : sgd_rules()) {
    Fused<T> fused(rule);
    Reference<T> reference(rule);
    for (int64_t step = 1; step <= 100; ++step) {
      const std::vector<T> gradient = gradient_of_step<T>(step);
      fused.step(step, gradient);
      reference.step(gradient);
      ASSERT_TRUE(same_bits(fused.parameter(), reference.parameter()))
          << describe(rule) << ", step " << step;
    }
    EXPECT_FALSE(same_bits(fused.parameter(), parameters_before<T>()));
  }
}

// LibTorch cuts large tensors into pieces for its threads.
TYPED_TEST(UpdateRules, SgdMatchesLibTorchBitForBitForLargeTensors) {
  using T = TypeParam;
  constexpr int64_t kLarge = 100'003;
  const SgdRule rule{.lr = 0.07, .momentum = 0.9, .weight_decay = 0.1};
  const std::vector<T> before = parameters_before<T>(kLarge);
  Fused<T> fused(rule, before);
  Reference<T> reference(rule, before);
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<T> gradient = gradient_of_step<T>(step, kLarge);
    fused.step(step, gradient);
    reference.step(gradient);
  }
  EXPECT_TRUE(same_bits(fused.parameter(), reference.parameter()));
}

TYPED_TEST(UpdateRules, OthersStayWithinTwoUlpOfLibTorchInOneStep) {
  using T = TypeParam;
  for (const UpdateRule& rule : other_rules()) {
    Fused<T> fused(rule);
    Reference<T> reference(rule);
    const std::vector<T> gradient = gradient_of_step<T>(1);
    fused.step(1, gradient);
    reference.step(gradient);
    EXPECT_LE(most_ulps(fused.parameter(), reference.parameter()), 2) << describe(rule);
    EXPECT_FALSE(same_bits(fused.parameter(), parameters_before<T>()));
  }
}

TYPED_TEST(UpdateRules, OthersStayNearLibTorchOverAHundredSteps) {
  using T = TypeParam;
  // Far enough from 0 that a hundred steps do not cross it: near it, no two roundings agree.
  const std::vector<T> before = random_numbers<T>(2, 2, 4);
  for (const UpdateRule& rule : other_rules()) {
    Fused<T> fused(rule, before);
    Reference<T> reference(rule, before);
    for (int64_t step = 1; step <= 100; ++step) {
      const std::vector<T> gradient = gradient_of_step<T>(step);
      fused.step(step, gradient);
      reference.step(gradient);
    }
    EXPECT_LE(most_relative(fused.parameter(), reference.parameter()), 1e-6) << describe(rule);
  }
}

TYPED_TEST(UpdateRules, TreatNansAndInfinitiesAsLibTorchDoes) {
  using T = TypeParam;
  const T inf = std::numeric_limits<T>::infinity();
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const std::array<T, 6> specials = {nan, inf, -inf, T{0}, -T{0}, std::numeric_limits<T>::max()};
  for (const UpdateRule& rule : all_rules()) {
    std::vector<T> before = parameters_before<T>();
    std::copy(specials.begin(), specials.end(), before.begin() + 20);
    Fused<T> fused(rule, before);
    Reference<T> reference(rule, before);
    for (int64_t step = 1; step <= 3; ++step) {
      std::vector<T> gradient = gradient_of_step<T>(step);
      // In the second step, in a vector and in the tail.
      if (step == 2) std::copy(specials.begin(), specials.end(), gradient.begin() + 3);
      if (step == 2) std::copy(specials.begin(), specials.end(), gradient.end() - 6);
      fused.step(step, gradient);
      reference.step(gradient);
      for (const size_t i : {3, 20, 1031}) {
        EXPECT_EQ(std::isnan(fused.parameter()[i]), std::isnan(reference.parameter()[i]));
      }
    }
    if (std::holds_alternative<SgdRule>(rule)) {
      EXPECT_TRUE(same_or_nan(fused.parameter(), reference.parameter())) << describe(rule);
    }
    EXPECT_TRUE(std::isnan(fused.parameter()[3])) << describe(rule);
  }
}

TYPED_TEST(UpdateRules, SlicesMayBeCutAnywhere) {
  using T = TypeParam;
  for (const UpdateRule& rule : all_rules()) {
    Fused<T> whole(rule);
    Fused<T> cut(rule);
    Fused<T> single(rule);
    for (int64_t step = 1; step <= 4; ++step) {
      const std::vector<T> gradient = gradient_of_step<T>(step);
      whole.step(step, gradient, 0.7);
      cut.step_in_pieces(step, gradient, {1, 7, 13, 0, 32, 129}, 0.7);
      single.step_in_pieces(step, gradient, {1}, 0.7);
    }
    EXPECT_TRUE(same_bits(cut.parameter(), whole.parameter())) << describe(rule);
    EXPECT_TRUE(same_bits(single.parameter(), whole.parameter())) << describe(rule);
    for (size_t i = 0; i < whole.states(); ++i) {
      EXPECT_TRUE(same_bits(cut.state(i), whole.state(i))) << describe(rule) << ", state " << i;
      EXPECT_TRUE(same_bits(single.state(i), whole.state(i))) << describe(rule) << ", state " << i;
    }
  }
}

TYPED_TEST(UpdateRules, MemoryNeedNotBeAligned) {
  using T = TypeParam;
  for (const UpdateRule& rule : all_rules()) {
    Fused<T> aligned(rule);
    for (int64_t step = 1; step <= 2; ++step) aligned.step(step, gradient_of_step<T>(step));
    for (const int64_t offset : {1, 3, 5}) {
      Fused<T> moved(rule, parameters_before<T>(), offset);
      for (int64_t step = 1; step <= 2; ++step) moved.step(step, gradient_of_step<T>(step));
      EXPECT_TRUE(same_bits(moved.parameter(), aligned.parameter())) << describe(rule);
    }
  }
}

TYPED_TEST(UpdateRules, TheFactorMultipliesTheGradientFirst) {
  using T = TypeParam;
  for (const double factor : {1.0 / 3, 1.0 / 1024, 0.0}) {
    for (const UpdateRule& rule : all_rules()) {
      Fused<T> fused(rule);
      Fused<T> expected(rule);
      for (int64_t step = 1; step <= 3; ++step) {
        std::vector<T> gradient = gradient_of_step<T>(step);
        fused.step(step, gradient, factor);
        for (T& value : gradient) value = static_cast<T>(factor) * value;
        expected.step(step, gradient);
      }
      EXPECT_TRUE(same_bits(fused.parameter(), expected.parameter())) << describe(rule);
    }
  }
}

TYPED_TEST(UpdateRules, SgdStartsItsMomentumAtTheGradient) {
  using T = TypeParam;
  Fused<T> fused(SgdRule{.lr = 0.5, .momentum = 0.9, .dampening = 0.5});
  fused.fill_states(std::numeric_limits<T>::quiet_NaN());
  const std::vector<T> gradient = gradient_of_step<T>(1);
  fused.step(1, gradient);
  EXPECT_TRUE(same_bits(fused.state(0), gradient));
  const T before = fused.state(0)[0];
  fused.step(2, gradient);
  EXPECT_NEAR(fused.state(0)[0], T(0.9) * before + T(0.5) * gradient[0], 1e-6);
}

TYPED_TEST(UpdateRules, AnEmptySliceNeedsNoMemory) {
  using T = TypeParam;
  for (const UpdateRule& rule : all_rules()) EXPECT_NO_THROW(apply(rule, UpdateSlice<T>{}));
}

TYPED_TEST(UpdateRules, RejectInvalidSlices) {
  using T = TypeParam;
  T value = 1;
  UpdateSlice<T> slice{.parameter = &value, .gradient = &value, .state = {&value}, .count = 1};
  UpdateRule rule = AdamRule{};
  EXPECT_TUTTI_ERROR(apply(rule, slice), ErrorCode::kInvalidArgument, "adam", "2 states", "null");
  slice.state[1] = &value;
  slice.step = 0;
  EXPECT_TUTTI_ERROR(apply(rule, slice), ErrorCode::kInvalidArgument, "adam", "at step 0");
  slice.step = 1;
  slice.count = -1;
  EXPECT_TUTTI_ERROR(apply(rule, slice), ErrorCode::kInvalidArgument, "-1 elements");
  EXPECT_EQ(value, T{1});
}

TEST(UpdateRule, ReportsItsStates) {
  EXPECT_EQ(num_states(SgdRule{}), 0);
  EXPECT_EQ(num_states(SgdRule{.momentum = 0.9}), 1);
  EXPECT_EQ(num_states(AdamRule{}), 2);
  EXPECT_EQ(num_states(AdamRule{.amsgrad = true}), 3);
  EXPECT_EQ(num_states(AdamWRule{}), 2);
  EXPECT_EQ(num_states(AdamWRule{.amsgrad = true}), 3);
  EXPECT_EQ(num_states(AdagradRule{}), 1);
  EXPECT_EQ(num_states(RmspropRule{}), 1);
  EXPECT_EQ(num_states(RmspropRule{.centered = true}), 2);
  EXPECT_EQ(num_states(RmspropRule{.momentum = 0.9, .centered = true}), 3);
  for (const UpdateRule& rule : all_rules()) {
    const auto* adagrad = std::get_if<AdagradRule>(&rule);
    for (int i = 0; i < num_states(rule); ++i) {
      const double expected = adagrad == nullptr ? 0 : adagrad->initial_accumulator_value;
      EXPECT_EQ(initial_state(rule, i), expected);
    }
    EXPECT_LE(num_states(rule), kMaxRuleStates);
  }
}

TEST(UpdateRule, OrdersItsStateAsDocumented) {
  Fused<double> fused(RmspropRule{.lr = 0.01, .momentum = 0.5, .centered = true});
  const std::vector<double> gradient = gradient_of_step<double>(1);
  fused.step(1, gradient);
  const double g = gradient[0];
  EXPECT_NEAR(fused.state(0)[0], 0.01 * g * g, 1e-12);
  EXPECT_NEAR(fused.state(1)[0], g / (std::sqrt(0.01 * g * g - 0.0001 * g * g) + 1e-8), 1e-9);
  EXPECT_NEAR(fused.state(2)[0], 0.01 * g, 1e-12);

  Fused<double> adam(AdamRule{.amsgrad = true});
  adam.step(1, gradient);
  adam.step(2, std::vector<double>(gradient.size(), 0.0));
  EXPECT_NEAR(adam.state(0)[0], 0.9 * 0.1 * g, 1e-12);
  EXPECT_NEAR(adam.state(1)[0], 0.999 * 0.001 * g * g, 1e-12);
  EXPECT_NEAR(adam.state(2)[0], 0.001 * g * g, 1e-12);
}

TEST(UpdateRule, HasTheDefaultsOfLibTorch) {
  const torch::optim::AdamOptions adam;
  EXPECT_EQ(AdamRule{}, (AdamRule{adam.lr(), std::get<0>(adam.betas()), std::get<1>(adam.betas()),
                                  adam.eps(), adam.weight_decay(), adam.amsgrad()}));
  const torch::optim::AdamWOptions w;
  EXPECT_EQ(AdamWRule{}, (AdamWRule{w.lr(), std::get<0>(w.betas()), std::get<1>(w.betas()), w.eps(),
                                    w.weight_decay(), w.amsgrad()}));
  const torch::optim::AdagradOptions a;
  EXPECT_EQ(AdagradRule{}, (AdagradRule{a.lr(), a.lr_decay(), a.weight_decay(),
                                        a.initial_accumulator_value(), a.eps()}));
  const torch::optim::RMSpropOptions r;
  EXPECT_EQ(RmspropRule{}, (RmspropRule{r.lr(), r.alpha(), r.eps(), r.weight_decay(), r.momentum(),
                                        r.centered()}));
  const torch::optim::SGDOptions s(1e-3);
  EXPECT_EQ(SgdRule{},
            (SgdRule{s.lr(), s.momentum(), s.dampening(), s.weight_decay(), s.nesterov()}));
}

TEST(UpdateRule, HasANameAndIsAValue) {
  EXPECT_EQ(name_of(SgdRule{}), "sgd");
  EXPECT_EQ(name_of(AdamRule{}), "adam");
  EXPECT_EQ(name_of(AdamWRule{}), "adamw");
  EXPECT_EQ(name_of(AdagradRule{}), "adagrad");
  EXPECT_EQ(name_of(RmspropRule{}), "rmsprop");
  EXPECT_EQ(UpdateRule(AdamRule{.lr = 0.5}), UpdateRule(AdamRule{.lr = 0.5}));
  EXPECT_NE(UpdateRule(AdamRule{.lr = 0.5}), UpdateRule(AdamRule{}));
  EXPECT_NE(UpdateRule(AdamRule{}), UpdateRule(AdamWRule{}));
}

}  // namespace tutti::update_rules_test
