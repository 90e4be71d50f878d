// SPDX-License-Identifier: Apache-2.0
//
// What workers tell each other about their input before each step; see WorkerGroup::add_up().

#pragma once

#include <atomic>
#include <cstdint>

namespace tutti {

/// How far an iterator of a distributed dataset has advanced.
struct InputProgress {
  int64_t pass = 0;  ///< Numbers the iterators in the order in which the program made them.
  int64_t step = 0;
  int local_replicas_with_data = 0;
  int64_t local_rows = 0;  ///< Summed over the local replicas.
  bool stop = false;       ///< This worker was asked to stop.
  /// Set when the iterator is dropped: a waiting thread then gives up, with any error.
  const std::atomic<bool>* cancelled = nullptr;
};

/// The sums over all replicas of all workers in a step.
struct InputTotals {
  int replicas_with_data = 0;
  int64_t rows = 0;
  bool stop = false;  ///< Some worker was asked to stop.
};

}  // namespace tutti
