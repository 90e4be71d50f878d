// SPDX-License-Identifier: Apache-2.0
//
// The contract of GradientReducer, over every implementation: sums are those of the reduction tree
// whatever the order of calls, and each chunk is handed out once or not at all.

#include "tutti/collectives/gradient_reducer.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/base/thread.h"
#include "tutti/collectives/hierarchical_copy_all_reduce.h"
#include "tutti/collectives/host_all_reduce.h"
#include "tutti/collectives/reduction_to_one_device.h"

#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

namespace tutti::gradient_reducer_test {

using test::bit_equal;
using test::expected_tensor;
using test::random_tensor;

struct Case {
  std::string name;
  std::function<std::shared_ptr<CrossDeviceOps>()> make;
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

// One step of all replicas.
struct Step {
  uint64_t seed = 0;
  bool threads = true;
  bool helpers = true;  // help() after each ready()
  bool places = false;  // some buckets lie elsewhere, if the reducer can do that
};

class GradientReducerContract : public testing::TestWithParam<Case> {
 protected:
  void make(size_t replicas, const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat) {
    std::vector<GradientBucket> buckets(sizes.size());
    for (size_t b = 0; b < sizes.size(); ++b) {
      for (size_t r = 0; r < replicas; ++r) {
        buckets[b].memory.push_back(at::zeros({sizes[b]}, dtype));
      }
    }
    replicas_ = replicas;
    dtype_ = dtype;
    reducer_ = ops_->make_gradient_reducer(std::move(buckets), {});
  }

  size_t num_buckets() const { return reducer_->buckets().size(); }

  at::Tensor value(const Step& step, size_t replica, size_t bucket) const {
    return random_tensor({reducer_->buckets()[bucket].numel()}, dtype_,
                         step.seed * 1000 + replica * 100 + bucket);
  }

  std::vector<at::Tensor> memory_of(size_t replica) const {
    std::vector<at::Tensor> memory;
    for (const GradientBucket& bucket : reducer_->buckets()) {
      memory.push_back(bucket.memory[replica]);
    }
    return memory;
  }

  // What a replica does between steps: buckets in its own order, then help() some more.
  void fill(const Step& step, size_t replica, size_t count, std::vector<at::Tensor>& places) {
    places = reducer_->buckets().empty() ? std::vector<at::Tensor>{} : memory_of(replica);
    std::vector<size_t> order(num_buckets());
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937_64 random(step.seed * 31 + replica);
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < count; ++i) {
      const size_t bucket = order[i];
      const at::Tensor given = value(step, replica, bucket);
      if (step.places && reducer_->sums_in_place() && random() % 2 == 0) {
        places[bucket] = given;
        reducer_->ready(replica, bucket, given.data_ptr());
      } else {
        reducer_->buckets()[bucket].memory[replica].copy_(given);
        reducer_->ready(replica, bucket);
      }
      if (step.helpers) reducer_->help(replica);
    }
    for (uint64_t i = random() % 3; step.helpers && i > 0; --i) reducer_->help(replica);
  }

  // Checks each chunk at the moment it is handed out, and everything at the end.
  void run(const Step& step) {
    std::vector<at::Tensor> expected;
    for (size_t b = 0; b < num_buckets(); ++b) {
      std::vector<at::Tensor> values;
      for (size_t r = 0; r < replicas_; ++r) values.push_back(value(step, r, b));
      expected.push_back(expected_tensor(ReduceOp::kSum, values));
    }
    std::vector<std::atomic<int>> handed(reducer_->chunks().size());
    std::atomic<int> wrong{0};
    std::vector<int> told(replicas_);
    std::vector<std::vector<at::Tensor>> places(replicas_);
    const auto finish = [&](size_t r) {
      const auto reduced = [&](const GradientChunk& chunk) {
        ++handed[chunk.index];
        const at::Tensor want = expected[chunk.bucket].slice(0, chunk.begin, chunk.end);
        for (size_t of = 0; of < replicas_; ++of) {
          const at::Tensor& memory = places[of][chunk.bucket];
          if (!bit_equal(memory.slice(0, chunk.begin, chunk.end), want)) ++wrong;
        }
      };
      told[r] = reducer_->finish(r, reduced) ? 1 : 0;
    };
    on_all(step.threads, {[&](size_t r) { fill(step, r, num_buckets(), places[r]); }, finish});
    EXPECT_EQ(wrong, 0) << "chunks that were not reduced when they were handed out";
    for (const int each : told) EXPECT_EQ(each, told[0]);
    for (const auto& each : handed) EXPECT_EQ(each, told[0]);
    for (size_t b = 0; b < num_buckets(); ++b) {
      for (size_t r = 0; r < replicas_; ++r) {
        EXPECT_TRUE(bit_equal(places[r][b], expected[b])) << "bucket " << b << " of replica " << r;
      }
    }
  }

  // Phases with a meeting between them; without threads a team of one: the last replica first.
  void on_all(bool threads, const std::vector<std::function<void(size_t)>>& phases) const {
    if (!threads && replicas_ > 1 && !is_host()) threads = true;  // its finish() is a team's work
    if (!threads) {
      for (const auto& phase : phases) {
        for (size_t r = replicas_; r-- > 0;) phase(r);
      }
      return;
    }
    std::barrier meeting(static_cast<std::ptrdiff_t>(replicas_));
    std::vector<std::unique_ptr<Thread>> team;
    for (size_t r = 0; r < replicas_; ++r) {
      team.push_back(std::make_unique<Thread>("replica", [&, r] {
        for (const auto& phase : phases) {
          phase(r);
          meeting.arrive_and_wait();
        }
      }));
    }
  }

  bool is_host() const { return GetParam().name == "HostAllReduce"; }

  std::shared_ptr<CrossDeviceOps> ops_ = GetParam().make();
  std::unique_ptr<GradientReducer> reducer_;
  size_t replicas_ = 0;
  at::ScalarType dtype_ = at::kFloat;
};

TEST_P(GradientReducerContract, ChunksCoverTheBucketsInOrder) {
  make(2, {1, 0, 40'000, 16'384, 16'385});
  size_t bucket = 0;
  int64_t at = 0;
  const auto skip_done = [&] {
    while (bucket < num_buckets() && at == reducer_->buckets()[bucket].numel()) {
      ++bucket;
      at = 0;
    }
  };
  for (size_t c = 0; c < reducer_->chunks().size(); ++c) {
    const GradientChunk& chunk = reducer_->chunks()[c];
    skip_done();
    EXPECT_EQ(chunk.index, c);
    EXPECT_EQ(chunk.bucket, bucket);
    EXPECT_EQ(chunk.begin, at);
    EXPECT_GT(chunk.end, chunk.begin);
    at = chunk.end;
  }
  skip_done();
  EXPECT_EQ(bucket, num_buckets());
}

TEST_P(GradientReducerContract, SumsAreThoseOfTheTreeInAnyOrderOfCalls) {
  for (size_t replicas = 1; replicas <= 5; ++replicas) {
    make(replicas, {1, 100, 20'000, 0, 16'384, 7});
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(testing::Message() << replicas << " replicas, seed " << seed);
      run({.seed = seed,
           .threads = seed % 3 != 0,
           .helpers = seed % 4 != 0,
           .places = seed % 2 == 0});
      if (HasFailure()) return;
    }
  }
}

TEST_P(GradientReducerContract, SumsEveryFloatingPointDtype) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const size_t replicas : {1, 3, 4}) {
      make(replicas, {33, 20'000}, dtype);
      for (uint64_t seed = 1; seed <= 3; ++seed) run({.seed = seed, .places = seed == 2});
    }
  }
}

TEST_P(GradientReducerContract, ForgetsAStepThatWasNotFinished) {
  for (size_t replicas = 1; replicas <= 5; ++replicas) {
    make(replicas, {1, 100, 40'000, 16'384, 7});
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      const Step step = {.seed = seed + 50, .places = true};
      std::vector<std::vector<at::Tensor>> places(replicas);
      // Some replicas got further than others; the last never began, or all filled everything.
      on_all(true, {[&](size_t r) {
               const size_t count = seed == 10 ? num_buckets() : (seed + r) % num_buckets();
               fill(step, r, r + 1 == replicas && seed % 2 == 0 ? 0 : count, places[r]);
             }});
      places.clear();
      reducer_->reset();
      run({.seed = seed, .places = seed % 2 == 0});
      if (HasFailure()) return;
    }
  }
}

TEST_P(GradientReducerContract, ResetsWhatHasNotBegun) {
  make(3, {5, 20'000});
  reducer_->reset();
  reducer_->reset();
  run({.seed = 1});
}

TEST_P(GradientReducerContract, AcceptsBucketsWithoutElements) {
  make(3, {0, 0});
  EXPECT_TRUE(reducer_->chunks().empty());
  run({.seed = 1});
  run({.seed = 2});
}

TEST_P(GradientReducerContract, AcceptsNoBuckets) {
  make(4, {});
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    on_all(true, {[&](size_t r) {
             reducer_->help(r);
             const auto reduced = [](const GradientChunk&) { ADD_FAILURE() << "no chunk exists"; };
             static_cast<void>(reducer_->finish(r, reduced));
           }});
    reducer_->reset();
  }
}

TEST_P(GradientReducerContract, SumsManySmallBuckets) {
  make(4, std::vector<int64_t>(200, 16));
  for (uint64_t seed = 1; seed <= 5; ++seed) run({.seed = seed, .places = seed % 2 == 0});
}

INSTANTIATE_TEST_SUITE_P(
    AllOps, GradientReducerContract,
    testing::Values(Case{"HostAllReduce", [] { return std::make_shared<HostAllReduce>(); }},
                    Case{"ReductionToOneDevice",
                         [] { return std::make_shared<ReductionToOneDevice>(); }},
                    Case{"HierarchicalCopyAllReduce",
                         [] { return std::make_shared<HierarchicalCopyAllReduce>(); }}),
    [](const auto& each) { return each.param.name; });

}  // namespace tutti::gradient_reducer_test
