// SPDX-License-Identifier: Apache-2.0
//
// How workers agree on the end of uneven data: before each step every worker tells all others how
// many of its replicas have data, and how many rows. Several passes may be under way
// simultaneously, such as a training and an evaluation. What others announce about a pass whose
// iterator was dropped here is discarded.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/group/input_progress.h"
#include "tutti/group/worker_group.h"

namespace tutti::internal {

/// The announcements of all workers, by pass and step. Thread-safe.
class InputBoard {
 public:
  explicit InputBoard(WorkerGroup& group);

  /// Returns the sums over all workers. Throws kUnavailable when a worker is gone or does not
  /// answer before the deadline of the group, and kCancelled when the iterator was dropped.
  InputTotals add_up(const InputProgress& progress);

  /// Drops what is known about a pass that is not asked about any more.
  void forget(int64_t pass);

 private:
  using Key = std::pair<int64_t, int64_t>;  // pass, step
  struct Note {
    int64_t pass;
    int64_t step;
    int64_t replicas;  // -1: not yet
    int64_t rows;
    int64_t stop;
  };

  void send(const Note& note, int rank) TUTTI_REQUIRES(mutex_);
  std::vector<Note>& notes_of(const Key& key) TUTTI_REQUIRES(mutex_);
  void read_all() TUTTI_REQUIRES(mutex_);
  int send_to_others(const Note& note, std::vector<bool>& sent) TUTTI_REQUIRES(mutex_);
  int first_silent(const Key& key) TUTTI_REQUIRES(mutex_);
  InputTotals take_totals(const Key& key) TUTTI_REQUIRES(mutex_);

  WorkerGroup& group_;  // owns this
  Lane& lane_;
  const Fingerprint fingerprint_;
  Mutex mutex_;
  std::map<Key, std::vector<Note>> notes_ TUTTI_GUARDED_BY(mutex_);  // of each rank
  std::set<int64_t> forgotten_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
