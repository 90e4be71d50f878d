// SPDX-License-Identifier: Apache-2.0
//
// An ordered, two-way link to one other rank on one lane. Each backend implements it
// (shared_memory/, grpc/); lane.h is written once above it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/group/operation.h"

namespace tutti {

/// Precedes the bytes of a message.
struct MessageHead {
  uint64_t hash = 0;      ///< That of the operation it is a part of.
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

/// Used by one thread at a time, except abort() and reported_failure(), which any thread may call.
class Link {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  /// Messages of up to this size are copied by post(): their memory is free immediately.
  static constexpr size_t kCopiedBytes = 16 << 10;

  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Whether post() may be called now.
  virtual bool can_post() = 0;

  /// The most bytes that one call of post() takes.
  virtual size_t max_message_bytes() const = 0;

  /// What happens to memory that is given to post().
  enum class Use : uint8_t {
    kReadInPlace,  ///< It may be read where it lies.
    kCopyFirst     ///< The caller writes to it soon, so it is copied first if possible.
  };

  /// Sends the pieces as one message. Above kCopiedBytes their memory must not change until
  /// drained(). Never waits; call it only if can_post().
  virtual void post(const MessageHead& head, const Fingerprint& fingerprint, Pieces pieces,
                    Use use) = 0;

  /// Returns the oldest message that was not popped, or null if none has arrived.
  virtual const Incoming* peek() = 0;

  /// Releases the oldest message.
  virtual void pop() = 0;

  /// Whether the memory given to post() is not read any more.
  virtual bool drained() = 0;

  /// After a failure: ensures that this process does not read that memory any more. The peer may
  /// take it until `patience`; after that the connection is closed.
  virtual void discard(const Deadline& patience) { (void)patience; }

  /// To sleep: call arm(), check once more whether there is something to do, then call park() with
  /// what arm() returned. It returns when there may be news from the peer, or at `until`. Then call
  /// disarm().
  virtual uint32_t arm() = 0;
  virtual void park(uint32_t armed, const Deadline& until) = 0;
  virtual void disarm() = 0;

  /// Set once the peer is gone or has given up. From then on peek(), can_post() and drained() see
  /// everything that it sent and read before: it may have left because it was done.
  virtual std::optional<PeerFailure> failure() = 0;

  /// The same, but only for failures that the peer itself reported. Cheap; any thread may call it.
  virtual std::optional<PeerFailure> reported_failure() = 0;

  /// Tells the peer that this rank gives up, and why. Makes a best effort; never waits long.
  virtual void abort(ErrorCode code, const std::string& text) = 0;

  /// Whether the peer can read the memory of WorkerGroup::arena() in this process.
  virtual bool shares_memory() const { return false; }
  /// Whether `memory` is a part of it: messages that lie there need not be copied.
  virtual bool reaches(const void* memory) const {
    (void)memory;
    return false;
  }
};

}  // namespace tutti
