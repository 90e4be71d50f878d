// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/cpu_threads.h"

#include <sched.h>

#include <memory>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tutti/base/thread.h"

namespace tutti {
namespace {

using internal::cores_from_cfs;
using internal::cores_from_cpu_max;

TEST(UsableCores, ReadsCgroupV2Limits) {
  EXPECT_EQ(cores_from_cpu_max("200000 100000"), 2);
  EXPECT_EQ(cores_from_cpu_max("200000 100000\n"), 2);
  EXPECT_EQ(cores_from_cpu_max("150000 100000"), 2) << "rounded up";
  EXPECT_EQ(cores_from_cpu_max("200001 100000"), 3);
  EXPECT_EQ(cores_from_cpu_max("1000 100000"), 1) << "at least one core";
  EXPECT_EQ(cores_from_cpu_max("50000 10000"), 5);
}

TEST(UsableCores, ACgroupV2WithoutLimitSaysZero) {
  EXPECT_EQ(cores_from_cpu_max("max 100000"), 0);
  EXPECT_EQ(cores_from_cpu_max("max"), 0);
  EXPECT_EQ(cores_from_cpu_max(""), 0);
  EXPECT_EQ(cores_from_cpu_max("100000"), 0);
  EXPECT_EQ(cores_from_cpu_max("100000 0"), 0);
  EXPECT_EQ(cores_from_cpu_max("-1 100000"), 0);
  EXPECT_EQ(cores_from_cpu_max("nonsense"), 0);
}

TEST(UsableCores, ReadsCgroupV1Limits) {
  EXPECT_EQ(cores_from_cfs("400000", "100000"), 4);
  EXPECT_EQ(cores_from_cfs("350000", "100000"), 4);
  EXPECT_EQ(cores_from_cfs("1", "100000"), 1);
  EXPECT_EQ(cores_from_cfs("-1", "100000"), 0) << "-1 is no limit";
  EXPECT_EQ(cores_from_cfs("", ""), 0);
  EXPECT_EQ(cores_from_cfs("100000", ""), 0);
  EXPECT_EQ(cores_from_cfs("100000", "0"), 0);
}

TEST(UsableCores, LieBetweenOneAndTheAffinityMask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&mask));
  EXPECT_EQ(usable_cores(), usable_cores());
}

TEST(TorchThreadsScope, SetsAndRestoresTheCountOfThisThread) {
  const int before = at::get_num_threads();
  {
    const TorchThreadsScope outer(before + 2);
    EXPECT_EQ(at::get_num_threads(), before + 2);
    {
      const TorchThreadsScope inner(1);
      EXPECT_EQ(at::get_num_threads(), 1);
    }
    EXPECT_EQ(at::get_num_threads(), before + 2);
  }
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(TorchThreadsScope, UndoesAChangeMadeInside) {
  const int before = at::get_num_threads();
  {
    const TorchThreadsScope same(before);
    at::set_num_threads(before + 3);
  }
  EXPECT_EQ(at::get_num_threads(), before);
  at::set_num_threads(before);  // it also was for threads to come
}

TEST(TorchThreadsScope, LeavesOtherThreadsAlone) {
  const int before = at::get_num_threads();
  int inside = 0;
  {
    Thread other("threads", [&] {
      const TorchThreadsScope scope(before + 1);
      inside = at::get_num_threads();
    });
  }
  EXPECT_EQ(inside, before + 1);
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(BlasThreadsScope, SetsAndRestoresTheCountOfOpenBlas) {
  const int before = blas_threads();
  const auto expect = [before](int count) {
    EXPECT_EQ(blas_threads(), before == 0 ? 0 : count);  // 0: another BLAS
  };
  {
    const BlasThreadsScope outer(2);
    expect(2);
    {
      const BlasThreadsScope inner(1);
      expect(1);
    }
  }
  expect(before);
}

TEST(BlasThreadsScope, TheLastOfOverlappingScopesRestores) {
  const int before = blas_threads();
  auto first = std::make_unique<BlasThreadsScope>(1);
  auto second = std::make_unique<BlasThreadsScope>(1);
  first.reset();
  EXPECT_EQ(blas_threads(), before == 0 ? 0 : 1) << "the second scope still holds";
  second.reset();
  EXPECT_EQ(blas_threads(), before);
}

}  // namespace
}  // namespace tutti
