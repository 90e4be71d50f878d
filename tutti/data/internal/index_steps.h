// SPDX-License-Identifier: Apache-2.0
//
// Steps whose rows come from a random-access source, with only map() in between. The indices of
// every batch are walked, which costs next to nothing; only the worker's own rows are read and
// mapped. A position is a stored beginning and the number of steps since, so it is valid for any
// number of workers and replicas.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/data/node.h"
#include "tutti/data/step_stream.h"

namespace tutti::data {

/// The indices that the functions of maps are to be called for. Thread-safe.
class IndexQueue {
 public:
  void push(int64_t index);
  /// Ends the queue and wakes all waiting threads.
  void close();
  /// Waits for an index; false if the queue is closed and empty.
  bool pop(int64_t& index);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<int64_t> indices_ TUTTI_GUARDED_BY(mutex_);
  bool closed_ TUTTI_GUARDED_BY(mutex_) = false;
};

/// Reads only the rows of this worker. Threads: as StepStream.
class IndexSteps final : public StepStream {
 public:
  /// `rows` is node->batched_rows().
  IndexSteps(NodePtr node, const Node& rows, Iteration& iteration, const PieceOptions& options);
  ~IndexSteps() override;

  bool next(Step& out) override;
  void save(StateWriter& state, const std::deque<Step>& ahead) override;
  void restore(StateReader& state) override;

 private:
  struct Plan {
    std::vector<std::vector<int64_t>> pieces = {};  // the indices of each
    int64_t any_index = 0;                          // an index in the batch
  };

  bool plan_step();
  std::optional<Element> read_piece(const std::vector<int64_t>& indices);
  Element piece_without_rows(int64_t any_index);

  NodePtr node_;
  const Node& rows_;
  const Indexed& source_;
  const bool mapped_;
  const PieceOptions options_;

  std::unique_ptr<IndexBatchStream> batches_;
  std::string beginning_;
  int64_t steps_ = 0;  // delivered since the beginning
  bool ended_ = false;
  std::deque<Plan> plans_;
  int64_t planned_rows_ = 0;

  // These run the maps over the indices of this worker.
  IndexQueue queue_;
  NodePtr own_rows_;
  std::unique_ptr<ElementStream> mapped_rows_;
  std::optional<Element> without_rows_;
};

}  // namespace tutti::data
