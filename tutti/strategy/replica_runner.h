// SPDX-License-Identifier: Apache-2.0
//
// Runs a function concurrently on every local replica, and lets the replicas meet.
// replica_meeting.cc begins with the states of a meeting.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include <c10/util/SmallVector.h>

#include "tutti/base/error.h"
#include "tutti/base/function_ref.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/base/wait_word.h"
#include "tutti/strategy/replica_random.h"
#include "tutti/values/meeting.h"
#include "tutti/values/replica_context.h"

namespace tutti {

namespace internal {
class CallerState;
}

struct ReplicaRunnerOptions {
  /// The number of threads LibTorch and BLAS use inside each replica; 0 means the usable cores
  /// divided by the local replicas, and by the workers that share them; at least 1. Results may
  /// depend on it, to the bit.
  int threads_per_replica = 0;

  /// How many replicas run simultaneously; 0 means all. With 1 the replicas take turns, which is
  /// handy in a debugger and gives the same bits.
  int concurrent_replicas = 0;

  /// A replica that waits this long for others logs where every replica is.
  std::chrono::milliseconds meeting_warning{5'000};

  /// A replica that waits this long for others fails with kDeadlineExceeded.
  std::chrono::milliseconds meeting_timeout{600'000};
};

/// Replica 0 runs on the thread that calls run(), the others on persistent named
/// threads. Thread-safe: callers of run() take turns.
class ReplicaRunner {
 public:
  /// `services` and `contexts` (local ids 0, 1, ...) outlive the runner. `who` is the
  /// strategy's name, for messages. Throws kInvalidArgument for bad options.
  ReplicaRunner(std::string who, StrategyServices& services, std::vector<ReplicaContext*> contexts,
                const ReplicaRunnerOptions& options = {});

  /// Must not be called during run().
  ~ReplicaRunner();

  ReplicaRunner(const ReplicaRunner&) = delete;
  ReplicaRunner& operator=(const ReplicaRunner&) = delete;

  /// Calls fn once for each replica and returns when all calls have ended. If some throw, the
  /// others are released at their next meeting point; then the exception of the lowest replica that
  /// failed by itself, and was not merely released, is rethrown.
  void run(FunctionRef<void(ReplicaContext&)> fn);

  /// Waits until all replicas have submitted a request, and completes the requests as they specify.
  /// Only for the thread that runs `replica`, or for one that entered its context. Throws on all
  /// replicas when the requests differ.
  void meet(int replica, MeetingRequest& request);

  /// How many runs have ended with an exception. Work that spans several meetings of a run is
  /// invalid once the number has changed.
  uint64_t failed_runs() const { return failed_runs_.load(std::memory_order_relaxed); }

  int size() const { return static_cast<int>(replicas_.size()); }
  int threads_per_replica() const { return threads_; }

 private:
  enum class State : int { kIdle, kRunning, kWaiting, kFinished };

  // The beginning of a name, which one thread writes while others read it. A torn name does no
  // harm: it is only printed.
  class NameWords {
   public:
    void store(std::string_view name);
    std::string load() const;

   private:
    std::array<std::atomic<uint64_t>, 6> words_ = {};
  };

  // One replica; the fields that a warning prints are atomic.
  struct alignas(64) Replica {
    ReplicaContext* context = nullptr;
    std::exception_ptr error;
    std::optional<ReplicaRandom> random;
    std::atomic<State> state{State::kIdle};
    std::atomic<bool> in_meeting{false};
    std::atomic<int> meetings{0};  // since run() began
    std::atomic<const char*> last_call{nullptr};
    std::atomic<const char*> last_file{nullptr};
    std::atomic<int> last_line{0};
    NameWords last_subject;
  };

  using Requests = c10::SmallVector<MeetingRequest*, 8>;

  void stop();
  void take_turn();
  void end_turn();
  void thread_body(int replica);
  void run_replica(int replica);
  void call_function(int replica);
  void finish(int replica);
  void wait_for_others();
  void rethrow_first_error();

  bool wait_for_all(int replica, uint32_t seen, const MeetingRequest& request);
  void complete_alone(int replica, uint32_t meeting, bool all_came);
  void complete_together(int replica, uint32_t meeting);
  std::exception_ptr compare_and_complete(int replica, uint32_t meeting, bool all_came);
  std::exception_ptr call_complete(int replica, const Requests& requests);
  std::exception_ptr released_error(const char* what, int replica,
                                    const std::exception_ptr& error) const noexcept;
  void wait_for_end(uint32_t seen);
  void close_meeting(uint32_t meeting, bool opened);
  void fail_meeting(uint32_t meeting, std::exception_ptr error_of_others);
  void throw_if_failed(uint32_t meeting);
  Requests collect_requests(int replica) const;
  void on_deadline(int replica, const MeetingRequest& request, std::chrono::milliseconds limit);
  Error mismatch_error() const;
  Error count_error() const;

  bool poison(std::exception_ptr error, bool only_while_waiting = false);
  [[noreturn]] void throw_poison();
  std::string where_replicas_are() const;
  WaitMode wait_mode() const;

  void acquire_permit();
  void release_permit();

  const std::string who_;
  StrategyServices& services_;
  const ReplicaRunnerOptions options_;
  const int threads_;
  const int concurrent_;
  const unsigned fork_count_;
  std::vector<Replica> replicas_;
  std::vector<MeetingNote> notes_;

  uint64_t runs_ = 0;  // written by the caller whose turn it is
  std::atomic<uint64_t> failed_runs_{0};

  // One run.
  std::atomic<uint32_t> next_turn_{0};
  WaitWord turn_;
  Mutex turn_mutex_;
  std::set<uint32_t> given_up_ TUTTI_GUARDED_BY(turn_mutex_);
  WaitWord go_;
  std::atomic<bool> stopping_{false};
  FunctionRef<void(ReplicaContext&)> fn_;
  const internal::CallerState* caller_ = nullptr;
  WaitWord all_finished_;
  std::atomic<int> permits_{0};
  WaitWord permit_released_;

  // One meeting: how many replicas have arrived, done their share and finished the run; the number
  // of the meeting and whether it is open.
  alignas(64) std::atomic<uint64_t> tally_{0};
  alignas(64) WaitWord signal_;
  alignas(64) std::atomic<uint32_t> failed_meeting_{~uint32_t{0}};
  Mutex poison_mutex_;
  std::exception_ptr poison_error_ TUTTI_GUARDED_BY(poison_mutex_);

  std::vector<std::unique_ptr<Thread>> threads_of_replicas_;  // last: they use everything above
};

}  // namespace tutti
