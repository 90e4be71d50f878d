// SPDX-License-Identifier: Apache-2.0
//
// The loops of the update rules for baseline x86-64 and for AVX2: each rounds as its instruction
// set does, and they differ only in rounding.

#include "tutti/update_rules/internal/update_kernels.h"

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::update_kernels_test {

using internal::AdagradTerms;
using internal::AdamTerms;
using internal::RmspropTerms;
using internal::SgdTerms;
using internal::UpdateKernels;

constexpr int64_t kCount = 1037;

// Bounded, so that no update reaches a parameter's distance from 0.
template <class T>
struct Memory {
  explicit Memory(int64_t step) {
    std::mt19937_64 engine(7);
    std::uniform_real_distribution<double> number(0.25, 1);
    for (std::vector<T>* values : {&parameter, &gradient, &states[0], &states[1], &states[2]}) {
      for (int64_t i = 0; i < kCount; ++i) values->push_back(static_cast<T>(number(engine)));
    }
    for (size_t i = 0; i < gradient.size(); i += 2) gradient[i] = -gradient[i];
    slice = {.parameter = parameter.data(),
             .gradient = gradient.data(),
             .state = {states[0].data(), states[1].data(), states[2].data()},
             .count = kCount,
             .step = step};
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::vector<T> parameter, gradient;
  std::array<std::vector<T>, 3> states;
  UpdateSlice<T> slice;
};

// One element of SGD with momentum and decay, in plain or fused operations.
template <class T>
T plain_sgd(const SgdTerms& terms, T p, T g, T buffer, bool fused) {
  const auto multiply_add = [fused](T a, T b, T c) {
    return fused ? std::fma(a, b, c) : a * b + c;
  };
  const T momentum = static_cast<T>(terms.momentum);
  g = multiply_add(p, static_cast<T>(terms.weight_decay), g);
  buffer = multiply_add(g, static_cast<T>(terms.undamped), momentum * buffer);
  const T direction = terms.nesterov ? multiply_add(buffer, momentum, g) : buffer;
  return multiply_add(direction, static_cast<T>(terms.minus_lr), p);
}

template <class T>
void expect_plain_sgd(const UpdateKernels<T>& kernels, bool fused) {
  for (const bool nesterov : {false, true}) {
    const SgdTerms terms{.minus_lr = -0.01,
                         .momentum = 0.9,
                         .undamped = 0.7,
                         .weight_decay = 0.1,
                         .nesterov = nesterov};
    const Memory<T> before(2);
    const Memory<T> memory(2);
    kernels.sgd(terms, memory.slice);
    for (size_t i = 0; i < memory.parameter.size(); ++i) {
      const T expected =
          plain_sgd(terms, before.parameter[i], before.gradient[i], before.states[0][i], fused);
      ASSERT_EQ(memory.parameter[i], expected) << "element " << i << ", nesterov " << nesterov;
    }
  }
}

// Calls run(kernels, slice) with both and compares the results.
template <class T, class Run>
void expect_near(const UpdateKernels<T>& a, const UpdateKernels<T>& b, const Run& run) {
  const Memory<T> first(3);
  const Memory<T> second(3);
  run(a, first.slice);
  run(b, second.slice);
  const auto near = [](const std::vector<T>& x, const std::vector<T>& y) {
    for (size_t i = 0; i < x.size(); ++i) {
      const T tolerance = 4 * std::numeric_limits<T>::epsilon() * std::abs(y[i]);
      ASSERT_NEAR(x[i], y[i], tolerance) << "element " << i;
    }
  };
  near(first.parameter, second.parameter);
  EXPECT_NE(first.parameter, Memory<T>(3).parameter);
}

// No flag selects the loop of a different instruction set.
template <class T>
void expect_all_near(const UpdateKernels<T>& a, const UpdateKernels<T>& b) {
  for (const double decay : {0.0, 0.1}) {
    for (const bool flag : {false, true}) {
      expect_near<T>(a, b, [&](const UpdateKernels<T>& kernels, const UpdateSlice<T>& slice) {
        kernels.sgd(SgdTerms{-0.01, flag ? 0.9 : 0, 0.7, decay, flag}, slice);
      });
      expect_near<T>(a, b, [&](const UpdateKernels<T>& kernels, const UpdateSlice<T>& slice) {
        kernels.adam(AdamTerms{-0.01, 0.9, 0.1, 0.99, 0.01, 0.5, 1e-8, decay, 1 - decay, flag},
                     slice);
      });
      expect_near<T>(a, b, [&](const UpdateKernels<T>& kernels, const UpdateSlice<T>& slice) {
        kernels.adagrad(AdagradTerms{-0.01, decay, 1e-8}, slice);
      });
      expect_near<T>(a, b, [&](const UpdateKernels<T>& kernels, const UpdateSlice<T>& slice) {
        // Enough eps that the root of a small difference does not magnify its rounding.
        kernels.rmsprop(RmspropTerms{-0.01, 0.1, 0.9, 1, decay, flag ? 0.5 : 0, false}, slice);
      });
    }
  }
}

TEST(UpdateKernels, BaselineRoundsLikeThePlainLoop) {
#if defined(__aarch64__)
  constexpr bool kFused = true;  // part of every aarch64
#else
  constexpr bool kFused = false;
#endif
  expect_plain_sgd(internal::update_kernels_baseline<float>(), kFused);
  expect_plain_sgd(internal::update_kernels_baseline<double>(), kFused);
}

#if defined(__x86_64__)

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

template <class T>
void expect_distinct() {
  const UpdateKernels<T>& a = internal::update_kernels_baseline<T>();
  const UpdateKernels<T>& b = internal::update_kernels_avx2<T>();
  EXPECT_NE(a.sgd, b.sgd) << "the linker merged the two";
  EXPECT_NE(a.adam, b.adam);
  EXPECT_NE(a.adagrad, b.adagrad);
  EXPECT_NE(a.rmsprop, b.rmsprop);
  EXPECT_EQ(internal::update_kernels<T>().sgd, has_avx2() ? b.sgd : a.sgd);
}

TEST(UpdateKernels, EachInstructionSetHasItsOwnKernels) {
  expect_distinct<float>();
  expect_distinct<double>();
}

TEST(UpdateKernels, Avx2FusesLikeThePlainLoopWithFma) {
  if (!has_avx2()) GTEST_SKIP() << "this CPU has no AVX2 with FMA";
  expect_plain_sgd(internal::update_kernels_avx2<float>(), true);
  expect_plain_sgd(internal::update_kernels_avx2<double>(), true);
}

TEST(UpdateKernels, InstructionSetsDifferOnlyInRounding) {
  if (!has_avx2()) GTEST_SKIP() << "this CPU has no AVX2 with FMA";
  expect_all_near(internal::update_kernels_baseline<float>(),
                  internal::update_kernels_avx2<float>());
  expect_all_near(internal::update_kernels_baseline<double>(),
                  internal::update_kernels_avx2<double>());
}

#endif

}  // namespace tutti::update_kernels_test
