// SPDX-License-Identifier: Apache-2.0
//
// The kernels for every x86-64 and those for AVX2 give the same bits, key by key.

#include "tutti/collectives/kernels/reduction_kernels.h"

#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

using internal::Combine;
using internal::Element;
using internal::Kernel;
using internal::KernelKey;
using internal::kMaxFanIn;

constexpr std::array kElements = {Element::kF16, Element::kBF16, Element::kF32, Element::kF64,
                                  Element::kI8,  Element::kI16,  Element::kI32, Element::kI64,
                                  Element::kU8,  Element::kC64,  Element::kC128};
constexpr std::array kCombines = {Combine::kSum, Combine::kSumDivide, Combine::kMin, Combine::kMax,
                                  Combine::kProduct};
constexpr int64_t kMostElements = 1100;
constexpr size_t kWidest = 16;

using Bytes = std::vector<unsigned char>;

// A number that is finite, and at times subnormal.
double finite_number(std::mt19937_64& engine) {
  const double fraction = static_cast<double>(engine() >> 11) * 0x1p-53 - 0.5;
  return engine() % 16 == 0 ? fraction * 0x1p-15 : fraction * 64;
}

template <class T>
void write_numbers(Bytes& bytes, std::mt19937_64& engine) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    const T value = static_cast<T>(static_cast<float>(finite_number(engine)));
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
}

// Puts infinities and NaNs at a few places, no two at the same one: which of two NaNs a sum keeps
// is the compiler's choice.
template <class T>
void write_specials(Bytes& bytes, size_t input) {
  const T inf(std::numeric_limits<float>::infinity());
  const T nan(std::numeric_limits<float>::quiet_NaN());
  const auto put = [&](size_t i, T value) {
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof value);
  };
  put(10 + input, nan);
  put(20 + input, inf);
  put(30, input % 2 == 0 ? inf : T(-inf));
}

template <class T>
void write_floats(Bytes& bytes, std::mt19937_64& engine, size_t input) {
  write_numbers<T>(bytes, engine);
  write_specials<T>(bytes, input);
}

Bytes input_of(Element element, size_t input) {
  std::mt19937_64 engine(1000 * static_cast<uint64_t>(element) + input);
  Bytes bytes(kMostElements * kWidest);
  switch (element) {
    case Element::kF16:
      write_floats<c10::Half>(bytes, engine, input);
      break;
    case Element::kBF16:
      write_floats<c10::BFloat16>(bytes, engine, input);
      break;
    case Element::kF32:
    case Element::kC64:
      write_floats<float>(bytes, engine, input);
      break;
    case Element::kF64:
    case Element::kC128:
      write_floats<double>(bytes, engine, input);
      break;
    default:
      for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(engine());
  }
  return bytes;
}

std::array<Bytes, kMaxFanIn> run_kernel(Kernel kernel, const std::array<Bytes, kMaxFanIn>& inputs,
                                        int64_t count) {
  std::array<Bytes, kMaxFanIn> outputs;
  std::array<const void*, kMaxFanIn> in{};
  std::array<void*, kMaxFanIn> out{};
  for (size_t i = 0; i < kMaxFanIn; ++i) {
    outputs[i].assign(kMostElements * kWidest, 0x5A);
    in[i] = inputs[i].data();
    out[i] = outputs[i].data();
  }
  kernel(in.data(), out.data(), count, 3);
  return outputs;
}

TEST(ReductionKernels, HaveNoKernelForKeysOutOfRange) {
  for (const int fan_in : {0, -1, kMaxFanIn + 1}) {
    EXPECT_EQ(internal::find_kernel_baseline(
                  {Element::kF32, Element::kF32, Combine::kSum, fan_in, false}),
              nullptr);
  }
  EXPECT_EQ(internal::find_kernel_baseline({Element::kF32, Element::kF64, Combine::kSum, 2, false}),
            nullptr);
  EXPECT_EQ(internal::find_kernel_baseline({Element::kC64, Element::kC64, Combine::kMin, 2, false}),
            nullptr);
}

#if defined(__x86_64__)

TEST(ReductionKernels, GiveTheSameBitsWithBothInstructionSets) {
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("f16c") == 0) {
    GTEST_SKIP() << "this CPU has no AVX2";
  }
  int compared = 0;
  for (const Element in : kElements) {
    std::array<Bytes, kMaxFanIn> inputs;
    for (size_t i = 0; i < kMaxFanIn; ++i) inputs[i] = input_of(in, i);
    for (const Element out : kElements) {
      for (const Combine combine : kCombines) {
        for (int fan_in = 1; fan_in <= kMaxFanIn; ++fan_in) {
          for (const bool write_all : {false, true}) {
            const KernelKey key{in, out, combine, fan_in, write_all};
            const Kernel baseline = internal::find_kernel_baseline(key);
            const Kernel avx2 = internal::find_kernel_avx2(key);
            ASSERT_EQ(baseline == nullptr, avx2 == nullptr);
            if (baseline == nullptr) continue;
            EXPECT_NE(baseline, avx2) << "the linker took one for both";
            ++compared;
            for (const int64_t count : {0, 1, 7, 8, 9, 33, 511, 512, 513, 1100}) {
              ASSERT_TRUE(run_kernel(baseline, inputs, count) == run_kernel(avx2, inputs, count))
                  << "in " << int(in) << " out " << int(out) << " combine " << int(combine)
                  << " fan-in " << fan_in << " all " << write_all << " count " << count;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 200);
}

#endif

}  // namespace
}  // namespace tutti
