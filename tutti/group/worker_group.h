// SPDX-License-Identifier: Apache-2.0
//
// The workers of a lock-step job, as one of them sees them. A worker without others is a group of
// one: every call is legal, and returns what it was given. make_group() in connect.h makes a group
// of several; lanes (lane.h) move bytes between their ranks.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/error.h"
#include "tutti/base/function_ref.h"
#include "tutti/base/mutex.h"
#include "tutti/base/wait_word.h"
#include "tutti/device/arena.h"
#include "tutti/group/input_progress.h"
#include "tutti/group/lane.h"

namespace tutti {

namespace internal {
class InputBoard;
}

/// A rank among others, as the backends have connected it. Thread-safe. All ranks must issue the
/// calls that they make together in the same order.
class WorkerGroup {
 public:
  struct Options {
    int rank = 0;
    uint64_t epoch = 0;
    std::vector<std::string> names = {};  ///< One per rank: "/job:worker/task:1 (hostB:4321)".
    WaitMode wait_mode = WaitMode::kYield;
    size_t chunk_bytes = 256 << 10;  ///< Size of one message of a reduction; equal on all ranks.
    size_t depth = 1;                ///< Parts of a reduction that are under way simultaneously.
    bool has_remote = false;         ///< Whether any two ranks are connected through the network.
    std::chrono::milliseconds timeout{300'000};
    /// Waits longer than this are logged; the limit doubles each time.
    std::chrono::milliseconds warning{5'000};
    /// How this rank reaches the others, for diagnostics: "shared memory (its memory can be
    /// mapped)", "shared memory for ranks 1, grpc for ranks 2 (rank 2: ...)".
    std::string description = {};
  };
  /// One link for each lane and each rank; that of this rank is null.
  using Links = std::vector<std::vector<std::unique_ptr<Link>>>;

  /// `shared` is memory that peers on this machine can read; null if there are none. `keep` is
  /// whatever the links need, and dies after them.
  WorkerGroup(Options options, Links links, std::shared_ptr<Arena> shared,
              std::shared_ptr<void> keep);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  /// A group of one.
  static std::shared_ptr<WorkerGroup> alone();

  int rank() const { return options_.rank; }
  int size() const { return static_cast<int>(options_.names.size()); }
  bool is_alone() const { return options_.names.size() == 1; }
  const Options& options() const { return options_; }
  const std::string& name(int rank) const { return options_.names[static_cast<size_t>(rank)]; }

  /// " of worker 1 of 2", a suffix for the name of a strategy; empty in a group of one.
  std::string place() const;

  // ---- what all ranks do together; `what` names it in errors and must be equal on all ranks

  /// Returns the bytes of every rank, in rank order, given those of this one.
  std::vector<at::Tensor> gather(const at::Tensor& mine, std::string_view what,
                                 std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  /// Replaces the contents of a tensor by those of rank 0.
  void broadcast(const at::Tensor& tensor, std::string_view what,
                 std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  /// Returns the tensor of rank 0, given that of this rank: a copy, or in a group of one the tensor
  /// itself.
  at::Tensor of_first(const at::Tensor& mine, std::string_view what);

  /// Returns the numbers of all ranks, concatenated in rank order, given those of this one. All
  /// ranks have equally many. `what` is called only if there are other ranks.
  template <class T>
    requires std::is_arithmetic_v<T> std::vector<T> concatenate(
        std::vector<T> mine, FunctionRef<std::string()> what,
        std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
      if (is_alone()) return mine;
      std::vector<T> all(mine.size() * static_cast<size_t>(size()));
      gather_equal(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), what(),
                   timeout);
      return all;
    }

  /// Returns a number that all ranks share, proposed by rank 0; nothing in a group of one.
  std::optional<uint64_t> agree(FunctionRef<uint64_t()> propose, std::string_view what);

  /// Returns when every rank has called it.
  void barrier(std::string_view what);

  /// Returns what all replicas have in a step of their input, which ends at the first step where no
  /// replica has data. Every rank calls it once for every step, even a rank whose own data have
  /// ended; the thread that reads ahead calls it one step ahead. Throws kUnavailable when a worker
  /// is gone or does not answer before the deadline, and kCancelled when the iterator was dropped.
  InputTotals add_up(const InputProgress& progress);

  /// Numbers the passes over the input, which all ranks begin in the same order. After a restored
  /// pass come those that followed it.
  int64_t begin_input_pass() { return input_passes_.fetch_add(1); }
  void go_on_after_input_pass(int64_t pass);

  /// Forgets a pass whose iterator was dropped.
  void end_input_pass(int64_t pass);

  // ---- one step, and the end

  /// Counts the runs that begin, from 1. What is exchanged in a run carries its number.
  void begin_step() { step_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t step() const { return step_.load(std::memory_order_relaxed); }

  /// Ends all operations of all ranks, now and later, with an error of this code. The first call
  /// wins, and returns true; `text` says which rank gave up and why. If ranks disagree on the
  /// operation (kFailedPrecondition, kInvalidArgument), the last operations are logged. A group of
  /// one has no peer to tell, and continues.
  bool abort(ErrorCode code, const std::string& text);

  /// Throws the error of the first abort(), by this rank or by a peer that has reported it.
  void throw_if_aborted();
  /// The same, after checking what peers have reported.
  void check() {
    if (!is_alone()) check_peers();
  }
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

  // ---- for code above lanes

  Lane& lane(LaneKind which) { return *lanes_[static_cast<size_t>(which)]; }

  /// Memory for what will be reduced: peers on this machine, if there are any, read it in place.
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  /// How many reducers share the lane of gradients. Any thread may use it.
  std::atomic<int>& gradient_reducers() { return gradient_reducers_; }

 private:
  friend class Lane;

  void check_peers();
  void gather_equal(std::span<const std::byte> mine, std::span<std::byte> all,
                    const std::string& what, std::optional<std::chrono::milliseconds> timeout);
  void log_operations() const;

  const Options options_;
  std::shared_ptr<void> keep_;
  std::shared_ptr<Arena> shared_;
  std::shared_ptr<Arena> arena_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<internal::InputBoard> input_;
  std::atomic<uint64_t> step_{0};
  std::atomic<int64_t> input_passes_{0};
  std::atomic<int> gradient_reducers_{0};
  std::atomic<int64_t> warning_;  // in milliseconds: longer waits are logged
  std::atomic<bool> aborted_{false};
  Mutex telling_;  // held while the other ranks are told that this one gives up
  Mutex mutex_;
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
