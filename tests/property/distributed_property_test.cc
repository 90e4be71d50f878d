// SPDX-License-Identifier: Apache-2.0
//
// Distributes random pipelines over several workers and compares every policy with a model of the
// rows that each replica gets in each step.

#include <rapidcheck.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/strategy/distributed_dataset.h"

#include "tests/property/check_property.h"
#include "tests/property/pipelines.h"
#include "tests/strategy/worker_threads.h"
#include "tests/support/log_capture.h"

namespace tutti::property::distributed_property_test {

using data::AutoShardPolicy;
using test::for_each_worker;

constexpr int kCases = 100;

using Step = std::vector<Rows>;  // by local replica
using Steps = std::vector<Step>;
using Workers = std::vector<Steps>;

struct Job {
  int workers = 1;
  int replicas = 1;  // per worker
  AutoShardPolicy policy = AutoShardPolicy::kAuto;
  bool even_split = false;
  int buffer = 0;

  int all_replicas() const { return workers * replicas; }
  InputOptions options() const {
    return {.per_replica_buffer_size = buffer, .even_split = even_split};
  }
};

void showValue(const Job& job, std::ostream& out) {
  out << job.workers << " workers of " << job.replicas << " replicas, policy "
      << static_cast<int>(job.policy) << (job.even_split ? ", even split" : "") << ", buffer "
      << job.buffer;
}

rc::Gen<Job> jobs(std::vector<AutoShardPolicy> policies) {
  return rc::gen::resize(
      rc::kNominalSize,
      rc::gen::build<Job>(rc::gen::set(&Job::workers, rc::gen::inRange(1, 6)),
                          rc::gen::set(&Job::replicas, rc::gen::inRange(1, 6)),
                          rc::gen::set(&Job::policy, rc::gen::elementOf(std::move(policies))),
                          rc::gen::set(&Job::even_split, rc::gen::arbitrary<bool>()),
                          rc::gen::set(&Job::buffer, rc::gen::inRange(0, 3))));
}

const std::vector<AutoShardPolicy> kAllPolicies = {AutoShardPolicy::kOff,  AutoShardPolicy::kAuto,
                                                   AutoShardPolicy::kFile, AutoShardPolicy::kData,
                                                   AutoShardPolicy::kHint, AutoShardPolicy::kBatch};

// ---- the model ----------------------------------------------------------------------

// The policy applied to a pipeline; nullopt if it is rejected.
std::optional<AutoShardPolicy> resolved(const Pipeline& pipeline, const Job& job) {
  if (job.policy != AutoShardPolicy::kAuto && job.policy != AutoShardPolicy::kFile) {
    return job.policy;
  }
  const bool may_fall_back = job.policy == AutoShardPolicy::kAuto;
  if (!may_fall_back && job.workers == 1) return AutoShardPolicy::kFile;  // nothing to divide
  bool by_file = true;
  for (const Source& source : branches_of(pipeline)) {
    const auto files = static_cast<int>(source.sizes.size());
    if (!reads_files(source)) by_file = false;
    if (files > 0 && files < job.workers) by_file = false;
  }
  if (by_file) return AutoShardPolicy::kFile;
  return may_fall_back ? std::optional(AutoShardPolicy::kData) : std::nullopt;
}

// The pieces of one batch.
std::vector<Rows> split(const Rows& rows, int pieces, bool even) {
  std::vector<Rows> all(static_cast<size_t>(pieces));
  if (even) {
    size_t next = 0;
    for (size_t p = 0; p < all.size(); ++p) {
      const size_t size = rows.size() / all.size() + (p < rows.size() % all.size() ? 1 : 0);
      for (size_t i = 0; i < size; ++i) all[p].push_back(rows[next++]);
    }
    return all;
  }
  const size_t interval = (rows.size() + all.size() - 1) / all.size();
  for (size_t i = 0; i < rows.size(); ++i) all[i / interval].push_back(rows[i]);
  return all;
}

// Cuts the stream of rows by a list of sizes that begins with the worker's own.
std::vector<Rows> cut_elementwise(const Rows& rows, int64_t batch_size, const Job& job,
                                  int worker) {
  std::vector<int64_t> sizes(static_cast<size_t>(job.all_replicas()),
                             batch_size / job.all_replicas());
  for (int64_t i = 0; i < batch_size % job.all_replicas(); ++i) ++sizes[static_cast<size_t>(i)];
  std::rotate(sizes.begin(), sizes.begin() + worker * job.replicas, sizes.end());
  std::vector<Rows> pieces;
  size_t next = 0;
  while (next < rows.size()) {
    const int64_t size = sizes[pieces.size() % sizes.size()];
    pieces.emplace_back();
    for (int64_t i = 0; i < size && next < rows.size(); ++i) pieces.back().push_back(rows[next++]);
  }
  return pieces;
}

Steps grouped(const std::vector<Rows>& pieces, int replicas) {
  Steps steps;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i % static_cast<size_t>(replicas) == 0) steps.emplace_back(static_cast<size_t>(replicas));
    steps.back()[i % static_cast<size_t>(replicas)] = pieces[i];
  }
  return steps;
}

// The model of a single worker.
Steps model_of_worker(const Pipeline& pipeline, const Job& job, AutoShardPolicy policy,
                      int worker) {
  Part part;
  if (policy == AutoShardPolicy::kFile) part = {job.workers, worker};
  if (policy == AutoShardPolicy::kHint) part = {1, 0, job.workers, worker};
  const Model model = model_of(pipeline, part);
  const int all = job.all_replicas();
  if (all == 1) return grouped(model.elements, 1);
  std::vector<Rows> pieces;
  if (policy == AutoShardPolicy::kData || policy == AutoShardPolicy::kBatch) {
    const bool by_data = policy == AutoShardPolicy::kData;
    for (const Rows& batch : model.elements) {
      const std::vector<Rows> of_batch = split(batch, all, job.even_split);
      for (int j = 0; j < job.replicas; ++j) {
        pieces.push_back(of_batch[static_cast<size_t>(by_data ? worker + j * job.workers
                                                              : worker * job.replicas + j)]);
      }
    }
  } else if (model.batch_size) {
    pieces = cut_elementwise(all_rows(model.elements), *model.batch_size, job, worker);
  } else {
    for (const Rows& batch : model.elements) {
      for (Rows& piece : split(batch, all, job.even_split)) pieces.push_back(std::move(piece));
    }
  }
  return grouped(pieces, job.replicas);
}

// All workers continue until the last one has ended.
std::optional<Workers> model_of_job(const Pipeline& pipeline, const Job& job) {
  const std::optional<AutoShardPolicy> policy = resolved(pipeline, job);
  if (!policy) return std::nullopt;
  Workers all;
  size_t steps = 0;
  for (int w = 0; w < job.workers; ++w) {
    all.push_back(model_of_worker(pipeline, job, *policy, w));
    steps = std::max(steps, all.back().size());
  }
  for (Steps& worker : all) worker.resize(steps, Step(static_cast<size_t>(job.replicas)));
  return all;
}

// ---- reading ------------------------------------------------------------------------

template <class T>
Steps rest_of(DistributedIterator<T>& iterator) {
  Steps steps;
  while (const auto step = iterator.get_next_as_optional()) {
    steps.emplace_back();
    for (const T& element : *step) steps.back().push_back(rows_of(element));
  }
  return steps;
}

// Calls fn(distributed dataset, worker) for each worker. Each has its own dataset, like workers on
// several machines. Returns how many rejected the pipeline.
template <class F>
int with_workers(const Builder& builder, const Job& job, const BuildOptions& options, const F& fn) {
  const test::LogCapture quiet;
  std::atomic<int> refused{0};
  for_each_worker(job.workers, job.replicas, [&](const Strategy& strategy, int w) {
    const auto distribute = [&](const auto& dataset) {
      using T = typename std::decay_t<decltype(dataset)>::value_type;
      if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, std::vector<std::string>>) {
        std::optional<DistributedDataset<T>> distributed;
        try {
          distributed = strategy.distribute_dataset(
              dataset.with_options({.auto_shard_policy = job.policy}), job.options());
        } catch (const Error& error) {
          if (error.code() != ErrorCode::kInvalidArgument ||
              std::string(error.what()).find("FILE based sharding") == std::string::npos) {
            throw;
          }
          ++refused;
          return;
        }
        fn(*distributed, w);
      }
    };
    std::visit(distribute, builder.build(options));
  });
  return refused;
}

BuildOptions build_options(const Job& job) {
  return {.hints = job.policy == AutoShardPolicy::kHint};
}

Steps from(const Steps& steps, size_t begin) {
  return {steps.begin() + static_cast<std::ptrdiff_t>(begin), steps.end()};
}

Rows rows_in(const Workers& workers) {
  Rows rows;
  for (const Steps& steps : workers) {
    for (const Step& step : steps) {
      for (const Rows& part : step) rows.insert(rows.end(), part.begin(), part.end());
    }
  }
  return rows;
}

// ---- properties ---------------------------------------------------------------------

TEST(DistributedProperty, EachReplicaGetsTheRowsOfItsPolicy) {
  check_property(2 * kCases, [] {
    const Pipeline pipeline = *batched_pipelines();
    const Job job = *jobs(kAllPolicies);
    const std::optional<Workers> expected = model_of_job(pipeline, job);
    Workers found(static_cast<size_t>(job.workers));
    const int refused =
        with_workers(Builder(pipeline), job, build_options(job), [&](const auto& dataset, int w) {
          auto iterator = dataset.iterator();
          found[static_cast<size_t>(w)] = rest_of(iterator);
        });
    RC_ASSERT(refused == (expected ? 0 : job.workers));
    if (expected) RC_ASSERT(found == *expected);
  });
}

TEST(DistributedProperty, EachElementIsSeenExactlyOnce) {
  check_property(kCases, [] {
    const Pipeline pipeline = *order_free_pipelines();
    const Job job = *jobs(kAllPolicies);
    const bool unordered = *rc::gen::arbitrary<bool>();
    const bool seeds = *rc::gen::arbitrary<bool>();
    const std::optional<AutoShardPolicy> policy = resolved(pipeline, job);
    Workers found(static_cast<size_t>(job.workers));
    const int refused =
        with_workers(Builder(pipeline), job, {.unordered = unordered, .seeds = seeds},
                     [&](const auto& dataset, int w) {
                       auto iterator = dataset.iterator();
                       found[static_cast<size_t>(w)] = rest_of(iterator);
                     });
    RC_ASSERT(refused == (policy ? 0 : job.workers));
    if (!policy) return;
    for (const Steps& steps : found) RC_ASSERT(steps.size() == found[0].size());
    const Rows expected = sorted(all_rows(model_of(pipeline).elements));
    if (policy == AutoShardPolicy::kOff || policy == AutoShardPolicy::kHint) {
      for (const Steps& steps : found) RC_ASSERT(sorted(rows_in({steps})) == expected);
    } else {
      RC_ASSERT(sorted(rows_in(found)) == expected);
    }
  });
}

TEST(DistributedProperty, PositionsResumeIdentically) {
  check_property(kCases, [] {
    const Pipeline pipeline = *batched_pipelines();
    const Job job = *jobs(kAllPolicies);
    const std::optional<Workers> expected = model_of_job(pipeline, job);
    if (!expected) return;
    const auto at = *rc::gen::inRange<size_t>(0, expected->at(0).size() + 1);
    const auto saver = *rc::gen::inRange(0, job.workers);
    const Builder builder(pipeline);
    std::vector<std::string> positions(static_cast<size_t>(job.workers));
    Workers first(static_cast<size_t>(job.workers));
    Workers second(static_cast<size_t>(job.workers));
    with_workers(builder, job, build_options(job), [&](const auto& dataset, int worker) {
      const auto w = static_cast<size_t>(worker);
      auto iterator = dataset.iterator();
      for (size_t i = 0; i < at; ++i) iterator.get_next();
      positions[w] = iterator.save();
      first[w] = rest_of(iterator);
      auto resumed = dataset.iterator();
      resumed.restore(positions[w]);
      second[w] = rest_of(resumed);
    });
    for (size_t w = 0; w < first.size(); ++w) {
      RC_ASSERT(first[w] == from((*expected)[w], at));
      RC_ASSERT(second[w] == from((*expected)[w], at));
    }

    const AutoShardPolicy policy = *resolved(pipeline, job);
    if (policy != AutoShardPolicy::kData && policy != AutoShardPolicy::kBatch) return;
    Job other = *jobs({AutoShardPolicy::kData, AutoShardPolicy::kBatch});
    const std::optional<Workers> others = model_of_job(pipeline, other);
    Workers found(static_cast<size_t>(other.workers));
    with_workers(builder, other, build_options(other), [&](const auto& dataset, int w) {
      auto iterator = dataset.iterator();
      iterator.restore(positions[static_cast<size_t>(saver)]);
      found[static_cast<size_t>(w)] = rest_of(iterator);
    });
    for (size_t w = 0; w < found.size(); ++w) RC_ASSERT(found[w] == from((*others)[w], at));
  });
}

}  // namespace tutti::property::distributed_property_test
