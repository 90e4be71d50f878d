// SPDX-License-Identifier: Apache-2.0
//
// What workers tell each other about their input before each step; see
// WorkerGroup::add_up().

#pragma once

#include <atomic>
#include <cstdint>

namespace tutti {

/// Where an iterator of a distributed dataset is.
struct InputProgress {
  int64_t pass = 0;  ///< Counts the iterators that were made, in the order of the program.
  int64_t step = 0;
  int local_replicas_with_data = 0;
  int64_t local_rows = 0;  ///< Of all local replicas.
  bool stop = false;       ///< This worker was asked to stop.
  /// Set when the iterator is dropped: whoever waits shall give up, with any error.
  const std::atomic<bool>* cancelled = nullptr;
};

/// What all replicas of all workers have in a step.
struct InputTotals {
  int replicas_with_data = 0;
  int64_t rows = 0;
  bool stop = false;  ///< Some worker was asked to.
};

}  // namespace tutti
