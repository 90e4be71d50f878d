// SPDX-License-Identifier: Apache-2.0
//
// The reading side of a distributed dataset: steps of elements, one for each local
// replica, on their devices, ahead of the consumer. Untyped; distributed_dataset.h gives
// the elements their types.

#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/auto_shard.h"
#include "tutti/data/node.h"
#include "tutti/data/read_ahead.h"
#include "tutti/data/step_stream.h"
#include "tutti/strategy/input_options.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {

/// The state shared by all iterators of a distributed dataset. Immutable.
struct InputSource {
  std::shared_ptr<StrategyExtended> strategy;
  InputOptions options;

  /// One for this worker, or one for each of its replicas.
  std::vector<data::NodePtr> pipelines = {};
  /// How this worker's pipeline was sharded; unset if a function made the pipelines.
  std::optional<data::ShardedPipeline> sharded = std::nullopt;

  /// The seed for nodes without one, so that all workers use the same order.
  std::optional<uint64_t> seed = std::nullopt;

  /// The specs of what replicas get, one for each local replica.
  std::vector<data::ElementSpec> element_specs() const;
  int64_t cardinality() const;
};

/// Checks the arguments, shards the pipeline for this worker and logs the outcome.
std::shared_ptr<const InputSource> distribute_pipeline(
    const std::shared_ptr<StrategyExtended>& strategy, const data::NodePtr& pipeline,
    const InputOptions& options);

std::shared_ptr<const InputSource> distribute_pipelines(
    const std::shared_ptr<StrategyExtended>& strategy,
    const std::function<data::NodePtr(const InputContext&)>& make, const InputOptions& options);

/// One pass. Not thread-safe; used outside of replicas.
class InputReader {
 public:
  /// `blank` is an empty element of the right type.
  InputReader(std::shared_ptr<const InputSource> source, data::Element blank);
  ~InputReader();
  InputReader(const InputReader&) = delete;
  InputReader& operator=(const InputReader&) = delete;

  /// The elements of the next step, one for each local replica, and their rows on all workers;
  /// false at the end.
  bool next(std::vector<data::Element>& elements, int64_t& global_rows);

  std::string save();
  void restore(std::string_view position);
  std::vector<data::StageStats> stats() const;

 private:
  struct Ready {
    data::Step step;                      // as it was read
    std::vector<data::Element> elements;  // the same, for replicas
    InputTotals totals = {};
  };

  bool read(Ready& ready);
  const data::Element& element_without_rows();
  void learn_from_sample();
  void learn_from(const data::Element& element);

  const std::shared_ptr<const InputSource> source_;
  const int64_t pass_;
  int64_t step_ = 0;
  std::vector<std::unique_ptr<data::Iteration>> iterations_;  // outlive the streams
  std::unique_ptr<data::StepStream> steps_;
  data::Element blank_;
  std::optional<data::Element> without_rows_;  // what a replica without data gets
  bool has_seen_rows_ = false;                 // so it is not a guess
  bool ended_ = false;
  std::atomic<bool> dropped_{false};
  std::exception_ptr error_;
  std::unique_ptr<data::ReadAhead<Ready>> ahead_;  // last: its thread uses everything above
};

[[noreturn]] void throw_end_of_input();

/// Copies the tensors to the memory of the host.
data::Element host_copy(data::Element element);

}  // namespace tutti::internal
