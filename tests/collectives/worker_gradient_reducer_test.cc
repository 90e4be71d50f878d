// SPDX-License-Identifier: Apache-2.0
//
// Gradients of several workers, as threads, with two replicas each: sums, and copies for buckets
// that no other process could read.

#include "tutti/collectives/internal/worker_gradient_reducer.h"

#include <exception>
#include <thread>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tree_reference.h"

namespace tutti::worker_gradient_reducer_test {

using internal::WorkerGradientReducer;
using Copies = WorkerGradientReducer::Copies;

constexpr int kLocal = 2;

// A reducer of one worker, with the buckets of its replicas.
struct Worker {
  Worker(WorkerGroup& group, const WorkerTree& tree, const std::vector<int64_t>& sizes,
         at::ScalarType dtype, Copies copies)
      : first_replica(group.rank() * kLocal) {
    std::vector<GradientBucket> buckets(sizes.size());
    for (size_t b = 0; b < sizes.size(); ++b) {
      for (int r = 0; r < kLocal; ++r) buckets[b].memory.push_back(at::zeros({sizes[b]}, dtype));
      buckets[b].name = "bucket " + std::to_string(b);
    }
    // The group outlives the reducer, which is the only one that shares it.
    const std::shared_ptr<WorkerGroup> borrowed(&group, [](WorkerGroup*) {});
    reducer = std::make_unique<WorkerGradientReducer>(borrowed, tree, std::move(buckets),
                                                      std::nullopt, copies);
  }

  at::Tensor value(int step, size_t bucket, int replica) const {
    const at::Tensor& like = reducer->buckets()[bucket].memory[0];
    return test::random_tensor(like.sizes(), like.scalar_type(),
                               static_cast<uint64_t>(1000 * step + replica) * 10 + bucket);
  }

  void run_step(int step) {
    std::vector<std::thread> replicas;
    std::vector<std::exception_ptr> errors(kLocal);
    for (int r = 0; r < kLocal; ++r) {
      replicas.emplace_back([&, r] {
        const auto replica = static_cast<size_t>(r);
        try {
          for (size_t b = 0; b < reducer->buckets().size(); ++b) {
            reducer->buckets()[b].memory[replica].copy_(value(step, b, first_replica + r));
            reducer->ready(replica, b, nullptr);
            reducer->help(replica);
          }
          EXPECT_FALSE(reducer->finish(replica, [](const GradientChunk&) {}));
        } catch (...) {
          errors[replica] = std::current_exception();
        }
      });
    }
    for (std::thread& each : replicas) each.join();
    for (const std::exception_ptr& each : errors) {
      if (each != nullptr) std::rethrow_exception(each);
    }
  }

  const int first_replica;
  std::unique_ptr<WorkerGradientReducer> reducer;
};

void run_workers(int workers, const std::function<void(WorkerGroup&, const WorkerTree&)>& fn) {
  const WorkerTree tree(workers, kLocal);
  const auto errors =
      testing::run_thread_ranks(workers, [&](WorkerGroup& group) { fn(group, tree); });
  for (const std::exception_ptr& each : errors) {
    if (each != nullptr) std::rethrow_exception(each);
  }
}

TEST(WorkerGradientReducer, SumsWhereverTheBucketsLie) {
  for (const Copies copies : {Copies::kOfOtherDevices, Copies::kAlways}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int workers : {2, 3}) {
        run_workers(workers, [&](WorkerGroup& group, const WorkerTree& tree) {
          Worker worker(group, tree, {5, 70'000, 1}, dtype, copies);
          for (int step = 0; step < 3; ++step) {
            worker.run_step(step);
            for (size_t b = 0; b < 3; ++b) {
              std::vector<at::Tensor> all;
              for (int g = 0; g < workers * kLocal; ++g) all.push_back(worker.value(step, b, g));
              const at::Tensor expected = test::expected_tensor(ReduceOp::kSum, all);
              for (const at::Tensor& memory : worker.reducer->buckets()[b].memory) {
                EXPECT_TRUE(test::bit_equal(memory, expected)) << "bucket " << b;
              }
            }
          }
        });
      }
    }
  }
}

TEST(WorkerGradientReducer, RefusesDifferentLayouts) {
  const auto errors = testing::run_thread_ranks(2, [&](WorkerGroup& group) {
    const WorkerTree tree(2, kLocal);
    const int64_t size = group.rank() == 0 ? 5 : 6;
    const Worker worker(group, tree, {3, size}, at::kFloat, Copies::kOfOtherDevices);
  });
  for (const std::exception_ptr& each : errors) {
    const auto rethrow = [&] { std::rethrow_exception(each); };
    EXPECT_TRUE(test::throws_error(
        rethrow, ErrorCode::kFailedPrecondition,
        {"the gradients of the workers are laid out differently", "bucket 1", "float32[5]",
         "float32[6]", "/job:worker/task:0", "/job:worker/task:1"}));
  }
}

}  // namespace tutti::worker_gradient_reducer_test
