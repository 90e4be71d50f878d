// SPDX-License-Identifier: Apache-2.0
//
// Messages between ranks of one machine, through their segments (segment.h).

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tutti/device/arena.h"
#include "tutti/group/link.h"
#include "tutti/group/shared_memory/segment.h"

namespace tutti::internal {

/// Tells whether a process still runs, by the socket its segment arrived through. Thread-safe.
class PeerSocket {
 public:
  explicit PeerSocket(int descriptor) : descriptor_(descriptor) {}
  ~PeerSocket();
  PeerSocket(const PeerSocket&) = delete;
  PeerSocket& operator=(const PeerSocket&) = delete;

  bool hung_up() const;

 private:
  const int descriptor_;
};

/// See Link. Threads: as Link.
class SharedMemoryLink final : public Link {
 public:
  SharedMemoryLink(std::shared_ptr<Segment> mine, std::shared_ptr<const Segment> theirs,
                   size_t lane, int my_rank, int their_rank,
                   std::shared_ptr<const PeerSocket> socket);

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
  uint32_t consumed_by_peer() const { return peer_consumed_.load(std::memory_order_seq_cst); }
  uint64_t stage(size_t slot, size_t bytes);
  void wake_peer();
  void look_at(const RingSlot& slot);

  const std::shared_ptr<Segment> mine_;
  const std::shared_ptr<const Segment> theirs_;
  const int their_rank_;
  const std::shared_ptr<const PeerSocket> socket_;
  RingSlot* const outgoing_;                         // the ring of this rank for the peer
  const RingSlot* const arriving_;                   // the ring of the peer for this rank
  const size_t staged_offset_;                       // that of the first slot of outgoing_
  std::array<size_t, Segment::kSlots> staged_ = {};  // bytes of each slot's memory in use
  std::atomic<uint32_t>& consumed_;                  // by this rank
  const std::atomic<uint32_t>& peer_consumed_;
  uint32_t posted_ = 0;
  uint32_t popped_ = 0;
  uint32_t known_consumed_ = 0;
  // Sequence + 1 of the last message whose bytes lie in the caller's memory.
  uint32_t last_shared_ = 0;
  bool has_shared_ = false;
  bool looked_ = false;  // incoming_ is the message after popped_
  Incoming incoming_;
};

/// Allocates from a segment, and from the heap when the segment is full. Thread-safe.
class SegmentArena final : public Arena {
 public:
  explicit SegmentArena(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}

 private:
  std::shared_ptr<void> do_allocate(size_t bytes) override;

  std::shared_ptr<Segment> segment_;
};

}  // namespace tutti::internal
