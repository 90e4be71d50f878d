// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/shared_memory/segment.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "tutti/device/arena.h"

namespace tutti::internal {
namespace {

constexpr uint64_t kMagic = 0x31696f7474757474;
constexpr size_t kPageBytes = 4096;
constexpr size_t kReasonBytes = 2048;
constexpr size_t kConsumedStride = 64;

size_t page_rounded(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Without FUTEX_PRIVATE_FLAG: the word is shared between processes.
long shared_futex(const std::atomic<uint32_t>* word, int operation, uint32_t value,
                  const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<const uint32_t*>(word), operation, value, timeout,
                 nullptr, FUTEX_BITSET_MATCH_ANY);
}

// The segments of this process by (epoch, rank), so that ranks that are threads share one mapping.
struct OwnSegments {
  Mutex mutex;
  std::map<std::pair<uint64_t, int>, std::weak_ptr<Segment>> segments TUTTI_GUARDED_BY(mutex);
};

OwnSegments& own_segments() {
  static auto* const table = new OwnSegments;  // outlives every segment
  return *table;
}

}  // namespace

struct Segment::Header {
  uint64_t magic;
  uint64_t epoch;
  int64_t rank;
  uint64_t bytes;
  alignas(64) std::atomic<uint32_t> bell;
  alignas(64) std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<uint32_t> state;
  uint32_t code;
  char reason[kReasonBytes];
};

// Free blocks by size; they return to the system only with the segment.
class Segment::FreeList {
 public:
  FreeList(std::byte* begin, std::byte* end) : next_(begin), end_(end) {}

  void* take(size_t bytes) {
    const MutexLock lock(mutex_);
    std::vector<void*>& blocks = free_[block_bytes(bytes)];
    if (!blocks.empty()) {
      void* const block = blocks.back();
      blocks.pop_back();
      return block;
    }
    const size_t size = block_bytes(bytes);
    if (static_cast<size_t>(end_ - next_) < size) return nullptr;
    void* const block = next_;
    next_ += size;
    return block;
  }

  void put_back(void* memory, size_t bytes) {
    const MutexLock lock(mutex_);
    free_[block_bytes(bytes)].push_back(memory);
  }

 private:
  Mutex mutex_;
  std::byte* next_ TUTTI_GUARDED_BY(mutex_);
  std::byte* const end_;
  std::map<size_t, std::vector<void*>> free_ TUTTI_GUARDED_BY(mutex_);
};

size_t Segment::Layout::ring_bytes() const {
  return page_rounded(kSlots * sizeof(RingSlot)) + kSlots * kStagedBytes;
}

size_t Segment::Layout::consumed_offset(size_t lane, size_t rank) const {
  return page_rounded(sizeof(Header)) + (lane * ranks + rank) * kConsumedStride;
}

size_t Segment::Layout::ring_offset(size_t lane, size_t rank) const {
  return page_rounded(consumed_offset(lanes, 0)) + (lane * ranks + rank) * ring_bytes();
}

size_t Segment::Layout::tensors_offset() const { return ring_offset(lanes, 0); }

std::shared_ptr<Segment> Segment::create(uint64_t epoch, int rank, const Layout& layout) {
  if (layout.bytes <= layout.tensors_offset()) {
    throw Error(ErrorCode::kUnavailable,
                message("shared memory: the rings of ", layout.ranks, " ranks take ",
                        layout.tensors_offset(), " bytes, but a segment has ", layout.bytes, "."));
  }
  std::shared_ptr<Segment> segment(
      new Segment(rpc::SealedMemory::create(layout.bytes), layout, true));
  Header& header = *new (segment->data()) Header{};
  header.magic = kMagic;
  header.epoch = epoch;
  header.rank = rank;
  header.bytes = layout.bytes;
  OwnSegments& table = own_segments();
  const MutexLock lock(table.mutex);
  table.segments[{epoch, rank}] = segment;
  return segment;
}

std::shared_ptr<const Segment> Segment::attach(int descriptor, uint64_t epoch, int rank,
                                               const Layout& layout) {
  {
    OwnSegments& table = own_segments();
    const MutexLock lock(table.mutex);
    const auto found = table.segments.find({epoch, rank});
    if (found != table.segments.end()) {
      if (std::shared_ptr<Segment> mine = found->second.lock()) return mine;
    }
  }
  std::shared_ptr<Segment> segment(new Segment(
      rpc::SealedMemory::map(descriptor, layout.bytes, message("rank ", rank)), layout, false));
  const Header& header = segment->header();
  if (header.magic != kMagic || header.epoch != epoch || header.rank != rank ||
      header.bytes != layout.bytes) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("shared memory: rank ", rank, " sent a segment of another group."));
  }
  return segment;
}

Segment::Segment(rpc::SealedMemory memory, const Layout& layout, bool mine)
    : memory_(std::move(memory)), layout_(layout), mine_(mine) {
  if (mine) {
    free_ = std::make_unique<FreeList>(data() + layout.tensors_offset(), data() + layout.bytes);
  }
}

Segment::~Segment() {
  if (!mine_) return;
  OwnSegments& table = own_segments();
  const MutexLock lock(table.mutex);
  table.segments.erase({header().epoch, static_cast<int>(header().rank)});
}

const Segment::Header& Segment::header() const { return *reinterpret_cast<const Header*>(data()); }
Segment::Header& Segment::header() { return *reinterpret_cast<Header*>(data()); }

const std::atomic<uint32_t>& Segment::consumed(size_t lane, size_t rank) const {
  return *reinterpret_cast<const std::atomic<uint32_t>*>(data() +
                                                         layout_.consumed_offset(lane, rank));
}

std::atomic<uint32_t>& Segment::consumed(size_t lane, size_t rank) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(data() + layout_.consumed_offset(lane, rank));
}

const RingSlot& Segment::slot(size_t lane, size_t rank, uint64_t sequence) const {
  const auto* first = reinterpret_cast<const RingSlot*>(data() + layout_.ring_offset(lane, rank));
  return first[sequence % kSlots];
}

RingSlot& Segment::slot(size_t lane, size_t rank, uint64_t sequence) {
  auto* first = reinterpret_cast<RingSlot*>(data() + layout_.ring_offset(lane, rank));
  return first[sequence % kSlots];
}

size_t Segment::staged_offset(size_t lane, size_t rank, uint64_t sequence) const {
  return layout_.ring_offset(lane, rank) + page_rounded(kSlots * sizeof(RingSlot)) +
         (sequence % kSlots) * kStagedBytes;
}

void Segment::add_sleeper(int count) {
  header().sleepers.fetch_add(static_cast<uint32_t>(count), std::memory_order_seq_cst);
}

bool Segment::has_sleepers() const {
  return header().sleepers.load(std::memory_order_seq_cst) != 0;
}

uint32_t Segment::bell() const { return header().bell.load(std::memory_order_seq_cst); }

void Segment::ring_bell() {
  header().bell.fetch_add(1, std::memory_order_seq_cst);
  shared_futex(&header().bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Segment::wait_for_bell(uint32_t seen, const Deadline& until) const {
  const auto since = until.when().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  timespec when{};
  when.tv_sec = seconds.count();
  when.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count();
  shared_futex(&header().bell, FUTEX_WAIT_BITSET, seen, &when);
}

void Segment::set_failure(State state, ErrorCode code, const std::string& text) {
  static Mutex mutex;  // between threads of this process, so that nothing replaces kAborted
  const MutexLock lock(mutex);
  Header& mine = header();
  if (mine.state.load(std::memory_order_relaxed) == static_cast<uint32_t>(State::kAborted)) return;
  if (state == State::kAborted) {
    mine.code = static_cast<uint32_t>(code);
    const size_t kept = std::min(text.size(), kReasonBytes - 1);
    std::memcpy(mine.reason, text.data(), kept);
    mine.reason[kept] = '\0';
  }
  mine.state.store(static_cast<uint32_t>(state), std::memory_order_seq_cst);
#if !defined(__SANITIZE_THREAD__)  // which does not support fences
  // Memory that was lent may be written from here on; a peer that sees that must see the state too.
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  ring_bell();
}

std::optional<PeerFailure> Segment::failure() const {
  const Header& theirs = header();
  switch (static_cast<State>(theirs.state.load(std::memory_order_acquire))) {
    case State::kOpen:
      return std::nullopt;
    case State::kLeft:
      return PeerFailure{ErrorCode::kUnavailable, "it has left the group.", false};
    default:
      break;
  }
  const auto code = theirs.code <= static_cast<uint32_t>(ErrorCode::kInternal)
                        ? static_cast<ErrorCode>(theirs.code)
                        : ErrorCode::kCancelled;
  return PeerFailure{code, std::string(theirs.reason, strnlen(theirs.reason, kReasonBytes)), true};
}

void* Segment::allocate(size_t bytes) { return free_->take(bytes); }

void Segment::release(void* memory, size_t bytes) { free_->put_back(memory, bytes); }

}  // namespace tutti::internal
