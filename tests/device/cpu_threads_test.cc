// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/cpu_threads.h"

#include <dlfcn.h>
#include <sched.h>

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tutti/base/thread.h"

#include "tests/support/tensors.h"

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

TEST(UsableCores, ReportsZeroForACgroupV2WithoutLimit) {
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
  EXPECT_EQ(cores_from_cfs("-1", "100000"), 0) << "-1 means no limit";
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
  at::set_num_threads(before);  // it also applied to later threads
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

// Both scopes together, as in a replica: one is for OpenBLAS, the other for MKL.
struct ThreadsScopes {
  explicit ThreadsScopes(int threads) : blas(threads), torch(threads) {}
  BlasThreadsScope blas;
  TorchThreadsScope torch;
};

TEST(BlasThreadsScope, SetsAndRestoresTheCountOfTheBlas) {
  const int before = blas_threads();
  if (before == 0) GTEST_SKIP() << "neither OpenBLAS nor MKL";
  {
    const ThreadsScopes outer(2);
    EXPECT_EQ(blas_threads(), 2);
    {
      const ThreadsScopes inner(1);
      EXPECT_EQ(blas_threads(), 1);
    }
  }
  EXPECT_EQ(blas_threads(), before);
}

TEST(BlasThreadsScope, OverridesTheCountThatTheProgramSet) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const int blas = blas_threads();
  if (blas == 0) GTEST_SKIP() << "neither OpenBLAS nor MKL";
  {
    const ThreadsScopes one(1);
    EXPECT_EQ(blas_threads(), 1);
  }
  EXPECT_EQ(blas_threads(), blas);
  at::set_num_threads(before);
}

TEST(BlasThreadsScope, TheLastOfOverlappingScopesRestores) {
  const int before = blas_threads();
  const bool open_blas = dlsym(RTLD_DEFAULT, "openblas_set_num_threads") != nullptr;
  auto first = std::make_unique<BlasThreadsScope>(1);
  auto second = std::make_unique<BlasThreadsScope>(1);
  first.reset();
  EXPECT_EQ(blas_threads(), open_blas ? 1 : before) << "the second scope still holds";
  second.reset();
  EXPECT_EQ(blas_threads(), before);
}

// A replica's share of a batch may be a view into it: its results must equal those of a copy, which
// a different process computes on.
TEST(BlasBits, DoNotDependOnWhereTheRowsBegin) {
  const TorchThreadsScope one(1);
  const BlasThreadsScope one_of_blas(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t rows : {1, 3, 16, 33}) {
      for (const int64_t columns : {5, 17, 64, 257}) {
        const at::Tensor x = test::random_tensor({rows, columns}, dtype, 1);
        const at::Tensor weight = test::random_tensor({33, columns}, dtype, 2);
        const at::Tensor gradient = test::random_tensor({rows, 33}, dtype, 3);
        for (const int64_t offset : {1, 3, 8}) {
          const at::Tensor view =
              at::zeros({offset + x.numel()}, dtype).narrow(0, offset, x.numel()).view_as(x);
          view.copy_(x);
          EXPECT_TRUE(at::equal(at::mm(view, weight.t()), at::mm(x, weight.t())))
              << rows << " x " << columns << " + " << offset;
          EXPECT_TRUE(at::equal(at::mm(gradient.t(), view), at::mm(gradient.t(), x)))
              << rows << " x " << columns << " + " << offset;
        }
      }
    }
  }
}

using internal::ProcessCores;
using internal::processes_in_pool;
using internal::threads_of_each_replica;

TEST(ThreadsOfEachReplica, DivideTheCoresAmongTheProcessesThatShareThem) {
  const std::vector<ProcessCores> alone = {{"a", 8}};
  EXPECT_EQ(threads_of_each_replica(alone, 1), 8);
  EXPECT_EQ(threads_of_each_replica(alone, 3), 2);
  EXPECT_EQ(threads_of_each_replica(alone, 9), 1) << "at least one";
  const std::vector<ProcessCores> together = {{"a", 8}, {"a", 8}};
  EXPECT_EQ(processes_in_pool(together, 1), 2);
  EXPECT_EQ(threads_of_each_replica(together, 1), 4);
  EXPECT_EQ(threads_of_each_replica(together, 2), 2);
  const std::vector<ProcessCores> apart = {{"a", 8}, {"b", 8}};
  EXPECT_EQ(processes_in_pool(apart, 0), 1);
  EXPECT_EQ(threads_of_each_replica(apart, 1), 8);
}

TEST(ThreadsOfEachReplica, FollowTheSmallestShareEverywhere) {
  const std::vector<ProcessCores> workers = {{"a", 8}, {"a", 8}, {"a", 8}, {"b", 8}, {"c", 3}};
  EXPECT_EQ(threads_of_each_replica(workers, 1), 2);
  EXPECT_EQ(threads_of_each_replica(workers, 4), 1);
}

TEST(CorePool, IsTheSameForAllThreadsUnlessTheyMayUseOtherCores) {
  EXPECT_EQ(core_pool(), core_pool());
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  std::string all;
  std::string one;
  {
    const Thread thread("other", [&] {
      all = core_pool();
      cpu_set_t first;
      CPU_ZERO(&first);
      int cpu = 0;
      while (!CPU_ISSET(cpu, &mask)) ++cpu;
      CPU_SET(cpu, &first);
      EXPECT_EQ(sched_setaffinity(0, sizeof first, &first), 0);
      one = core_pool();
    });
  }
  EXPECT_EQ(all, core_pool());
  EXPECT_EQ(one == all, CPU_COUNT(&mask) == 1);
}

TEST(OpenBlasAdvice, NamesTheVariableWhereTheKernelsAreFarTooOld) {
  for (const char* core : {"Prescott", "Core2", "Nehalem", "Sandybridge", "Barcelona", "Generic"}) {
    const std::string advice = internal::open_blas_advice(core, "SkylakeX");
    EXPECT_NE(advice.find(core), std::string::npos) << advice;
    EXPECT_NE(advice.find("OPENBLAS_CORETYPE=SkylakeX"), std::string::npos) << advice;
  }
}

TEST(OpenBlasAdvice, SaysNothingWhereTheKernelsFit) {
  for (const char* core : {"Haswell", "Zen", "SkylakeX", "SKYLAKEX", "Cooperlake"}) {
    EXPECT_EQ(internal::open_blas_advice(core, "SkylakeX"), "") << core;
  }
  EXPECT_EQ(internal::open_blas_advice("Prescott", ""), "") << "an old CPU";
}

}  // namespace
}  // namespace tutti
