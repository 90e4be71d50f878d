// SPDX-License-Identifier: Apache-2.0
//
// What the workers tell each other beside the gradients of a step: each sends one message to each
// other worker, while the gradients are summed. In a group of one, nothing is written or read.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/function_ref.h"
#include "tutti/base/wait_word.h"
#include "tutti/group/worker_group.h"

namespace tutti {

/// Flags, a statement, and attached bytes. All workers exchange their notes in the same steps, with
/// equally many flags.
///
/// In a step each local replica may set flags; replica 0 may state and attach something. When all
/// have done so, all call exchange(), and until one of them writes again, all may read. Replicas
/// call concurrently only as described, each from its own thread.
class StepNote {
 public:
  /// The group outlives the note. Without a timeout, that of the group applies.
  StepNote(WorkerGroup& group, size_t local_replicas,
           std::optional<std::chrono::milliseconds> timeout);
  StepNote(const StepNote&) = delete;
  StepNote& operator=(const StepNote&) = delete;

  /// Initially 0. Must not be called during a step.
  void set_num_flags(size_t count);

  /// The flags of this worker, which a replica sets through std::atomic_ref. All are zero when a
  /// step begins. Empty in a group of one.
  std::span<uint8_t> flags() { return flags_; }

  /// Calls `write` if there are other workers: it adds numbers that must be bit-identical on all.
  void state(FunctionRef<void(std::vector<double>& numbers)> write);

  /// Calls `write` if there are other workers: it adds bytes for all of them.
  void attach(FunctionRef<void(std::vector<std::byte>& bytes)> write);

  /// Calls `meanwhile` on each replica, after replica 0 has sent the note; returns when the notes
  /// of all workers are here.
  void exchange(size_t replica, FunctionRef<void()> meanwhile);

  /// Exchanges a note that differs from that of a step: a worker that has summed gradients which it
  /// does not use must do so, and the others detect it unless they do the same.
  void exchange_dropped();

  // ---- after exchange()

  /// A flag is set if a replica of any worker had set it. Empty in a group of one.
  std::span<const uint8_t> flags_of_all() const { return flags_of_all_; }

  /// Two workers whose statements differ, and the first number that differs, or how many numbers
  /// each has if only that differs.
  struct Disagreement {
    std::array<std::string, 2> workers;
    size_t number = 0;
    std::array<double, 2> values = {};
    bool is_count = false;
  };
  const std::optional<Disagreement>& disagreement() const { return disagreement_; }

  /// What each worker has attached, in rank order. Empty in a group of one.
  std::span<const std::span<const std::byte>> attachments() const { return attachments_; }

 private:
  std::unique_ptr<Transfer> send(const char* name);
  void receive(Transfer& transfer);
  void check_size(int rank, size_t bytes) const;
  void read();
  void exchange_for_all(FunctionRef<void()> meanwhile);
  void wait_for(uint32_t exchange);

  WorkerGroup& group_;
  const std::optional<std::chrono::milliseconds> timeout_;
  std::vector<uint8_t> flags_;
  std::vector<double> statement_;
  std::vector<std::byte> attachment_;

  // The count of this worker's numbers, then its statement, flags and attachment, concatenated.
  std::vector<std::byte> mine_;
  std::vector<std::vector<std::byte>> notes_;  // one per worker

  std::vector<uint8_t> flags_of_all_;
  std::optional<Disagreement> disagreement_;
  std::vector<std::span<const std::byte>> attachments_;

  std::vector<uint32_t> exchanges_;  // that each local replica has begun
  WaitWord done_;                    // counts those that are over
  std::atomic<bool> failed_{false};  // for good, as the group has
  std::exception_ptr error_;         // written before failed_
};

}  // namespace tutti
