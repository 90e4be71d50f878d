// SPDX-License-Identifier: Apache-2.0
//
// An ordered, two-way link to one other rank on one lane. Each backend implements it
// (shared_memory/, grpc/); lane.h is written once above it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/function_ref.h"
#include "tutti/group/operation.h"

namespace tutti {

/// Precedes the bytes of a message.
struct MessageHead {
  uint64_t hash = 0;      ///< Identifies the operation it is a part of.
  uint64_t sequence = 0;  ///< Counts the messages of a link, in each direction.
  uint64_t total = 0;     ///< Bytes of all messages of the operation to this peer; elements, if it
                          ///< is a reduction.
  uint64_t tag = 0;       ///< Which part of the operation it is.
};

/// A message that has arrived. All of it is valid, and does not change, until pop().
struct Incoming {
  MessageHead head;
  const Fingerprint* fingerprint = nullptr;
  std::span<const std::byte> bytes;
};

/// Why a peer left the group.
struct PeerFailure {
  ErrorCode code = ErrorCode::kUnavailable;
  std::string text;       ///< A whole sentence; names the culprit if the peer did.
  bool reported = false;  ///< Whether the peer itself told all ranks.
};

/// Used by one thread at a time, except wait(), failure() and abort(), which any thread may call.
class Link {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  /// Messages of up to this size are copied by post(): their memory is free immediately.
  static constexpr size_t kCopiedBytes = 16 << 10;

  /// `shared` is the memory of this process that the peer can read where it lies, which includes
  /// that of WorkerGroup::arena(); empty if there is none.
  explicit Link(std::span<const std::byte> shared = {}) : shared_(shared) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  bool shares_memory() const { return !shared_.empty(); }
  /// Whether messages that lie there need not be copied.
  bool reaches(const void* memory) const {
    return std::greater_equal<>()(memory, shared_.data()) &&
           std::less<>()(memory, shared_.data() + shared_.size());
  }

  /// How many bytes post() accepts now; 0 if it must not be called, even without bytes.
  virtual size_t room() = 0;

  /// What happens to memory that is given to post().
  enum class Use : uint8_t {
    kReadInPlace,  ///< It may be read where it lies.
    kCopyFirst     ///< The caller writes to it soon, so it is copied first if possible.
  };

  /// Sends the pieces as one message. Above kCopiedBytes their memory must not change until
  /// drained(). Never waits; call it only if there is room().
  virtual void post(const MessageHead& head, const Fingerprint& fingerprint, Pieces pieces,
                    Use use) = 0;

  /// Whether the memory given to post() is no longer read.
  virtual bool drained() = 0;

  /// Returns the oldest message that was not popped, or null if none has arrived.
  virtual const Incoming* peek() = 0;

  /// Releases the oldest message.
  virtual void pop() = 0;

  /// Sleeps until there may be news from the peer, or until `until`. Calls `ready` once before,
  /// when news would already end the sleep, and does not sleep if it returns true.
  virtual void wait(const Deadline& until, FunctionRef<bool()> ready) = 0;

  /// Which failures failure() reports.
  enum class Look : uint8_t {
    kReported,  ///< Only what the peer itself reported. Cheap.
    kDetected   ///< Also whether it is gone, which may take a system call.
  };

  /// Set once the peer is gone or has given up. From then on peek(), room() and drained() see
  /// everything that it sent and read before: it may have left because it was done.
  virtual std::optional<PeerFailure> failure(Look look) = 0;

  /// Tells the peer that this rank gives up, and why; the first reason counts. Makes a best effort.
  /// Without `patience` it never waits long. With `patience`, which only the thread that uses the
  /// link may pass, it also ensures that the memory given to post() is no longer read: until then
  /// the peer may fetch it, and afterwards the connection is closed.
  virtual void abort(ErrorCode code, const std::string& text,
                     const std::optional<Deadline>& patience) = 0;

 private:
  const std::span<const std::byte> shared_;
};

}  // namespace tutti
