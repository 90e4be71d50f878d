// SPDX-License-Identifier: Apache-2.0
//
// A rank's memory that the other ranks of its machine can read: rings of messages for each of them,
// and room for tensors. Only its own process writes it; others map it read-only. A segment belongs
// to one epoch of one group and vanishes with it.
//
//   | Header | Consumed[lane][rank] | Ring[lane][rank] ... | tensors ...
//
// Sender: writes slot n % kSlots of the ring for the receiver, then its `ready` = n + 1. Receiver:
// sees ready == n + 1, reads, then writes Consumed[lane][sender] = n + 1 in its own segment,
// which lets the sender use the slot again. A thread that sleeps counts itself in its own rank's
// Header::sleepers. A rank that has news for a peer reads the peer's sleepers, and if there are any
// increments its own Header::bell and wakes them.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/group/link.h"
#include "tutti/group/operation.h"
#include "tutti/rpc/shared_memory/sealed_memory.h"

namespace tutti::internal {

/// What describes a message in a ring. The first cache line is all that a receiver reads of an
/// expected message of at most kInlineBytes; for a longer one it also reads `offset`.
struct alignas(64) RingSlot {
  static constexpr size_t kInlineBytes = 16;

  std::atomic<uint32_t> ready;  ///< Sequence + 1 of the message in it, modulo 2^32.
  uint32_t is_inline;
  MessageHead head;
  uint64_t bytes;
  std::byte inline_bytes[kInlineBytes];
  uint64_t offset;  ///< Where the bytes begin in the segment, unless they are inline.
  Fingerprint fingerprint;
};
static_assert(sizeof(RingSlot) == 192);

/// Thread-safe where it says so.
class Segment {
 public:
  static constexpr size_t kSlots = 8;
  static constexpr size_t kStagedBytes = 512 << 10;  ///< Memory of each slot for copied bytes.

  /// A plain value.
  struct Layout {
    size_t lanes = 0;
    size_t ranks = 0;
    size_t bytes = 0;  ///< Size of the whole segment; untouched pages cost nothing.

    size_t ring_bytes() const;
    size_t consumed_offset(size_t lane, size_t rank) const;
    size_t ring_offset(size_t lane, size_t rank) const;
    size_t tensors_offset() const;
  };

  /// Makes a segment of this process. Throws kUnavailable when the system provides no memory.
  static std::shared_ptr<Segment> create(uint64_t epoch, int rank, const Layout& layout);

  /// Maps the segment of another rank from the descriptor it sent, which is not kept. A segment of
  /// this process is not mapped again. Throws kFailedPrecondition when it has a wrong size, seal or
  /// group.
  static std::shared_ptr<const Segment> attach(int descriptor, uint64_t epoch, int rank,
                                               const Layout& layout);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int descriptor() const { return memory_.descriptor(); }
  const Layout& layout() const { return layout_; }
  const std::byte* data() const { return memory_.data(); }
  std::byte* data() { return memory_.data(); }
  bool contains(const void* memory) const {
    const auto* at = static_cast<const std::byte*>(memory);
    return at >= data() && at < data() + layout_.bytes;
  }

  const std::atomic<uint32_t>& consumed(size_t lane, size_t rank) const;
  std::atomic<uint32_t>& consumed(size_t lane, size_t rank);
  const RingSlot& slot(size_t lane, size_t rank, uint64_t sequence) const;
  RingSlot& slot(size_t lane, size_t rank, uint64_t sequence);
  size_t staged_offset(size_t lane, size_t rank, uint64_t sequence) const;

  // ---- sleeping; see the top of the file

  /// Counts a thread of this rank that is about to sleep. An object belongs to the thread that
  /// makes it.
  class Sleeper {
   public:
    explicit Sleeper(Segment& mine) : mine_(mine) { mine_.add_sleeper(1); }
    ~Sleeper() { mine_.add_sleeper(-1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

   private:
    Segment& mine_;
  };

  bool has_sleepers() const;
  uint32_t bell() const;
  void ring_bell();
  /// Waits until the bell of this segment, which may be another rank's, differs from `seen`.
  void wait_for_bell(uint32_t seen, const Deadline& until) const;

  // ---- the end

  enum class State : uint32_t { kOpen, kLeft, kAborted };

  /// Tells all peers that this rank left or why it gives up. kAborted replaces kLeft; nothing
  /// replaces the first kAborted. Thread-safe.
  void set_failure(State state, ErrorCode code, const std::string& text);
  std::optional<PeerFailure> failure() const;

  // ---- tensors

  /// Returns memory among the tensors, aligned to a page; null if none is left. Thread-safe.
  void* allocate(size_t bytes);
  void release(void* memory, size_t bytes);

 private:
  struct Header;
  class FreeList;

  Segment(rpc::SealedMemory memory, const Layout& layout, bool mine);

  const Header& header() const;
  Header& header();
  void add_sleeper(int count);

  rpc::SealedMemory memory_;
  const Layout layout_;
  const bool mine_;
  std::unique_ptr<FreeList> free_;
};

}  // namespace tutti::internal
