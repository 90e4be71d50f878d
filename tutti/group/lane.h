// SPDX-License-Identifier: Apache-2.0
//
// A lane of a group: an order of operations, with one link to each other rank. All ranks concerned
// issue the operations of a lane in the same order; a fingerprint of each travels with its bytes
// and is compared.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/deadline.h"
#include "tutti/base/mutex.h"
#include "tutti/group/link.h"
#include "tutti/group/operation.h"
#include "tutti/group/transfer.h"

namespace tutti {

class WorkerGroup;

/// Lanes are independent of each other: each has its own order of operations.
enum class LaneKind : uint8_t {
  kCollectives,  ///< Operations that the program asks for.
  kGradients,    ///< Buckets of gradients.
  kFlags,        ///< Notes that accompany the buckets of a step.
  kInput,        ///< Which replicas have data; sent ahead by the thread that reads the input.
};
inline constexpr size_t kLanes = 4;

/// Runs one operation at a time, which one thread at a time begins and advances.
class Lane {
 public:
  struct Outgoing {
    int rank;
    std::span<const std::byte> bytes;
  };
  struct Expected {
    int rank;
    std::span<std::byte> bytes;
  };
  /// Returns where the bytes of a rank go, given their number.
  using PlaceFn = std::function<std::span<std::byte>(int rank, size_t bytes)>;

  Lane(WorkerGroup& group, std::vector<std::unique_ptr<Link>> links);

  int rank() const;
  int size() const;
  WorkerGroup& group() { return group_; }

  /// Threads that share the lane hold it for a whole operation.
  Mutex& turn() TUTTI_RETURN_CAPABILITY(turn_) { return turn_; }

  /// Sends to some ranks and receives from some. Sizes must agree.
  std::unique_ptr<Transfer> exchange(const Operation& operation, std::vector<Outgoing> outgoing,
                                     std::vector<Expected> expected, Deadline deadline);

  /// Gives every rank the bytes of every rank; sizes may differ. `place` is also called for this
  /// rank's own bytes.
  std::unique_ptr<Transfer> all_gather(Operation operation, std::span<const std::byte> mine,
                                       PlaceFn place, Deadline deadline);

  /// Gives every rank the bytes of `root`.
  std::unique_ptr<Transfer> broadcast(Operation operation, int root, std::span<std::byte> bytes,
                                      Deadline deadline);

  /// Completes when every rank has begun it.
  std::unique_ptr<Transfer> barrier(Operation operation, Deadline deadline);

  /// A deadline after the timeout of the group, or after the one given.
  Deadline deadline(std::optional<std::chrono::milliseconds> timeout = std::nullopt) const;

  /// Bytes given to links so far, without the heads of messages, and operations begun: for tests
  /// and benchmarks.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }

  // ---- for implementations of operations: single links

  Link& link(int rank) { return *links_[static_cast<size_t>(rank)]; }

  /// Sends a part of the operation.
  void post(int rank, const Fingerprint& fingerprint, uint64_t tag, uint64_t total,
            Link::Pieces pieces, Link::Use use = Link::Use::kReadInPlace);

  /// Returns the next message of the rank, or null. If it is not a part of this operation, throws
  /// as wait() does, on this rank and through an abort on all others.
  const Incoming* peek(int rank, const Fingerprint& fingerprint);
  void pop(int rank);

  /// Memory that peers on this machine can read, for the operation under way; the next operation
  /// may get the same memory. Call it only if there are such peers.
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

  WorkerGroup& group_;  // owns this
  Mutex turn_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<uint64_t> posted_;  // messages on each link
  std::vector<uint64_t> popped_;
  std::vector<uint64_t> seen_in_;  // 1 + the last operation that a message arrived for
  OperationLog log_;
  at::Tensor scratch_;
  bool busy_ = false;
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> operations_{0};
};

}  // namespace tutti
