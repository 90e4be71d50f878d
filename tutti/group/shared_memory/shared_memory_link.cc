// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/shared_memory/shared_memory_link.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tutti::internal {

PeerSocket::~PeerSocket() { close(descriptor_); }

bool PeerSocket::hung_up() const {
  pollfd each{descriptor_, POLLIN | POLLRDHUP, 0};
  if (poll(&each, 1, 0) <= 0) return false;
  return (each.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

SharedMemoryLink::SharedMemoryLink(std::shared_ptr<Segment> mine,
                                   std::shared_ptr<const Segment> theirs, size_t lane, int my_rank,
                                   int their_rank, std::shared_ptr<const PeerSocket> socket)
    : Link({mine->data(), mine->layout().bytes}),
      mine_(std::move(mine)),
      theirs_(std::move(theirs)),
      their_rank_(their_rank),
      socket_(std::move(socket)),
      outgoing_(&mine_->slot(lane, static_cast<size_t>(their_rank), 0)),
      arriving_(&theirs_->slot(lane, static_cast<size_t>(my_rank), 0)),
      staged_offset_(mine_->staged_offset(lane, static_cast<size_t>(their_rank), 0)),
      consumed_(mine_->consumed(lane, static_cast<size_t>(their_rank))),
      peer_consumed_(theirs_->consumed(lane, static_cast<size_t>(my_rank))) {}

size_t SharedMemoryLink::room() {
  if (posted_ - known_consumed_ == Segment::kSlots) known_consumed_ = consumed_by_peer();
  return posted_ - known_consumed_ < Segment::kSlots ? Segment::kStagedBytes : 0;
}

void SharedMemoryLink::post(const MessageHead& head, const Fingerprint& fingerprint, Pieces pieces,
                            Use use) {
  TUTTI_CHECK(posted_ - known_consumed_ < Segment::kSlots);
  RingSlot& slot = outgoing_[posted_ % Segment::kSlots];
  size_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  const bool is_inline = bytes <= RingSlot::kInlineBytes;
  slot.fingerprint = fingerprint;
  const bool copy =
      bytes <= kCopiedBytes || (use == Use::kCopyFirst && bytes <= Segment::kStagedBytes);
  if (!copy && pieces.size() == 1 && mine_->contains(pieces[0].data())) {
    slot.offset = static_cast<uint64_t>(pieces[0].data() - mine_->data());
    last_shared_ = posted_ + 1;
    has_shared_ = true;
  } else {
    std::byte* at = slot.inline_bytes;
    if (!is_inline) {
      slot.offset = stage(posted_ % Segment::kSlots, bytes);
      at = mine_->data() + slot.offset;
    }
    for (const auto& piece : pieces) {
      if (!piece.empty()) std::memcpy(at, piece.data(), piece.size());
      at += piece.size();
    }
  }
  // The peer may be polling this cache line: all fields are written together, so that the line
  // moves between the cores only once.
  slot.head = head;
  slot.bytes = bytes;
  slot.is_inline = is_inline ? 1 : 0;
  slot.ready.store(++posted_, std::memory_order_seq_cst);
  wake_peer();
}

// Cycles through the memory of a slot: writing a line that the peer still has in its cache takes
// several times longer than writing one that has left it.
uint64_t SharedMemoryLink::stage(size_t slot, size_t bytes) {
  TUTTI_CHECK(bytes <= Segment::kStagedBytes);
  size_t& used = staged_[slot];
  if (bytes > Segment::kStagedBytes - used) used = 0;
  const uint64_t offset = staged_offset_ + slot * Segment::kStagedBytes + used;
  used = std::min((used + bytes + 63) / 64 * 64, Segment::kStagedBytes);
  return offset;
}

void SharedMemoryLink::wake_peer() {
  if (theirs_->has_sleepers()) mine_->ring_bell();
}

const Incoming* SharedMemoryLink::peek() {
  if (looked_) return &incoming_;
  const RingSlot& slot = arriving_[popped_ % Segment::kSlots];
  if (slot.ready.load(std::memory_order_seq_cst) != popped_ + 1) return nullptr;
  look_at(slot);
  looked_ = true;
  return &incoming_;
}

void SharedMemoryLink::look_at(const RingSlot& slot) {
  incoming_.head = slot.head;
  incoming_.fingerprint = &slot.fingerprint;
  const uint64_t bytes = slot.bytes;
  const bool is_inline = slot.is_inline != 0;
  const uint64_t offset = is_inline ? 0 : slot.offset;  // lies in the next cache line
  const uint64_t size = theirs_->layout().bytes;
  const bool fits =
      is_inline ? bytes <= RingSlot::kInlineBytes : offset <= size && bytes <= size - offset;
  if (!fits) {
    throw Error(ErrorCode::kDataLoss,
                message("shared memory: rank ", their_rank_, " sent an impossible message: ", bytes,
                        is_inline ? " bytes in a slot of " : " bytes in its segment of ",
                        is_inline ? RingSlot::kInlineBytes : size, ". Its memory is damaged."));
  }
  incoming_.bytes = {is_inline ? slot.inline_bytes : theirs_->data() + offset, bytes};
}

void SharedMemoryLink::pop() {
  looked_ = false;
  consumed_.store(++popped_, std::memory_order_seq_cst);
  wake_peer();
}

bool SharedMemoryLink::drained() {
  if (!has_shared_) return true;
  if (static_cast<int32_t>(known_consumed_ - last_shared_) < 0) {
    known_consumed_ = consumed_by_peer();
    if (static_cast<int32_t>(known_consumed_ - last_shared_) < 0) return false;
  }
  has_shared_ = false;
  return true;
}

void SharedMemoryLink::wait(const Deadline& until, FunctionRef<bool()> ready) {
  const Segment::Sleeper sleeper(*mine_);
  const uint32_t seen = theirs_->bell();
  if (!ready()) theirs_->wait_for_bell(seen, until);
}

std::optional<PeerFailure> SharedMemoryLink::failure(Look look) {
  std::optional<PeerFailure> failure = theirs_->failure();
  if (look == Look::kReported) return failure && failure->reported ? failure : std::nullopt;
  if (!failure && socket_ != nullptr && socket_->hung_up()) {
    failure = {ErrorCode::kUnavailable, "its process on this machine has ended.", false};
  }
  return failure;
}

// Memory that was lent can be taken back without waiting: a peer looks for a failure after it has
// read.
void SharedMemoryLink::abort(ErrorCode code, const std::string& text,
                             const std::optional<Deadline>& /*patience*/) {
  mine_->set_failure(Segment::State::kAborted, code, text);
}

std::shared_ptr<void> SegmentArena::do_allocate(size_t bytes) {
  if (void* const memory = segment_->allocate(bytes)) {
    return {memory, [segment = segment_, bytes](void* at) { segment->release(at, bytes); }};
  }
  void* const memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (memory == nullptr) {
    throw Error(ErrorCode::kUnavailable,
                message("SegmentArena: the system cannot provide ", bytes, " bytes of memory."));
  }
  return {memory, [](void* at) { std::free(at); }};
}

}  // namespace tutti::internal
