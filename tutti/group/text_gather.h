// SPDX-License-Identifier: Apache-2.0
//
// Gives the text of every rank to every rank, round by round: this is how ranks exchange addresses
// before there are links between them. Ranks of one process share an object; between processes
// rank 0 holds it, and join.cc delivers the texts of the others.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/mutex.h"
#include "tutti/base/wait_word.h"

namespace tutti {

/// Collects one text of each rank per round. Thread-safe.
class TextGather {
 public:
  using Texts = std::vector<std::string>;

  /// Errors begin with `who` and call the ranks by `names`; `advice` ends the error of a rank that
  /// has waited until its deadline.
  TextGather(std::string who, std::vector<std::string> names, std::string advice = {})
      : who_(std::move(who)),
        advice_(std::move(advice)),
        names_(std::move(names)),
        rounds_(names_.size()) {}

  /// Replaces the names in errors, once better ones are known.
  void set_names(std::vector<std::string> names);

  /// Returns the texts of all ranks in this rank's next round. Throws kDeadlineExceeded, which
  /// names the missing ranks, and kCancelled after fail().
  Texts gather(size_t rank, std::string mine, const Deadline& deadline);

  /// For a rank that does not wait here: `done` gets the texts as soon as the round is complete.
  void put(uint64_t round, size_t rank, std::string text, std::function<void(const Texts&)> done);

  /// Releases the ranks that wait for one that will not arrive.
  void fail();

 private:
  struct Round {
    Texts texts;
    std::vector<bool> arrived;
    size_t missing = 0;
    std::vector<std::function<void(const Texts&)>> waiting;
  };

  Round& round_at(uint64_t number) TUTTI_REQUIRES(mutex_);

  const std::string who_;
  const std::string advice_;
  WaitWord news_;
  Mutex mutex_;
  std::vector<std::string> names_ TUTTI_GUARDED_BY(mutex_);
  std::vector<uint64_t> rounds_ TUTTI_GUARDED_BY(mutex_);  // gathered by each rank so far
  std::map<uint64_t, Round> open_ TUTTI_GUARDED_BY(mutex_);
  bool failed_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
