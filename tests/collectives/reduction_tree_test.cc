// SPDX-License-Identifier: Apache-2.0
//
// The tree in host memory, against its recursive definition, bit by bit.

#include "tutti/collectives/reduction_tree.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

namespace tutti {
namespace {

using test::expected_reduction;
using test::kAllOps;

constexpr int64_t kMaxCount = 5000;
constexpr int64_t kGuard = 8;  // elements before and after, which must not be touched
constexpr unsigned char kGuardByte = 0xA5;

template <class T>
class Buffers {
 public:
  explicit Buffers(size_t replicas) : data_(replicas, std::vector<T>(kMaxCount + 2 * kGuard)) {
    clear();
  }

  void clear() {
    for (auto& each : data_) {
      std::memset(static_cast<void*>(each.data()), kGuardByte, each.size() * sizeof(T));
    }
  }
  void fill_randomly(uint64_t seed) {
    for (size_t r = 0; r < data_.size(); ++r) {
      test::RandomNumbers random(seed * 1000 + r);
      for (int64_t i = 0; i < kMaxCount; ++i) at(r)[i] = random.of<T>();
    }
  }

  T* at(size_t replica) { return data_[replica].data() + kGuard; }

  std::vector<const void*> inputs() {
    std::vector<const void*> pointers;
    for (size_t r = 0; r < data_.size(); ++r) pointers.push_back(at(r));
    return pointers;
  }
  std::vector<void*> outputs() {
    std::vector<void*> pointers;
    for (size_t r = 0; r < data_.size(); ++r) pointers.push_back(at(r));
    return pointers;
  }

  // Nothing outside [begin, end) differs from `before`.
  bool untouched_outside(const Buffers& before, int64_t begin, int64_t end) const {
    const auto bytes = [](int64_t n) { return static_cast<size_t>(n) * sizeof(T); };
    for (size_t r = 0; r < data_.size(); ++r) {
      const auto* mine = data_[r].data();
      const auto* theirs = before.data_[r].data();
      const int64_t after = kGuard + end;
      const auto total = static_cast<int64_t>(data_[r].size());
      if (std::memcmp(mine, theirs, bytes(kGuard + begin)) != 0) return false;
      if (std::memcmp(mine + after, theirs + after, bytes(total - after)) != 0) return false;
    }
    return true;
  }

 private:
  std::vector<std::vector<T>> data_;
};

template <class T>
class ReductionTree : public ::testing::Test {
 protected:
  static constexpr at::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

  static bool same_bits(const T* a, const std::vector<T>& b, int64_t begin, int64_t end) {
    return std::memcmp(a + begin, b.data() + begin, static_cast<size_t>(end - begin) * sizeof(T)) ==
           0;
  }

  // Inputs of `replicas`, missing ones as zeros.
  static std::vector<T> expected(ReduceOp op, Buffers<T>& inputs, size_t replicas,
                                 const std::vector<const void*>& present) {
    std::vector<T> result(kMaxCount);
    for (int64_t i = 0; i < kMaxCount; ++i) {
      result[static_cast<size_t>(i)] = expected_reduction<T>(
          op, replicas, [&](size_t r) { return present[r] == nullptr ? T(0) : inputs.at(r)[i]; });
    }
    return result;
  }
};

using Types = ::testing::Types<at::Half, at::BFloat16, float, double, int8_t, int16_t, int32_t,
                               int64_t, uint8_t, c10::complex<float>, c10::complex<double>>;
TYPED_TEST_SUITE(ReductionTree, Types);

TYPED_TEST(ReductionTree, FollowsTheRecursiveDefinition) {
  using T = TypeParam;
  for (size_t n = 1; n <= 17; ++n) {
    Buffers<T> inputs(n);
    inputs.fill_randomly(n);
    for (const ReduceOp op : kAllOps) {
      if (!test::is_defined<T>(op)) continue;
      const std::vector<T> wanted = this->expected(op, inputs, n, inputs.inputs());
      for (const int64_t count : {0, 1, 3, 1023, 1024, 1025, 5000}) {
        SCOPED_TRACE(message(op, " of ", n, " replicas, ", count, " elements"));
        Buffers<T> untouched(1);
        Buffers<T> one(1);
        reduce_tree(op, this->kDtype, inputs.inputs(), one.outputs(), 0, count);
        ASSERT_TRUE(this->same_bits(one.at(0), wanted, 0, count)) << "one output";
        ASSERT_TRUE(one.untouched_outside(untouched, 0, count)) << "one output";

        Buffers<T> in_place = inputs;
        reduce_tree(op, this->kDtype, in_place.inputs(), in_place.outputs(), 0, count);
        Buffers<T> separate(n);
        const Buffers<T> before = separate;
        reduce_tree(op, this->kDtype, inputs.inputs(), separate.outputs(), 0, count);
        for (size_t r = 0; r < n; ++r) {
          ASSERT_TRUE(this->same_bits(in_place.at(r), wanted, 0, count)) << "in place, " << r;
          ASSERT_TRUE(this->same_bits(separate.at(r), wanted, 0, count)) << "separate, " << r;
        }
        ASSERT_TRUE(in_place.untouched_outside(inputs, 0, count)) << "in place";
        ASSERT_TRUE(separate.untouched_outside(before, 0, count)) << "separate";
      }
    }
  }
}

TYPED_TEST(ReductionTree, GivesARangeTheBitsOfTheWhole) {
  using T = TypeParam;
  for (const size_t n : {1, 2, 3, 4, 5, 9, 17}) {
    Buffers<T> inputs(n);
    inputs.fill_randomly(100 + n);
    for (const ReduceOp op : kAllOps) {
      if (!test::is_defined<T>(op)) continue;
      const std::vector<T> wanted = this->expected(op, inputs, n, inputs.inputs());
      const std::vector<std::pair<int64_t, int64_t>> ranges = {
          {0, 1}, {1, 1024}, {1000, 3100}, {4999, 5000}, {7, 7}, {2048, 4096}, {3, 2}};
      for (const auto& [begin, end] : ranges) {
        SCOPED_TRACE(message(op, " of ", n, " replicas, [", begin, ", ", end, ")"));
        const int64_t last = std::max(begin, end);
        Buffers<T> in_place = inputs;
        reduce_tree(op, this->kDtype, in_place.inputs(), in_place.outputs(), begin, end);
        ASSERT_TRUE(in_place.untouched_outside(inputs, begin, last));
        if (begin >= end) {
          ASSERT_TRUE(in_place.untouched_outside(inputs, 0, 0)) << "nothing to do";
          continue;
        }
        for (size_t r = 0; r < n; ++r) {
          ASSERT_TRUE(this->same_bits(in_place.at(r), wanted, begin, end)) << r;
        }
      }
    }
  }
}

TYPED_TEST(ReductionTree, AllowsAnOutputToBeAnyInput) {
  using T = TypeParam;
  for (const size_t n : {2, 4, 7}) {
    Buffers<T> inputs(n);
    inputs.fill_randomly(200 + n);
    const std::vector<T> wanted = this->expected(ReduceOp::kSum, inputs, n, inputs.inputs());
    for (size_t r = 0; r < n; ++r) {
      Buffers<T> buffers = inputs;
      Buffers<T> extra(1);
      const std::vector<void*> outputs = {extra.at(0), buffers.at(r)};
      reduce_tree(ReduceOp::kSum, this->kDtype, buffers.inputs(), outputs, 0, kMaxCount);
      ASSERT_TRUE(this->same_bits(buffers.at(r), wanted, 0, kMaxCount)) << n << ' ' << r;
      ASSERT_TRUE(this->same_bits(extra.at(0), wanted, 0, kMaxCount)) << n << ' ' << r;
    }
  }
}

TYPED_TEST(ReductionTree, TreatsAMissingInputAsAZeroLeaf) {
  using T = TypeParam;
  for (size_t n = 1; n <= 17; ++n) {
    Buffers<T> inputs(n);
    inputs.fill_randomly(300 + n);
    for (const unsigned pattern : {0x1u, 0x2u, 0x4u, 0x1fffeu, 0x15555u, 0x10001u, 0x1ffffu}) {
      std::vector<const void*> present = inputs.inputs();
      for (size_t r = 0; r < n; ++r) {
        if ((pattern >> r & 1) != 0) present[r] = nullptr;
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
        if (!test::is_defined<T>(op)) continue;
        SCOPED_TRACE(message(op, " of ", n, " replicas, pattern ", pattern));
        const std::vector<T> wanted = this->expected(op, inputs, n, present);
        Buffers<T> results(2);
        reduce_tree(op, this->kDtype, present, results.outputs(), 0, kMaxCount);
        ASSERT_TRUE(this->same_bits(results.at(0), wanted, 0, kMaxCount));
        ASSERT_TRUE(this->same_bits(results.at(1), wanted, 0, kMaxCount));
      }
    }
  }
}

template <class T>
class ReductionTreeOfFloats : public ::testing::Test {
 protected:
  static constexpr at::ScalarType kDtype = c10::CppTypeToScalarType<T>::value;

  // Reduces element 0 of one-element inputs; null stands for a missing one.
  static T reduce(ReduceOp op, const std::vector<const T*>& inputs) {
    const std::vector<const void*> pointers(inputs.begin(), inputs.end());
    T result(1);
    void* output = &result;
    reduce_tree(op, kDtype, pointers, std::span<void* const>(&output, 1), 0, 1);
    return result;
  }
};

using FloatTypes = ::testing::Types<at::Half, at::BFloat16, float, double>;
TYPED_TEST_SUITE(ReductionTreeOfFloats, FloatTypes);

TYPED_TEST(ReductionTreeOfFloats, MinusZeroPlusAMissingInputIsZero) {
  using T = TypeParam;
  const T minus_zero(-0.f);
  EXPECT_TRUE(std::signbit(static_cast<float>(this->reduce(ReduceOp::kSum, {&minus_zero}))));
  EXPECT_TRUE(
      std::signbit(static_cast<float>(this->reduce(ReduceOp::kSum, {&minus_zero, &minus_zero}))));
  for (const auto& inputs : std::vector<std::vector<const T*>>{
           {&minus_zero, nullptr}, {nullptr, &minus_zero}, {&minus_zero, &minus_zero, nullptr}}) {
    const auto sum = static_cast<float>(this->reduce(ReduceOp::kSum, inputs));
    EXPECT_EQ(sum, 0);
    EXPECT_FALSE(std::signbit(sum));
  }
}

TYPED_TEST(ReductionTreeOfFloats, ANaNAnywhereMakesTheResultNaN) {
  using T = TypeParam;
  const T nan(std::numeric_limits<float>::quiet_NaN());
  const T number(2.f);
  const T infinite(-std::numeric_limits<float>::infinity());
  for (size_t n = 1; n <= 9; ++n) {
    for (size_t position = 0; position < n; ++position) {
      std::vector<const T*> inputs(n, &number);
      if (n > 2) inputs[(position + 1) % n] = &infinite;
      inputs[position] = &nan;
      for (const ReduceOp op : kAllOps) {
        EXPECT_TRUE(std::isnan(static_cast<float>(this->reduce(op, inputs))))
            << op << " of " << n << ", NaN at " << position;
      }
    }
  }
}

TYPED_TEST(ReductionTreeOfFloats, TreatsInfinitiesAsNumbersInMinAndMax) {
  using T = TypeParam;
  const float inf = std::numeric_limits<float>::infinity();
  const T high(inf), low(-inf), number(2.f);
  EXPECT_EQ(static_cast<float>(this->reduce(ReduceOp::kMin, {&high, &number, &low})), -inf);
  EXPECT_EQ(static_cast<float>(this->reduce(ReduceOp::kMax, {&number, &low, &high})), inf);
  EXPECT_EQ(static_cast<float>(this->reduce(ReduceOp::kMin, {&high, &number, &high})), 2.f);
}

}  // namespace
}  // namespace tutti
