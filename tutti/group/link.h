// SPDX-License-Identifier: Apache-2.0
//
// The way to one other rank on one lane: messages in order, both ways. A backend implements it
// (host/, grpc/); lane.h is written once above it.

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

/// What goes before the bytes of a message.
struct MessageHead {
  uint64_t hash = 0;      ///< Of the operation it is a part of.
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

/// Why a peer takes part no more.
struct PeerFailure {
  ErrorCode code = ErrorCode::kUnavailable;
  std::string text;       ///< A whole sentence; names the culprit if the peer did.
  bool reported = false;  ///< By the peer itself, for all to know.
};

/// Used by one thread at a time, except abort() and reported_failure(), which any thread may call.
class Link {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  /// Messages up to here are copied by post(): their memory is free at once.
  static constexpr size_t kCopiedBytes = 16 << 10;

  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Whether post() would not have to wait.
  virtual bool can_post() = 0;

  /// The most bytes that post() takes at once.
  virtual size_t max_message_bytes() const = 0;

  /// What happens to memory that is given to post().
  enum class Use : uint8_t {
    kReadInPlace,  ///< It may be read where it lies.
    kCopyFirst     ///< It is written soon after: better copied, if that is possible on the way.
  };

  /// Sends the pieces as one message. The memory of larger ones must not change until drained().
  /// Never waits; only if can_post().
  virtual void post(const MessageHead& head, const Fingerprint& fingerprint, Pieces pieces,
                    Use use) = 0;

  /// The oldest message that was not popped, if it has arrived; null otherwise.
  virtual const Incoming* peek() = 0;

  /// Gives the oldest message back.
  virtual void pop() = 0;

  /// Whether nobody reads the memory given to post() any more.
  virtual bool drained() = 0;

  /// After a failure: sees to it that nobody of this process reads that memory any more. Until
  /// `patience` the peer may take it; then it costs the connection.
  virtual void discard(const Deadline& patience) { (void)patience; }

  /// To sleep: arm(), look once more whether there is something to do, then park() with what arm()
  /// returned, which ends when there may be news from the peer, or at `until`; then disarm().
  virtual uint32_t arm() = 0;
  virtual void park(uint32_t armed, const Deadline& until) = 0;
  virtual void disarm() = 0;

  /// Set once the peer is gone or has given up. Afterwards all that it has sent and read before is
  /// seen by peek(), can_post() and drained(): it may have left because it was done.
  virtual std::optional<PeerFailure> failure() = 0;

  /// The same, of what the peer itself has said; cheap, and from any thread.
  virtual std::optional<PeerFailure> reported_failure() = 0;

  /// Tells the peer that this rank gives up, and why. Best effort; never waits long.
  virtual void abort(ErrorCode code, const std::string& text) = 0;

  /// Whether the peer can read some memory of this process, that of WorkerGroup::arena().
  virtual bool shares_memory() const { return false; }
  /// Whether this is a part of it: messages that lie there need not be copied.
  virtual bool reaches(const void* memory) const {
    (void)memory;
    return false;
  }
};

}  // namespace tutti
