// SPDX-License-Identifier: Apache-2.0
//
// Moves bytes between the ranks of a group. Every call is an operation that all ranks concerned
// make in the same order; what each believes it is travels with the bytes and is compared.
// Reductions are written above this, in worker_all_reduce.h; make_group() in backends.h makes a
// group.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/base/wait_word.h"
#include "tutti/device/arena.h"
#include "tutti/group/link.h"
#include "tutti/group/operation.h"

namespace tutti {

class Communicator;

/// Channels are independent of each other: each has its own order of operations.
enum class GroupChannel : uint8_t {
  kCollectives,  ///< What the program asks for.
  kGradients,    ///< Buckets of gradients.
  kFlags,        ///< What goes beside the buckets of a step.
  kInput,        ///< Which replicas have data; sent ahead by the thread that reads the input.
};
inline constexpr size_t kGroupChannels = 4;

/// A rank among others, as the backends have connected it. Thread-safe.
class WorkerGroup {
 public:
  struct Options {
    int rank = 0;
    uint64_t epoch = 0;
    std::vector<std::string> names = {};  ///< "/job:worker/task:1 (hostB:4321)", of each rank.
    WaitMode wait_mode = WaitMode::kYield;
    size_t chunk_bytes = 256 << 10;  ///< What one message of a reduction holds; equal on all ranks.
    size_t depth = 1;                ///< Parts of a reduction that are under way at once.
    bool has_remote = false;         ///< Some rank, of any, is on another machine.
    std::chrono::milliseconds timeout{300'000};
    /// A wait so long is logged, then one twice as long.
    std::chrono::milliseconds warning{5'000};
    std::string description = {};  ///< "host", "grpc", "host for 1, grpc for 2"
  };
  /// Of each channel, of each rank; that of the own rank is null.
  using Links = std::vector<std::vector<std::unique_ptr<Link>>>;

  /// `shared` is memory that peers on this machine can read; null if there are none. `keep` is
  /// whatever the links need, and dies after them.
  WorkerGroup(Options options, Links links, std::shared_ptr<Arena> shared,
              std::shared_ptr<void> keep);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return static_cast<int>(options_.names.size()); }
  const Options& options() const { return options_; }
  const std::string& name(int rank) const { return options_.names[static_cast<size_t>(rank)]; }

  Communicator& channel(GroupChannel which) { return *channels_[static_cast<size_t>(which)]; }

  /// Memory for what will be reduced: peers on this machine, if there are any, read it where it
  /// lies.
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  /// Ends all operations of all ranks, now and later, with an error of this code. The first call
  /// decides, and returns true; `text` says who gave up and why. If ranks do not do the same
  /// (kFailedPrecondition, kInvalidArgument), the last operations are logged.
  bool abort(ErrorCode code, const std::string& text);

  /// Throws what abort() was called with, here or, as far as it is known, by a peer.
  void throw_if_aborted();
  /// The same, after looking at what peers say.
  void check();
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

  /// How many reducers share the channel of gradients. Any thread.
  std::atomic<int>& gradient_reducers() { return gradient_reducers_; }

  /// Steps of training, for error messages. Any thread.
  void set_step(uint64_t step) { step_.store(step, std::memory_order_relaxed); }
  uint64_t step() const { return step_.load(std::memory_order_relaxed); }

 private:
  friend class Communicator;

  void log_operations() const;

  const Options options_;
  std::shared_ptr<void> keep_;
  std::shared_ptr<Arena> shared_;
  std::shared_ptr<Arena> arena_;
  std::vector<std::unique_ptr<Communicator>> channels_;
  std::atomic<uint64_t> step_{0};
  std::atomic<int> gradient_reducers_{0};
  std::atomic<int64_t> warning_;  // in milliseconds: the next wait that is logged
  std::atomic<bool> aborted_{false};
  Mutex telling_;  // the other ranks that this one gives up
  Mutex mutex_;
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
};

/// An operation under way: a future. Whoever waits, or asks, moves it on. Memory that was given to
/// it must live, and stay as it is, until it is done; an operation that is dropped before aborts
/// the group, since the others wait for it.
class Transfer {
 public:
  virtual ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Does what can be done without waiting; true when all is done. Throws what wait() throws,
  /// though it looks only now and then whether peers are gone.
  bool advance();

  /// For one that was begun long before it is waited for.
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

  /// Until it is done: with what all ranks concerned have sent, never without one of them. If a
  /// rank dies during an operation, those that need nothing more of it may complete, and fail in
  /// the next one. Throws kUnavailable when a peer is gone or the deadline has passed,
  /// kInvalidArgument when ranks make different calls, kFailedPrecondition when one has left out a
  /// step, kCancelled when a rank gave up.
  void wait() { wait_until(Deadline::forever()); }

  /// The same, but no longer than `until`; true when it is done.
  bool wait_until(const Deadline& until);

 protected:
  Transfer(Communicator& communicator, const Operation& operation, Deadline deadline);

  /// Does what it can; returns the rank it cannot go on without, or kDone.
  virtual int step() = 0;
  static constexpr int kDone = -1;

  Communicator& communicator_;
  const Fingerprint fingerprint_;

 private:
  bool poll(int* missing);
  void give_up(const std::exception_ptr& why);
  bool poll_or_throw(int* missing);

  Deadline deadline_;
  std::optional<Deadline::Clock::time_point> waits_since_;
  uint32_t advances_ = 0;
  bool done_ = false;
};

/// One channel of a group. One operation at a time, started and advanced by one thread at a time.
class Communicator {
 public:
  struct Outgoing {
    int rank;
    std::span<const std::byte> bytes;
  };
  struct Expected {
    int rank;
    std::span<std::byte> bytes;
  };
  /// Where the bytes of a rank shall go, given their number.
  using PlaceFn = std::function<std::span<std::byte>(int rank, size_t bytes)>;

  Communicator(WorkerGroup& group, std::vector<std::unique_ptr<Link>> links);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  WorkerGroup& group() { return group_; }

  /// Sends to some ranks and receives from some. Sizes must agree.
  std::unique_ptr<Transfer> exchange(const Operation& operation, std::vector<Outgoing> outgoing,
                                     std::vector<Expected> expected, Deadline deadline);

  /// Everybody gets the bytes of everybody; sizes may differ. `place` is also asked for the own.
  std::unique_ptr<Transfer> all_gather(Operation operation, std::span<const std::byte> mine,
                                       PlaceFn place, Deadline deadline);

  /// Everybody gets the bytes of `root`.
  std::unique_ptr<Transfer> broadcast(Operation operation, int root, std::span<std::byte> bytes,
                                      Deadline deadline);

  /// Done when everybody has begun it.
  std::unique_ptr<Transfer> barrier(Operation operation, Deadline deadline);

  std::unique_ptr<Transfer> send(Operation operation, int to, std::span<const std::byte> bytes,
                                 Deadline deadline);
  std::unique_ptr<Transfer> receive(Operation operation, int from, std::span<std::byte> bytes,
                                    Deadline deadline);

  /// After the timeout of the group, or the one given.
  Deadline deadline(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// Bytes given to links so far, without what describes them; and operations begun.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }

  // ---- for those who write operations: one link each

  Link& link(int rank) { return *links_[static_cast<size_t>(rank)]; }

  /// Sends a part of the operation.
  void post(int rank, const Fingerprint& fingerprint, uint64_t tag, uint64_t total,
            Link::Pieces pieces, Link::Use use = Link::Use::kOnce);

  /// The next message of the rank, or null. Throws as wait() does, on this rank and through an
  /// abort on all others, if it is not a part of this operation.
  const Incoming* peek(int rank, const Fingerprint& fingerprint);
  void pop(int rank);

  /// Memory that peers on this machine can read, for the operation under way; the next one may get
  /// the same. Only if there are such peers.
  std::byte* scratch(size_t bytes);

 private:
  friend class Transfer;
  friend class WorkerGroup;

  Fingerprint begin(const Operation& operation);
  void end() { busy_ = false; }
  void check_alive(int missing, const Fingerprint& fingerprint);
  void warn_if_long(int missing, const Fingerprint& fingerprint, Deadline::Clock::time_point since);
  [[noreturn]] void throw_timeout(int missing, const Fingerprint& fingerprint);
  [[noreturn]] void throw_mismatch(int rank, const Fingerprint& mine, const Fingerprint& theirs);

  WorkerGroup& group_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<uint64_t> posted_;  // messages, of each link
  std::vector<uint64_t> popped_;
  std::vector<uint64_t> seen_in_;  // the last operation a message came for, plus 1
  OperationLog log_;
  at::Tensor scratch_;
  bool busy_ = false;
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> operations_{0};
};

}  // namespace tutti
