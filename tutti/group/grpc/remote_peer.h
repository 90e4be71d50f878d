// SPDX-License-Identifier: Apache-2.0
//
// The messages that have arrived from one rank on another machine, and the streams to it.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/base/wait_word.h"
#include "tutti/group/link.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/listener.h"

namespace tutti::internal {

/// Begins every message on the wire.
struct WireHead {
  enum class Kind : uint64_t { kData, kAbort, kGoodbye };

  uint64_t magic = 0;
  Kind kind = Kind::kData;
  MessageHead head;
  Fingerprint fingerprint;
};

/// Returns the head of a message, or nothing if it is malformed. Never reads beyond `bytes`.
std::optional<WireHead> parse_wire_head(std::span<const std::byte> bytes);
WireHead make_wire_head(WireHead::Kind kind, const MessageHead& head,
                        const Fingerprint& fingerprint);

/// One lane of a peer: the messages that have arrived, in order. Thread-safe.
class Mailbox {
 public:
  struct Received {
    WireHead head;
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
    size_t capacity = 0;
  };

  /// Returns false if the sender must pause until there is room.
  bool add(const WireHead& head, const rpc::Message& message);

  /// Returns the oldest message, which stays until pop(), or null if there is none.
  const Received* front();
  void pop();

  void set_stream(std::shared_ptr<rpc::IncomingStream> stream);
  WaitWord& news() { return news_; }

  /// Whether the peer has ever opened its stream.
  bool connected() const { return connected_.load(); }

  /// Records the peer's statement that it sends nothing more on this lane.
  void set_ended() {
    ended_.store(true);
    news_.bump();
  }
  bool ended() const { return ended_.load(); }

 private:
  Received take_buffer(size_t bytes) TUTTI_REQUIRES(mutex_);

  WaitWord news_;
  std::atomic<bool> connected_{false};
  std::atomic<bool> ended_{false};
  Mutex mutex_;
  std::deque<Received> queue_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Received> spare_ TUTTI_GUARDED_BY(mutex_);
  size_t queued_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool paused_ TUTTI_GUARDED_BY(mutex_) = false;
  std::shared_ptr<rpc::IncomingStream> stream_ TUTTI_GUARDED_BY(mutex_);
};

/// A rank on another machine. Thread-safe while its channel and streams are not replaced.
class RemotePeer {
 public:
  explicit RemotePeer(size_t lanes) : mailboxes_(lanes), streams_(lanes) {}

  Mailbox& mailbox(size_t lane) { return mailboxes_[lane]; }
  size_t lanes() const { return mailboxes_.size(); }

  /// Keeps the first failure; one that the peer reported replaces one that was only detected.
  void fail(PeerFailure failure);
  std::optional<PeerFailure> failure() const;

  /// Whether the peer has said goodbye on any lane.
  bool said_goodbye() const;

  void set_channel(std::shared_ptr<rpc::Channel> channel) { channel_ = std::move(channel); }
  void set_stream(size_t lane, std::unique_ptr<rpc::SendStream> stream) {
    streams_[lane] = std::move(stream);
  }
  rpc::SendStream* stream(size_t lane) { return streams_[lane].get(); }

  /// Closes the connection: memory lent to it is free immediately.
  void abort_connection() {
    if (channel_ != nullptr) channel_->abort();
  }

  /// Tells the peer, on each lane, that this rank gives up; only the first call does.
  void send_abort(ErrorCode code, const std::string& text);

  /// A message without an operation: kAbort or kGoodbye.
  void send_control(size_t lane, WireHead::Kind kind, ErrorCode code, const std::string& text);

 private:
  std::vector<Mailbox> mailboxes_;
  mutable Mutex mutex_;
  std::optional<PeerFailure> failure_ TUTTI_GUARDED_BY(mutex_);
  std::atomic<bool> abort_sent_{false};
  std::shared_ptr<rpc::Channel> channel_;
  std::vector<std::unique_ptr<rpc::SendStream>> streams_;
};

/// See Link. Threads: as Link.
class GrpcLink final : public Link {
 public:
  GrpcLink(std::shared_ptr<RemotePeer> peer, size_t lane);
  ~GrpcLink() override;

  size_t room() override;
  void post(const MessageHead& head, const Fingerprint& fingerprint, Pieces pieces,
            Use use) override;
  bool drained() override;
  const Incoming* peek() override;
  void pop() override;
  void wait(const Deadline& until, FunctionRef<bool()> ready) override;
  std::optional<PeerFailure> failure(Look look) override;
  void abort(ErrorCode code, const std::string& text,
             const std::optional<Deadline>& patience) override;

 private:
  void take_back(const Deadline& patience);

  // Shared with callbacks of the network, which may outlive the link.
  struct Flight {
    std::atomic<size_t> messages{0};
    std::atomic<size_t> lent{0};  // messages that lie in the caller's memory
    std::atomic<size_t> bytes{0};
  };

  const std::shared_ptr<RemotePeer> peer_;
  const size_t lane_;
  Mailbox& box_;
  const std::shared_ptr<Flight> flight_ = std::make_shared<Flight>();
  Incoming incoming_;
};

}  // namespace tutti::internal
