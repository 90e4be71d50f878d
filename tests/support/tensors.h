// SPDX-License-Identifier: Apache-2.0
//
// Tensors for tests: from lists, from plain random numbers with a fixed seed, and compared bit by
// bit.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tutti/nest/print.h"

namespace tutti::test {

/// A vector: tensor({1.f, 2.f}) is float32, tensor({1., 2.}) float64, tensor({1, 2}) int32.
template <class T>
at::Tensor tensor(std::initializer_list<T> values) {
  at::Tensor result = at::empty({static_cast<int64_t>(values.size())},
                                at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  std::copy(values.begin(), values.end(), result.data_ptr<T>());
  return result;
}

/// A tensor without dimensions.
template <class T>
at::Tensor scalar(T value) {
  return tensor({value}).reshape({});
}

/// Equal in dtype, shape and every byte: distinguishes -0.0 from 0.0 and one NaN from another.
inline ::testing::AssertionResult bit_equal(const at::Tensor& a, const at::Tensor& b) {
  const auto failure = [&] {
    return ::testing::AssertionFailure() << to_text(a) << "\n  is not\n" << to_text(b) << "\n  ";
  };
  if (!a.defined() || !b.defined()) {
    return a.defined() == b.defined() ? ::testing::AssertionSuccess() : failure();
  }
  if (a.scalar_type() != b.scalar_type()) return failure() << "(different dtypes)";
  if (a.sizes() != b.sizes()) return failure() << "(different shapes)";
  const at::Tensor left = a.detach().cpu().contiguous();
  const at::Tensor right = b.detach().cpu().contiguous();
  const size_t size = left.element_size();
  const auto* x = static_cast<const char*>(left.data_ptr());
  const auto* y = static_cast<const char*>(right.data_ptr());
  if (left.numel() == 0 || std::memcmp(x, y, left.nbytes()) == 0) {
    return ::testing::AssertionSuccess();
  }
  for (int64_t i = 0; i < left.numel(); ++i) {
    const size_t at = static_cast<size_t>(i) * size;
    if (std::memcmp(x + at, y + at, size) != 0) {
      return failure() << "(first difference at element " << i << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

/// Numbers whose sums depend on the order of addition: random signs and magnitudes.
class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : state_(seed) {}

  double real() {
    const uint64_t bits = next();
    const double fraction = static_cast<double>(bits >> 11) * 0x1p-53;
    const double scale = 1.0 / static_cast<double>(int64_t{1} << (bits % 9));  // 1 to 1 / 256
    return (2 * fraction - 1) * 4 * scale;
  }
  template <class T>
  T of() {
    if constexpr (c10::is_complex<T>::value) {
      const double re = real();
      const double im = real();
      return T(static_cast<typename T::value_type>(re), static_cast<typename T::value_type>(im));
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(next());  // any bits
    } else {
      return static_cast<T>(static_cast<std::conditional_t<sizeof(T) == 8, double, float>>(real()));
    }
  }

 private:
  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

/// Calls fn.template operator()<T>() with the C++ type of a dtype that can be reduced.
template <class F>
void with_type(at::ScalarType dtype, F&& fn) {
  switch (dtype) {
    case at::kHalf:
      return fn.template operator()<at::Half>();
    case at::kBFloat16:
      return fn.template operator()<at::BFloat16>();
    case at::kFloat:
      return fn.template operator()<float>();
    case at::kDouble:
      return fn.template operator()<double>();
    case at::kChar:
      return fn.template operator()<int8_t>();
    case at::kShort:
      return fn.template operator()<int16_t>();
    case at::kInt:
      return fn.template operator()<int32_t>();
    case at::kLong:
      return fn.template operator()<int64_t>();
    case at::kByte:
      return fn.template operator()<uint8_t>();
    case at::kComplexFloat:
      return fn.template operator()<c10::complex<float>>();
    case at::kComplexDouble:
      return fn.template operator()<c10::complex<double>>();
    default:
      ADD_FAILURE() << "no C++ type for " << dtype;
  }
}

/// The same numbers for the same seed, on every machine.
at::Tensor random_tensor(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed);

}  // namespace tutti::test
