// SPDX-License-Identifier: Apache-2.0
//
// Runs: which thread calls the function, and how errors are handled. Meetings are in
// replica_meeting.cc.

#include "tutti/strategy/replica_runner.h"

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/internal/caller_state.h"
#include "tutti/strategy/internal/tally.h"

namespace tutti {

using namespace internal::tally;  // NOLINT(google-build-using-namespace): its few constants
using internal::CancelledByPeer;
using internal::seconds;
using internal::text_of;

namespace {

// The number of replicas inside run(), over all strategies of the process. If it exceeds
// the number of cores, a spinning thread takes a core from a working one.
std::atomic<int> active_replicas{0};

bool is_cancellation(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CancelledByPeer&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Adds the replica and the step, which LibTorch does not know.
void add_explanation(c10::Error& error, const internal::ErrorExplainer* explainer,
                     const ReplicaContext& context, const std::string& who, uint64_t step) {
  std::string more;
  if (explainer != nullptr) more = explainer->explain(context, error.what_without_backtrace());
  const MutexLock lock(internal::shared_errors());
  if (!more.empty()) error.add_context(std::move(more));
  error.add_context(message("In replica ", context.replica_id_in_sync_group(), " of ",
                            context.num_replicas_in_sync(), ", step ", step, " of ", who, "::run"));
}

int checked_threads(const std::string& who, const ReplicaRunnerOptions& options, size_t replicas) {
  const auto refuse = [&who](const char* field, auto value, const char* rule) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": ", field, " is ", value, "; it must be ", rule, "."));
  };
  if (options.threads_per_replica < 0) {
    refuse("threads_per_replica", options.threads_per_replica, "0 (automatic) or more");
  }
  if (options.concurrent_replicas < 0) {
    refuse("concurrent_replicas", options.concurrent_replicas, "0 (all) or more");
  }
  if (options.meeting_warning.count() <= 0) {
    refuse("meeting_warning in ms", options.meeting_warning.count(), "positive");
  }
  if (options.meeting_timeout.count() <= 0) {
    refuse("meeting_timeout in ms", options.meeting_timeout.count(), "positive");
  }
  if (options.threads_per_replica > 0) return options.threads_per_replica;
  return std::max(1, usable_cores() / static_cast<int>(replicas));
}

class ActiveScope {
 public:
  explicit ActiveScope(int replicas) : replicas_(replicas) {
    active_replicas.fetch_add(replicas_, std::memory_order_relaxed);
  }
  ~ActiveScope() { active_replicas.fetch_sub(replicas_, std::memory_order_relaxed); }
  ActiveScope(const ActiveScope&) = delete;
  ActiveScope& operator=(const ActiveScope&) = delete;

 private:
  int replicas_;
};

}  // namespace

ReplicaRunner::ReplicaRunner(std::string who, StrategyServices& services,
                             std::vector<ReplicaContext*> contexts,
                             const ReplicaRunnerOptions& options)
    : who_(std::move(who)),
      services_(services),
      options_(options),
      threads_(checked_threads(who_, options, std::max<size_t>(contexts.size(), 1))),
      concurrent_(options.concurrent_replicas == 0
                      ? static_cast<int>(contexts.size())
                      : std::min(options.concurrent_replicas, static_cast<int>(contexts.size()))),
      fork_count_(fork_count()),
      replicas_(contexts.size()),
      notes_(contexts.size()),
      permits_(concurrent_) {
  TUTTI_CHECK(!contexts.empty() && contexts.size() < kCountMask);
  warn_of_slow_blas();
  for (size_t i = 0; i < contexts.size(); ++i) {
    replicas_[i].context = contexts[i];
    // A single replica draws from LibTorch's own generator, as a plain program does.
    if (contexts[i]->num_replicas_in_sync() > 1) {
      replicas_[i].random.emplace(contexts[i]->replica_id_in_sync_group());
    }
  }
  try {
    for (int i = 1; i < size(); ++i) {
      threads_of_replicas_.push_back(
          std::make_unique<Thread>(message("tutti/replica", i), [this, i] { thread_body(i); }));
    }
  } catch (const Error& error) {
    const size_t started = threads_of_replicas_.size() + 1;
    stop();  // the destructor does not run if the constructor throws
    throw Error(ErrorCode::kUnavailable,
                message(who_, ": replica ", started, " of ", size(),
                        " could not get a thread: ", error.what(), " Or use fewer replicas."));
  }
}

ReplicaRunner::~ReplicaRunner() { stop(); }

void ReplicaRunner::stop() {
  stopping_.store(true);
  go_.bump();
  threads_of_replicas_.clear();
}

// ---- one run ---------------------------------------------------------------

void ReplicaRunner::run(FunctionRef<void(ReplicaContext&)> fn) {
  if (size() > 1 && fork_count() != fork_count_) {
    throw Error(
        ErrorCode::kFailedPrecondition,
        message(who_,
                "::run: this process was forked after the strategy was made, and "
                "its threads exist only in the parent. Make the strategy in the child, or start "
                "the child with exec."));
  }
  take_turn();
  struct EndTurn {
    ReplicaRunner* runner;
    ~EndTurn() { runner->end_turn(); }
  } const end_turn{this};
  const ActiveScope active(concurrent_);
  const BlasThreadsScope blas(threads_);
  const internal::CallerState caller;
  if (replicas_[0].random) {
    const uint64_t key = draw_random_key();
    for (Replica& replica : replicas_) replica.random->begin(key);
  }
  fn_ = fn;
  ++runs_;
  caller_ = &caller;
  tally_.store(0, std::memory_order_relaxed);
  failed_meeting_.store(~uint32_t{0}, std::memory_order_relaxed);
  for (Replica& replica : replicas_) {
    replica.meetings.store(0, std::memory_order_relaxed);
    replica.last_call.store(nullptr, std::memory_order_relaxed);
    replica.state.store(State::kRunning, std::memory_order_relaxed);
  }
  if (size() > 1) go_.bump();
  run_replica(0);
  wait_for_others();
  for (Replica& replica : replicas_) replica.state.store(State::kIdle, std::memory_order_relaxed);
  rethrow_first_error();
}

// Callers are served in order of arrival. turn_ counts the runs that have ended; a caller
// that gave up leaves its number behind, which is then skipped.
void ReplicaRunner::take_turn() {
  const uint32_t mine = next_turn_.fetch_add(1, std::memory_order_relaxed);
  if (turn_.load() == mine) return;
  const Deadline deadline = Deadline::after(options_.meeting_timeout);
  while (true) {
    const uint32_t seen = turn_.load();
    if (seen == mine) return;
    if (turn_.wait(seen, WaitMode::kYield, deadline)) continue;
    const MutexLock lock(turn_mutex_);
    if (turn_.load() == mine) return;
    given_up_.insert(mine);
    throw Error(ErrorCode::kDeadlineExceeded,
                message(who_, "::run: another thread has been in run() of this strategy for ",
                        seconds(options_.meeting_timeout), " s; ", where_replicas_are(),
                        ". Callers take turns; a replica's function must not wait for a thread "
                        "that calls run()."));
  }
}

void ReplicaRunner::end_turn() {
  const MutexLock lock(turn_mutex_);
  turn_.bump();
  while (given_up_.erase(turn_.load()) > 0) turn_.bump();
}

void ReplicaRunner::thread_body(int replica) {
  uint32_t seen = 0;
  while (true) {
    const bool room = active_replicas.load(std::memory_order_relaxed) + size() <= usable_cores();
    go_.wait(seen, room ? WaitMode::kSpin : WaitMode::kYield, Deadline::forever());
    seen = go_.load();
    if (stopping_.load()) return;
    run_replica(replica);
  }
}

void ReplicaRunner::run_replica(int replica) {
  Replica& me = replicas_[static_cast<size_t>(replica)];
  acquire_permit();
  try {
    call_function(replica);
  } catch (...) {
    me.error = std::current_exception();
    poison(std::make_exception_ptr(CancelledByPeer(message(who_, "::run: released because replica ",
                                                           me.context->replica_id_in_sync_group(),
                                                           " failed: ", text_of(me.error)))));
  }
  release_permit();
  finish(replica);
}

void ReplicaRunner::call_function(int replica) {
  Replica& me = replicas_[static_cast<size_t>(replica)];
  const internal::CallerState::Scope caller(*caller_);
  const TorchThreadsScope threads(threads_);
  const DeviceScope device(me.context->device());
  const internal::FrameScope frame(&services_, me.context);
  const internal::SlotScope<&internal::ThreadContext::explainer> nothing_used_yet(nullptr);
  std::optional<ReplicaRandom::Scope> random;
  if (me.random) random.emplace(*me.random);
  try {
    fn_(*me.context);
  } catch (c10::Error& error) {
    // Rethrows the same object, which preserves its type.
    add_explanation(error, internal::thread_context.explainer, *me.context, who_, runs_);
    throw;
  }
}

void ReplicaRunner::finish(int replica) {
  Replica& me = replicas_[static_cast<size_t>(replica)];
  me.state.store(State::kFinished, std::memory_order_relaxed);
  const auto all = static_cast<uint64_t>(size());
  uint64_t tally = tally_.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t next = tally + kFinished;
    const bool others_wait_in_vain =
        arrived(next) > 0 && arrived(next) + finished(next) == all && (next & kPoisoned) == 0;
    if (others_wait_in_vain) {
      // Poisons and counts atomically: a later poison could hit the next run.
      const auto error = std::make_exception_ptr(count_error());
      const MutexLock lock(poison_mutex_);
      poison_error_ = error;
      if (!tally_.compare_exchange_strong(tally, next | kPoisoned, std::memory_order_acq_rel)) {
        continue;
      }
      signal_.flip(kPoisonHint);
    } else if (!tally_.compare_exchange_weak(tally, next, std::memory_order_acq_rel)) {
      continue;
    }
    if (finished(next) == all) all_finished_.bump();
    return;
  }
}

void ReplicaRunner::wait_for_others() {
  const auto all = static_cast<uint64_t>(size());
  std::optional<Deadline> warning;
  while (true) {
    const uint32_t seen = all_finished_.load();
    if (finished(tally_.load(std::memory_order_acquire)) == all) return;
    if (all_finished_.poll(seen, wait_mode())) continue;
    // Waits without a limit: the function lives on the caller's stack, so run() cannot
    // return while a replica is in it.
    if (!warning) warning = Deadline::after(options_.meeting_warning);
    if (!all_finished_.park(seen, *warning)) {
      log(LogLevel::kWarning,
          message(who_, "::run: still waiting after ", seconds(options_.meeting_warning), " s; ",
                  where_replicas_are(), "."));
      warning = Deadline::forever();
    }
  }
}

void ReplicaRunner::rethrow_first_error() {
  std::exception_ptr first;
  bool found_cause = false;
  for (Replica& replica : replicas_) {
    if (replica.error == nullptr) continue;
    const bool is_cause = !found_cause && !is_cancellation(replica.error);
    if (first == nullptr || is_cause) first = replica.error;
    found_cause = found_cause || is_cause;
    replica.error = nullptr;
  }
  if (first == nullptr) return;
  failed_runs_.fetch_add(1, std::memory_order_relaxed);
  std::rethrow_exception(first);
}

WaitMode ReplicaRunner::wait_mode() const {
  return active_replicas.load(std::memory_order_relaxed) <= usable_cores() ? WaitMode::kSpin
                                                                           : WaitMode::kYield;
}

// ---- replicas that take turns ----------------------------------------------

void ReplicaRunner::acquire_permit() {
  if (concurrent_ == size()) return;
  while (true) {
    const uint32_t seen = permit_released_.load();
    int free = permits_.load(std::memory_order_relaxed);
    while (free > 0) {
      if (permits_.compare_exchange_weak(free, free - 1, std::memory_order_acquire)) return;
    }
    // The others bound this wait: a permit becomes free whenever one of them waits or ends.
    permit_released_.wait(seen, WaitMode::kYield, Deadline::forever());
  }
}

void ReplicaRunner::release_permit() {
  if (concurrent_ == size()) return;
  permits_.fetch_add(1, std::memory_order_release);
  permit_released_.bump();
}

}  // namespace tutti
