// SPDX-License-Identifier: Apache-2.0
//
// Replicas compute as their caller would: they inherit its grad mode, inference mode, autocast and
// threads, and the state of every thread is restored when run ends, however it ends.

#include "tutti/strategy/internal/caller_state.h"

#include <atomic>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "tutti/device/cpu_threads.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/tensors.h"

// LibTorch 2.4 renamed the autocast functions; the old names still work.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace tutti::caller_state_test {

using test::bit_equal;
using test::cpus;
using test::my_id;

// Enables autocast to bfloat16 on the CPU, as a user's scope does.
class AutocastScope {
 public:
  AutocastScope() {
    at::autocast::set_cpu_enabled(true);
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_cpu_enabled(false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
};

struct ThreadState {
  bool grad = at::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
  bool autocast = at::autocast::is_cpu_enabled();
  at::ScalarType cpu_dtype = at::autocast::get_autocast_cpu_dtype();
  at::ScalarType gpu_dtype = at::autocast::get_autocast_gpu_dtype();
  bool cache = at::autocast::is_autocast_cache_enabled();

  bool operator==(const ThreadState&) const = default;
};

std::ostream& operator<<(std::ostream& out, const ThreadState& state) {
  return out << "grad " << state.grad << " inference " << state.inference << " autocast "
             << state.autocast << ' ' << state.cpu_dtype << ' ' << state.gpu_dtype << " cache "
             << state.cache;
}

void expect_on_all(const Strategy& strategy, const ThreadState& expected) {
  const auto states = strategy.run([] { return ThreadState(); });
  for (const ThreadState& state : states) EXPECT_EQ(state, expected);
}

// at::set_num_threads also sets the value that new threads of the process begin with; restores it.
class ThreadDefault {
 public:
  ThreadDefault() = default;
  ~ThreadDefault() { at::set_num_threads(original_); }
  ThreadDefault(const ThreadDefault&) = delete;
  ThreadDefault& operator=(const ThreadDefault&) = delete;

 private:
  int original_ = at::get_num_threads();
};

void spoil_this_thread() {
  at::GradMode::set_enabled(!at::GradMode::is_enabled());
  at::autocast::set_cpu_enabled(!at::autocast::is_cpu_enabled());
  at::autocast::set_autocast_gpu_dtype(at::kBFloat16);
  at::autocast::set_autocast_cache_enabled(false);
  at::set_num_threads(at::get_num_threads() + 1);
}

TEST(CallerState, GradModeOfTheCallerHoldsOnEveryReplica) {
  const MirroredStrategy strategy(cpus(3));
  const ThreadState normal;
  expect_on_all(strategy, normal);
  {
    const at::NoGradGuard no_grad;
    expect_on_all(strategy, ThreadState());
    const auto needs =
        strategy.run([] { return (at::ones({2}).requires_grad_(true) * 2).requires_grad(); });
    for (const bool each : needs) EXPECT_FALSE(each);
  }
  expect_on_all(strategy, normal);
}

TEST(CallerState, InferenceModeOfTheCallerHoldsOnEveryReplica) {
  const MirroredStrategy strategy(cpus(3));
  {
    const c10::InferenceMode inference;
    const auto kinds = strategy.run([] { return at::ones({2}).is_inference(); });
    for (const bool each : kinds) EXPECT_TRUE(each);
    const auto sums = strategy.run(
        [] { return get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({2})); });
    EXPECT_TRUE(at::equal(sums[2], at::full({2}, 3.F)));
  }
  const auto kinds = strategy.run([] { return at::ones({2}).is_inference(); });
  for (const bool each : kinds) EXPECT_FALSE(each);
}

TEST(CallerState, AutocastOfTheCallerHoldsOnEveryReplica) {
  const MirroredStrategy strategy(cpus(3));
  const auto dtype_of_product = [&] {
    return strategy.run([] { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); });
  };
  {
    const AutocastScope autocast;
    expect_on_all(strategy, ThreadState());
    for (const at::ScalarType dtype : dtype_of_product()) EXPECT_EQ(dtype, at::kBFloat16);
    EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kBFloat16);
  }
  for (const at::ScalarType dtype : dtype_of_product()) EXPECT_EQ(dtype, at::kFloat);
}

TEST(CallerState, CastsOfWeightsDoNotOutliveARun) {
  const MirroredStrategy strategy(cpus(2));
  const AutocastScope autocast;
  std::vector<at::Tensor> weights;
  for (uint64_t i = 0; i < 2; ++i) {
    weights.push_back(test::random_tensor({4, 4}, at::kFloat, i + 3).requires_grad_(true));
  }
  const at::Tensor x = test::random_tensor({2, 4}, at::kFloat, 9);
  for (int step = 0; step < 4; ++step) {
    const auto products =
        strategy.run([&] { return at::mm(x, weights[static_cast<size_t>(my_id())]).detach(); });
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor expected = at::mm(x.to(at::kBFloat16), weights[i].to(at::kBFloat16));
      EXPECT_TRUE(bit_equal(products[i], expected)) << "replica " << i << " step " << step;
      weights[i].add_(1);
    }
  }
}

TEST(CallerState, GradientsOfCastWeightsReachTheWeights) {
  const MirroredStrategy strategy(cpus(2));
  const AutocastScope autocast;
  const auto gradients = strategy.run([] {
    const at::Tensor weight = at::ones({3, 3}).requires_grad_(true);
    at::mm(at::ones({1, 3}), weight).sum().backward();
    return weight.grad();
  });
  for (const at::Tensor& gradient : gradients) EXPECT_TRUE(bit_equal(gradient, at::ones({3, 3})));
}

TEST(CallerState, EveryThreadIsAsBeforeAfterAFunctionThatChangesIt) {
  const ThreadDefault put_back;
  for (const bool fail : {false, true}) {
    const MirroredStrategy strategy(cpus(3), {.runner = {.threads_per_replica = 2}});
    const ThreadState before;
    const int threads = at::get_num_threads();
    const auto step = [fail] {
      spoil_this_thread();
      if (fail) throw std::out_of_range("after spoiling");
    };
    if (fail) {
      EXPECT_THROW(strategy.run(step), std::out_of_range);
    } else {
      strategy.run(step);
    }
    EXPECT_EQ(ThreadState(), before);
    EXPECT_EQ(at::get_num_threads(), threads);
    expect_on_all(strategy, before);
    for (const int each : strategy.run([] { return at::get_num_threads(); })) EXPECT_EQ(each, 2);
  }
}

TEST(CallerState, EveryThreadIsAsBeforeAfterAFailedMeeting) {
  const ThreadDefault put_back;
  const MirroredStrategy strategy(cpus(2));
  const ThreadState before;
  EXPECT_THROW(strategy.run([] {
    spoil_this_thread();
    get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({my_id() + 1}));
  }),
               Error);
  EXPECT_EQ(ThreadState(), before);
  expect_on_all(strategy, before);
}

// ---- what is not ordinary: a profiler that watches a thread
// ---------------------------------------

std::atomic<int> operators_seen = 0;

at::RecordFunctionCallback watcher() {
  return at::RecordFunctionCallback([](const at::RecordFunction&) {
           ++operators_seen;
           return std::unique_ptr<at::ObserverContext>();
         })
      .scopes({at::RecordScope::FUNCTION});
}

int operators_seen_in(const Strategy& strategy) {
  operators_seen = 0;
  strategy.run([] { at::ones({2}).add_(1); });
  return operators_seen.exchange(0);
}

TEST(CallerState, AProfilerOfTheCallerWatchesEveryReplica) {
  const MirroredStrategy strategy(cpus(3));
  const OneDeviceStrategy one("CPU:0");
  EXPECT_EQ(operators_seen_in(strategy), 0);
  const at::CallbackHandle handle = at::addThreadLocalCallback(watcher());
  const int of_one = operators_seen_in(one);
  EXPECT_GT(of_one, 0);
  EXPECT_EQ(operators_seen_in(strategy), 3 * of_one);
  at::removeCallback(handle);
  EXPECT_EQ(operators_seen_in(strategy), 0) << "it is gone on every thread";
}

TEST(CallerState, AProfilerThatAFunctionLeavesBehindIsGone) {
  const MirroredStrategy strategy(cpus(3));
  strategy.run([] { at::addThreadLocalCallback(watcher()); });
  EXPECT_EQ(operators_seen_in(strategy), 0);
}

TEST(CallerState, LibTorchUsesTheThreadsOfAReplica) {
  for (const int threads : {1, 2, 3}) {
    const MirroredStrategy strategy(cpus(2), {.runner = {.threads_per_replica = threads}});
    const int before = at::get_num_threads();
    for (const int each : strategy.run([] { return at::get_num_threads(); })) {
      EXPECT_EQ(each, threads);
    }
    EXPECT_EQ(at::get_num_threads(), before);
    EXPECT_THROW(strategy.run([] { throw std::out_of_range("x"); }), std::out_of_range);
    EXPECT_EQ(at::get_num_threads(), before);
  }
}

TEST(CallerState, TheCallersThreadCountComesBack) {
  const ThreadDefault put_back;
  const MirroredStrategy strategy(cpus(2), {.runner = {.threads_per_replica = 1}});
  at::set_num_threads(3);
  strategy.run([] { EXPECT_EQ(at::get_num_threads(), 1); });
  EXPECT_EQ(at::get_num_threads(), 3);
}

TEST(CallerState, ThreadsAreTheCoresDividedByTheReplicas) {
  for (const int replicas : {1, 2, 4}) {
    const MirroredStrategy strategy(cpus(replicas));
    const int expected = std::max(1, usable_cores() / replicas);
    for (const int each : strategy.run([] { return at::get_num_threads(); })) {
      EXPECT_EQ(each, expected);
    }
  }
  const OneDeviceStrategy one("CPU:0", {.threads_per_replica = 2});
  EXPECT_EQ(one.run([] { return at::get_num_threads(); }).only(), 2);
}

TEST(CallerState, BlasUsesTheThreadsOfAReplicaDuringRun) {
  const int before = blas_threads();
  if (before == 0) GTEST_SKIP() << "neither OpenBLAS nor MKL";
  const MirroredStrategy strategy(cpus(2), {.runner = {.threads_per_replica = 1}});
  strategy.run([] { EXPECT_EQ(blas_threads(), 1); });
  EXPECT_EQ(blas_threads(), before);
  const MirroredStrategy two(cpus(2), {.runner = {.threads_per_replica = 2}});
  EXPECT_THROW(two.run([] {
    EXPECT_EQ(blas_threads(), 2);
    throw std::out_of_range("x");
  }),
               std::out_of_range);
  EXPECT_EQ(blas_threads(), before);
}

}  // namespace tutti::caller_state_test

#pragma GCC diagnostic pop
