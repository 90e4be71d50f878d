// SPDX-License-Identifier: Apache-2.0
//
// A meeting is one word, tally_: how many replicas have arrived at the present
// meeting point and how many have finished the present run.
//
//   arrive ──► arrived + finished < N      wait for signal_
//          ──► arrived == N                the last one compares and completes all
//                                          requests, empties the tally, raises
//                                          generation_ and signals
//          ──► arrived + finished == N     somebody finished without coming: error
//   finish ──► arrived + finished == N     the same, seen from the other side
//   throw  ──► poison: whoever waits or arrives later leaves with an error
//
// While a meeting is being completed nobody may leave: the requests lie on the
// stacks of the waiting replicas. A poison that comes then takes effect after it.

#include "tutti/strategy/replica_runner.h"

#include <algorithm>
#include <string_view>
#include <typeinfo>

#include <c10/util/SmallVector.h>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/internal/caller_state.h"

namespace tutti {
namespace {

constexpr uint64_t kArrived = 1;
constexpr uint64_t kFinished = uint64_t{1} << 24;
constexpr uint64_t kCountMask = kFinished - 1;
constexpr uint64_t kPoisoned = uint64_t{1} << 62;
constexpr uint64_t kPoisonPending = uint64_t{1} << 63;

uint64_t arrived(uint64_t tally) { return tally & kCountMask; }
uint64_t finished(uint64_t tally) { return (tally >> 24) & kCountMask; }

// Replicas inside run(), over all strategies of the process: with more of them
// than cores a thread that spins takes a core from one that works.
std::atomic<int> active_replicas{0};

// Thrown on replicas that are released because another one failed.
class CancelledByPeer final : public Error {
 public:
  explicit CancelledByPeer(const std::string& text) : Error(ErrorCode::kCancelled, text) {}
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    // LibTorch appends a backtrace; the first line says what happened.
    const std::string_view text = e.what();
    return std::string(text.substr(0, text.find('\n')));
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

bool is_cancellation(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CancelledByPeer&) {
    return true;
  } catch (...) {
    return false;
  }
}

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

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

ReplicaRunner::ReplicaRunner(std::string who, ReplicaHost& host,
                             std::vector<ReplicaContext*> contexts,
                             const ReplicaRunnerOptions& options)
    : who_(std::move(who)),
      host_(host),
      options_(options),
      threads_(checked_threads(who_, options, std::max<size_t>(contexts.size(), 1))),
      concurrent_(options.concurrent_replicas == 0
                      ? static_cast<int>(contexts.size())
                      : std::min(options.concurrent_replicas, static_cast<int>(contexts.size()))),
      fork_count_(fork_count()),
      replicas_(contexts.size()),
      permits_(concurrent_) {
  TUTTI_CHECK(!contexts.empty() && contexts.size() < kCountMask);
  for (size_t i = 0; i < contexts.size(); ++i) {
    replicas_[i].context = contexts[i];
    // A single replica draws from LibTorch's own generator, as a plain program does.
    if (contexts[i]->num_replicas_in_sync() > 1) {
      replicas_[i].random.emplace(contexts[i]->replica_id_in_sync_group());
    }
  }
  for (int i = 1; i < size(); ++i) {
    threads_of_replicas_.push_back(
        std::make_unique<Thread>(message("tutti/replica", i), [this, i] { thread_body(i); }));
  }
}

ReplicaRunner::~ReplicaRunner() {
  stopping_.store(true);
  go_.bump();
}

// ---- one run ---------------------------------------------------------------

void ReplicaRunner::run(FunctionRef<void(ReplicaContext&)> fn) {
  if (fork_count() != fork_count_) {
    throw Error(ErrorCode::kFailedPrecondition,
                message(who_,
                        "::run: this process was forked after the strategy was made, and "
                        "its threads stayed behind. Make the strategy in the child, or start "
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
  caller_ = &caller;
  tally_.store(0, std::memory_order_relaxed);
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

void ReplicaRunner::take_turn() {
  if (!busy_.exchange(true, std::memory_order_acquire)) return;
  const Deadline deadline = Deadline::after(options_.meeting_timeout);
  while (true) {
    const uint32_t seen = turn_.load();
    if (!busy_.exchange(true, std::memory_order_acquire)) return;
    if (!turn_.wait(seen, WaitMode::kYield, deadline)) {
      throw Error(ErrorCode::kDeadlineExceeded,
                  message(who_, "::run: another thread has been in run() of this strategy for ",
                          seconds(options_.meeting_timeout), " s; ", where_replicas_are(),
                          ". Callers take turns; a replica's function must not wait for a thread "
                          "that calls run()."));
    }
  }
}

void ReplicaRunner::end_turn() {
  busy_.store(false, std::memory_order_release);
  turn_.bump();
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
  const internal::FrameScope frame(&host_, me.context);
  std::optional<ReplicaRandom::Scope> random;
  if (me.random) random.emplace(*me.random);
  fn_(*me.context);
}

void ReplicaRunner::finish(int replica) {
  Replica& me = replicas_[static_cast<size_t>(replica)];
  me.state.store(State::kFinished, std::memory_order_relaxed);
  const uint64_t tally = tally_.fetch_add(kFinished, std::memory_order_acq_rel) + kFinished;
  const auto all = static_cast<uint64_t>(size());
  if (arrived(tally) > 0 && arrived(tally) + finished(tally) == all && (tally & kPoisoned) == 0) {
    poison(std::make_exception_ptr(Error(
        ErrorCode::kFailedPrecondition,
        message(who_, "::run: replicas made different numbers of calls: ", where_replicas_are(),
                ". Every replica must make the same merge_call, all_reduce and all_gather calls "
                "in the same order."))));
  }
  if (finished(tally) == all) all_finished_.bump();
}

void ReplicaRunner::wait_for_others() {
  const auto all = static_cast<uint64_t>(size());
  std::optional<Deadline> warning;
  while (true) {
    const uint32_t seen = all_finished_.load();
    if (finished(tally_.load(std::memory_order_acquire)) == all) return;
    if (all_finished_.poll(seen, wait_mode())) continue;
    // No limit here: the function lives on the caller's stack, so run() cannot
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
  if (first != nullptr) std::rethrow_exception(first);
}

// ---- meetings --------------------------------------------------------------

void ReplicaRunner::meet(int replica, MeetingRequest& request) {
  Replica& me = replicas_.at(static_cast<size_t>(replica));
  if (me.state.load(std::memory_order_relaxed) != State::kRunning ||
      me.in_meeting.exchange(true, std::memory_order_acquire)) {
    const bool running = me.state.load(std::memory_order_relaxed) != State::kIdle &&
                         me.state.load(std::memory_order_relaxed) != State::kFinished;
    throw Error(ErrorCode::kFailedPrecondition,
                message(who_, ": ", request.describe(), " on replica ",
                        me.context->replica_id_in_sync_group(),
                        running ? " while another thread of this replica is at a meeting point. "
                                  "Only one thread of a replica may call at a time."
                                : ", but its function is not running: the others would never "
                                  "come. Call it, or the backward pass that needs it, inside "
                                  "Strategy::run."));
  }
  struct Leave {
    Replica& me;
    ~Leave() {
      me.state.store(State::kRunning, std::memory_order_relaxed);
      me.in_meeting.store(false, std::memory_order_release);
    }
  } const leave{me};
  me.last_file.store(request.site().file, std::memory_order_relaxed);
  me.last_line.store(request.site().line, std::memory_order_relaxed);
  me.last_call.store(request.name(), std::memory_order_relaxed);
  me.meetings.fetch_add(1, std::memory_order_relaxed);
  me.request = &request;
  me.state.store(State::kWaiting, std::memory_order_relaxed);

  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  const uint32_t seen = signal_.load();
  if ((tally_.load(std::memory_order_acquire) & kPoisoned) != 0) throw_poison();
  const uint64_t tally = tally_.fetch_add(kArrived, std::memory_order_acq_rel) + kArrived;
  if ((tally & kPoisoned) != 0) throw_poison();
  if (arrived(tally) + finished(tally) == static_cast<uint64_t>(size())) {
    complete_meeting(replica, finished(tally));
  } else {
    wait_in_meeting(replica, generation, seen, request);
  }
}

// Looks at the tally only after a signal: polling it would take its cache line
// away from those who still arrive.
void ReplicaRunner::wait_in_meeting(int replica, uint32_t generation, uint32_t seen,
                                    const MeetingRequest& request) {
  release_permit();
  struct Reacquire {
    ReplicaRunner* runner;
    ~Reacquire() { runner->acquire_permit(); }
  } const reacquire{this};
  const std::chrono::milliseconds limit = request.timeout().value_or(options_.meeting_timeout);
  std::optional<Deadline> warning;
  std::optional<Deadline> deadline;
  while (true) {
    if (!signal_.poll(seen, wait_mode())) {
      if (!deadline) {
        deadline = Deadline::after(limit);
        warning = Deadline::after(options_.meeting_warning);
      }
      if (!signal_.park(seen, warning->when() < deadline->when() ? *warning : *deadline)) {
        if (deadline->passed()) {
          on_deadline(replica, request, limit);
        } else if (warning->passed()) {
          warning = Deadline::forever();
          log(LogLevel::kWarning,
              message(who_, ": ", request.name(), " has waited for ",
                      seconds(options_.meeting_warning), " s; ", where_replicas_are(), "."));
        }
        continue;
      }
    }
    seen = signal_.load();
    if (generation_.load(std::memory_order_acquire) != generation) break;
    if ((tally_.load(std::memory_order_acquire) & kPoisoned) != 0) throw_poison();
    help(replica);
  }
  if (failed_generation_.load(std::memory_order_relaxed) == generation) throw_poison();
}

void ReplicaRunner::on_deadline(int replica, const MeetingRequest& request,
                                std::chrono::milliseconds limit) {
  const int id = replicas_[static_cast<size_t>(replica)].context->replica_id_in_sync_group();
  poison(std::make_exception_ptr(
      Error(ErrorCode::kDeadlineExceeded,
            message(who_, ": replica ", id, " waited ", seconds(limit), " s in ",
                    request.describe(), "; ", where_replicas_are(),
                    ". If the work between two meeting points may take longer, raise "
                    "meeting_timeout or CommunicationOptions::timeout."))));
}

void ReplicaRunner::complete_meeting(int replica, uint64_t finished_count) {
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  std::exception_ptr error;
  std::exception_ptr error_of_others;
  try {
    if (finished_count > 0) {
      throw Error(
          ErrorCode::kFailedPrecondition,
          message(who_, "::run: replicas made different numbers of calls: ", where_replicas_are(),
                  ". Every replica must make the same merge_call, all_reduce and "
                  "all_gather calls in the same order."));
    }
    check_agreement();
  } catch (...) {
    error = error_of_others = std::current_exception();
  }
  if (error == nullptr) {
    c10::SmallVector<MeetingRequest*, 8> requests;
    for (Replica& each : replicas_) requests.push_back(each.request);
    const internal::FrameScope cross(&host_, nullptr);
    std::optional<ReplicaRandom::Scope> random;
    // Which replica comes last is chance; the numbers drawn here must not be.
    if (replica != 0 && replicas_[0].random) random.emplace(*replicas_[0].random);
    completer_ = replica;
    completing_.store(true, std::memory_order_relaxed);
    try {
      const bool last = requests[0]->completer() == MeetingRequest::Completer::kLast;
      MeetingRequest* completer = requests[last ? static_cast<size_t>(replica) : 0];
      completer->complete({requests.data(), requests.size()});
    } catch (...) {
      error = std::current_exception();
      const int id = replicas_[static_cast<size_t>(replica)].context->replica_id_in_sync_group();
      error_of_others = std::make_exception_ptr(CancelledByPeer(
          message(who_, ": released because ", requests[0]->name(), " failed on replica ", id,
                  ", which ran it for all: ", text_of(error))));
    }
    completing_.store(false, std::memory_order_relaxed);
  }
  if (error != nullptr) {
    const MutexLock lock(poison_mutex_);
    poison_error_ = error_of_others;
    failed_generation_.store(generation, std::memory_order_relaxed);
  }
  uint64_t tally = tally_.load(std::memory_order_relaxed);
  while (true) {
    const bool poisoned = error != nullptr || (tally & (kPoisoned | kPoisonPending)) != 0;
    const uint64_t next =
        (tally & ~(kCountMask | kPoisonPending | kPoisoned)) | (poisoned ? kPoisoned : 0);
    if (tally_.compare_exchange_weak(tally, next, std::memory_order_acq_rel)) break;
  }
  generation_.store(generation + 1, std::memory_order_release);
  if (size() > 1) signal_.bump();
  if (error != nullptr) std::rethrow_exception(error);
}

void ReplicaRunner::check_agreement() const {
  const MeetingRequest& first = *replicas_[0].request;
  for (size_t i = 1; i < replicas_.size(); ++i) {
    const MeetingRequest& other = *replicas_[i].request;
    if (typeid(first) == typeid(other) && first.fingerprint() == other.fingerprint()) continue;
    std::string calls;
    for (const Replica& each : replicas_) {
      const CallSite site = each.request->site();
      calls +=
          message(calls.empty() ? "replica " : "; replica ",
                  each.context->replica_id_in_sync_group(), " called ", each.request->describe());
      if (site.line != 0) calls += message(" (", site, ")");
    }
    throw Error(
        ErrorCode::kInvalidArgument,
        message(who_, ": replicas asked for different things at meeting point ",
                replicas_[0].meetings.load(std::memory_order_relaxed), " of this run: ", calls,
                ". Every replica must make the same calls in the same order, with "
                "equal types and shapes (all_gather accepts different sizes along its "
                "axis)."));
  }
}

// Returns false when the run was poisoned before.
bool ReplicaRunner::poison(std::exception_ptr error) {
  {
    const MutexLock lock(poison_mutex_);
    uint64_t tally = tally_.load(std::memory_order_relaxed);
    while (true) {
      if ((tally & (kPoisoned | kPoisonPending)) != 0) return false;
      const bool in_completion =
          arrived(tally) == static_cast<uint64_t>(size()) && finished(tally) == 0;
      poison_error_ = error;
      const uint64_t bit = in_completion ? kPoisonPending : kPoisoned;
      if (tally_.compare_exchange_weak(tally, tally | bit, std::memory_order_acq_rel)) break;
    }
  }
  signal_.bump();
  return true;
}

void ReplicaRunner::throw_poison() {
  std::exception_ptr error;
  {
    const MutexLock lock(poison_mutex_);
    error = poison_error_;
  }
  std::rethrow_exception(error);
}

std::string ReplicaRunner::where_replicas_are() const {
  std::string text;
  for (const Replica& each : replicas_) {
    const char* call = each.last_call.load(std::memory_order_relaxed);
    const int meetings = each.meetings.load(std::memory_order_relaxed);
    const CallSite site{each.last_file.load(std::memory_order_relaxed),
                        each.last_line.load(std::memory_order_relaxed)};
    text +=
        message(text.empty() ? "replica " : ", replica ", each.context->replica_id_in_sync_group());
    const std::string where = call == nullptr
                                  ? std::string("no meeting point yet")
                                  : message(call, ", meeting point ", meetings,
                                            site.line == 0 ? "" : message(" at ", site));
    switch (each.state.load(std::memory_order_relaxed)) {
      case State::kWaiting:
        text += message(" waits in ", where);
        break;
      case State::kRunning:
        text += message(" is computing (last: ", where, ")");
        break;
      case State::kFinished:
        text += message(" has finished (last: ", where, ")");
        break;
      case State::kIdle:
        text += " is idle";
        break;
    }
  }
  return text;
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
    // Bounded by the others: a permit is free whenever one of them waits or ends.
    permit_released_.wait(seen, WaitMode::kYield, Deadline::forever());
  }
}

void ReplicaRunner::release_permit() {
  if (concurrent_ == size()) return;
  permits_.fetch_add(1, std::memory_order_release);
  permit_released_.bump();
}

// ---- shared work -----------------------------------------------------------

void ReplicaRunner::parallel_for(int64_t count, FunctionRef<void(int64_t)> body) {
  const bool alone = size() == 1 || count <= 1 || concurrent_ < size() ||
                     !completing_.load(std::memory_order_relaxed);
  if (alone) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  body_ = body;
  unfinished_.store(count, std::memory_order_relaxed);
  for (int64_t r = 0, begin = 0; r < size(); ++r) {
    const int64_t end = count * (r + 1) / size();
    Replica& each = replicas_[static_cast<size_t>(r)];
    each.work_end = end;
    each.work_left.store(end - begin, std::memory_order_release);
    begin = end;
  }
  signal_.bump();
  help(completer_);
  while (true) {
    const uint32_t seen = work_done_.load();
    if (unfinished_.load(std::memory_order_acquire) == 0) break;
    work_done_.wait(seen, wait_mode(), Deadline::forever());
  }
  std::exception_ptr error;
  {
    const MutexLock lock(work_mutex_);
    error = std::exchange(work_error_, nullptr);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

// Claims chunks, first of the own part, then of the others'. A part counts down,
// so a claim that comes late finds nothing, or chunks of the next parallel_for.
void ReplicaRunner::help(int replica) {
  if (concurrent_ < size()) return;
  int64_t done = 0;
  for (int k = 0; k < size(); ++k) {
    Replica& part = replicas_[static_cast<size_t>((replica + k) % size())];
    while (part.work_left.load(std::memory_order_relaxed) > 0) {
      const int64_t left = part.work_left.fetch_sub(1, std::memory_order_acquire);
      if (left <= 0) break;
      try {
        body_(part.work_end - left);
      } catch (...) {
        const MutexLock lock(work_mutex_);
        if (work_error_ == nullptr) work_error_ = std::current_exception();
      }
      ++done;
    }
  }
  if (done > 0 && unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done) {
    work_done_.bump();
  }
}

}  // namespace tutti
