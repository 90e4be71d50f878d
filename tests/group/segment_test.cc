// SPDX-License-Identifier: Apache-2.0
//
// Memory that ranks of one machine share, and the links through it.

#include "tutti/group/shared_memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tutti/group/shared_memory/shared_memory_link.h"

#include "tests/support/expect_error.h"

namespace tutti::segment_test {

using internal::RingSlot;
using internal::Segment;
using internal::SegmentArena;
using internal::SharedMemoryLink;

constexpr uint64_t kEpoch = 0x5e6;
const Segment::Layout kLayout{.lanes = 2, .ranks = 3, .bytes = size_t{64} << 20};

TEST(SegmentLayout, HasRoomForAllRanksWithoutOverlaps) {
  struct Piece {
    size_t begin;
    size_t end;
    bool operator<(const Piece& other) const { return begin < other.begin; }
  };
  std::set<Piece> pieces;
  for (size_t c = 0; c < kLayout.lanes; ++c) {
    for (size_t r = 0; r < kLayout.ranks; ++r) {
      const size_t consumed = kLayout.consumed_offset(c, r);
      EXPECT_EQ(consumed % 64, 0U);
      pieces.insert({consumed, consumed + 4});
      const size_t ring = kLayout.ring_offset(c, r);
      EXPECT_EQ(ring % 4096, 0U);
      pieces.insert({ring, ring + kLayout.ring_bytes()});
    }
  }
  pieces.insert({kLayout.tensors_offset(), kLayout.bytes});
  EXPECT_EQ(pieces.size(), 2 * kLayout.lanes * kLayout.ranks + 1);
  size_t last = 2048;  // the header holds at least the reason
  for (const Piece& each : pieces) {
    EXPECT_GE(each.begin, last);
    last = each.end;
  }
}

TEST(Segment, ReusesMemory) {
  const auto segment = Segment::create(kEpoch, 0, kLayout);
  void* const first = segment->allocate(10'000);
  void* const second = segment->allocate(10'000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 4096, 0U);
  EXPECT_GE(static_cast<std::byte*>(second), static_cast<std::byte*>(first) + 10'000);
  EXPECT_TRUE(segment->contains(first));
  EXPECT_TRUE(segment->contains(static_cast<std::byte*>(second) + 9'999));
  EXPECT_FALSE(segment->contains(segment->data() + kLayout.bytes));
  EXPECT_FALSE(segment->contains(segment.get()));
  segment->release(first, 10'000);
  EXPECT_EQ(segment->allocate(9'000), first) << "a little less fits as well";
  segment->release(second, 10'000);
  EXPECT_NE(segment->allocate(50'000), second) << "does not fit";
}

TEST(Segment, GivesNoMemoryBeyondItsEnd) {
  const auto segment = Segment::create(kEpoch, 0, kLayout);
  EXPECT_EQ(segment->allocate(kLayout.bytes), nullptr);
  const size_t room = kLayout.bytes - kLayout.tensors_offset();
  std::set<void*> blocks;
  while (void* const block = segment->allocate(1 << 20)) {
    std::memset(block, 1, 1 << 20);
    EXPECT_TRUE(blocks.insert(block).second);
  }
  EXPECT_EQ(blocks.size(), room >> 20);
}

TEST(Segment, NamesTheLimitOnTheSizeOfFiles) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = kLayout.bytes - 1;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_TUTTI_ERROR(Segment::create(kEpoch, 0, kLayout), ErrorCode::kUnavailable,
                     std::to_string(kLayout.bytes), "ulimit -f");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(SegmentArena, TakesFromTheHeapWhenTheSegmentIsFull) {
  const auto segment = Segment::create(kEpoch, 0, kLayout);
  SegmentArena arena(segment);
  const at::Tensor shared = arena.empty({1000}, at::kFloat);
  EXPECT_TRUE(segment->contains(shared.data_ptr()));
  const at::Tensor large = arena.empty({64 << 20}, at::kByte);
  EXPECT_FALSE(segment->contains(large.data_ptr()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data_ptr()) % 64, 0U);
  std::memset(large.data_ptr(), 1, large.nbytes());
}

TEST(SegmentArena, LetsTensorsOutliveIt) {
  at::Tensor tensor;
  {
    const auto segment = Segment::create(kEpoch, 0, kLayout);
    tensor = SegmentArena(segment).empty({100'000}, at::kFloat);
  }
  std::memset(tensor.data_ptr(), 1, tensor.nbytes());
}

TEST(Segment, IsMappedOnceWithinItsProcess) {
  const auto segment = Segment::create(kEpoch, 1, kLayout);
  const auto attached = Segment::attach(segment->descriptor(), kEpoch, 1, kLayout);
  EXPECT_EQ(attached.get(), segment.get());
}

// ---- segments of peers, valid and invalid

class ForeignSegment : public ::testing::Test {
 protected:
  // The descriptor is what a peer sends; the segment is destroyed, as this process would recognise
  // it.
  explicit ForeignSegment() {
    const auto segment = Segment::create(kEpoch, 1, kLayout);
    descriptor_ = dup(segment->descriptor());
  }
  ~ForeignSegment() override { close(descriptor_); }

  int descriptor_ = -1;
};

TEST_F(ForeignSegment, IsMappedReadOnly) {
  const auto segment = Segment::attach(descriptor_, kEpoch, 1, kLayout);
  ASSERT_NE(segment, nullptr);
  EXPECT_FALSE(segment->failure().has_value());
  EXPECT_EQ(segment->data()[kLayout.tensors_offset()], std::byte{0});
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  // Casts "const" away, as a defect would.
  EXPECT_DEATH(*const_cast<std::byte*>(segment->data() + kLayout.tensors_offset()) = std::byte{1},
               "");
}

TEST_F(ForeignSegment, ShowsWhatItsOwnerWrites) {
  const auto segment = Segment::attach(descriptor_, kEpoch, 1, kLayout);
  void* const owner =
      mmap(nullptr, kLayout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  ASSERT_NE(owner, MAP_FAILED);
  static_cast<char*>(owner)[kLayout.tensors_offset() + 5] = 42;
  EXPECT_EQ(segment->data()[kLayout.tensors_offset() + 5], std::byte{42});
  munmap(owner, kLayout.bytes);
}

TEST_F(ForeignSegment, IsRefusedWithADifferentSize) {
  Segment::Layout larger = kLayout;
  larger.bytes += 4096;
  EXPECT_TUTTI_ERROR(Segment::attach(descriptor_, kEpoch, 1, larger),
                     ErrorCode::kFailedPrecondition, "rank 1 sent a segment of 67108864 bytes",
                     "67112960");
}

TEST_F(ForeignSegment, IsRefusedWithADifferentEpoch) {
  EXPECT_TUTTI_ERROR(Segment::attach(descriptor_, kEpoch + 1, 1, kLayout),
                     ErrorCode::kFailedPrecondition, "rank 1 sent a segment of another group");
}

TEST_F(ForeignSegment, IsRefusedWithADifferentRank) {
  EXPECT_TUTTI_ERROR(Segment::attach(descriptor_, kEpoch, 2, kLayout),
                     ErrorCode::kFailedPrecondition, "rank 2 sent a segment of another group");
}

TEST_F(ForeignSegment, CannotShrink) {
  EXPECT_NE(ftruncate(descriptor_, 4096), 0);
  EXPECT_NE(ftruncate(descriptor_, static_cast<off_t>(2 * kLayout.bytes)), 0);
}

TEST_F(ForeignSegment, IsRefusedWithoutASeal) {
  const int plain = memfd_create("plain", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(plain, static_cast<off_t>(kLayout.bytes)), 0);
  EXPECT_TUTTI_ERROR(Segment::attach(plain, kEpoch, 1, kLayout), ErrorCode::kFailedPrecondition,
                     "sealed");
  close(plain);
}

TEST_F(ForeignSegment, IsRefusedIfItIsNotASegment) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  EXPECT_TUTTI_ERROR(Segment::attach(ends[0], kEpoch, 1, kLayout), ErrorCode::kFailedPrecondition,
                     "rank 1");
  close(ends[0]);
  close(ends[1]);
}

// ---- the end

TEST(Segment, TellsWhyItsRankGaveUp) {
  const auto segment = Segment::create(kEpoch, 0, kLayout);
  EXPECT_FALSE(segment->failure().has_value());
  segment->set_failure(Segment::State::kAborted, ErrorCode::kCancelled, "first");
  segment->set_failure(Segment::State::kAborted, ErrorCode::kInternal, "second");
  segment->set_failure(Segment::State::kLeft, ErrorCode::kUnavailable, "");
  const auto failure = segment->failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->code, ErrorCode::kCancelled);
  EXPECT_EQ(failure->text, "first");
  EXPECT_TRUE(failure->reported);
}

TEST(Segment, TellsThatItsRankLeft) {
  const auto segment = Segment::create(kEpoch, 0, kLayout);
  segment->set_failure(Segment::State::kLeft, ErrorCode::kUnavailable, "");
  const auto failure = segment->failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->code, ErrorCode::kUnavailable);
  EXPECT_FALSE(failure->reported);
}

TEST(Segment, TruncatesALongReason) {
  const auto segment = Segment::create(kEpoch, 0, kLayout);
  segment->set_failure(Segment::State::kAborted, ErrorCode::kCancelled, std::string(5000, 'r'));
  EXPECT_EQ(segment->failure()->text, std::string(2047, 'r'));
}

TEST(Segment, WakesSleepersByItsBell) {
  const auto segment = Segment::create(kEpoch, 0, kLayout);
  const uint32_t seen = segment->bell();
  EXPECT_FALSE(segment->has_sleepers());
  std::thread sleeper([&] {
    const Segment::Sleeper asleep(*segment);
    while (segment->bell() == seen) {
      segment->wait_for_bell(seen, Deadline::after(std::chrono::seconds(10)));
    }
  });
  while (!segment->has_sleepers()) std::this_thread::yield();
  segment->ring_bell();
  sleeper.join();
  EXPECT_FALSE(segment->has_sleepers());
}

TEST(Segment, EndsAWaitAtItsDeadline) {
  const auto segment = Segment::create(kEpoch, 0, kLayout);
  const auto begin = std::chrono::steady_clock::now();
  segment->wait_for_bell(segment->bell(), Deadline::at(begin + std::chrono::milliseconds(20)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  segment->wait_for_bell(segment->bell() + 1, Deadline::forever());  // rung before: no wait
}

// ---- links

class SharedMemoryLinks : public ::testing::Test {
 protected:
  SharedMemoryLinks()
      : mine_(Segment::create(kEpoch, 0, kLayout)),
        theirs_(Segment::create(kEpoch, 1, kLayout)),
        link_(mine_, theirs_, 1, 0, 1, nullptr),
        peer_(theirs_, mine_, 1, 1, 0, nullptr) {}

  static std::span<const std::byte> text(const std::string& value) {
    return std::as_bytes(std::span(value));
  }

  std::shared_ptr<Segment> mine_;
  std::shared_ptr<Segment> theirs_;
  SharedMemoryLink link_;
  SharedMemoryLink peer_;
};

TEST_F(SharedMemoryLinks, HoldAMessageInEachSlot) {
  const std::string value = "value";
  const std::span<const std::byte> piece = text(value);
  for (size_t i = 0; i < Segment::kSlots; ++i) {
    ASSERT_EQ(link_.room(), Segment::kStagedBytes);
    link_.post({.sequence = i}, {}, Link::Pieces(&piece, 1), Link::Use::kReadInPlace);
  }
  EXPECT_EQ(link_.room(), 0U);
  EXPECT_TRUE(link_.drained()) << "small ones are copied";
  for (size_t i = 0; i < Segment::kSlots; ++i) {
    const Incoming* const incoming = peer_.peek();
    ASSERT_NE(incoming, nullptr);
    EXPECT_EQ(incoming->head.sequence, i);
    EXPECT_EQ(std::memcmp(incoming->bytes.data(), value.data(), value.size()), 0);
    EXPECT_TRUE(i != 0 || link_.room() == 0);
    peer_.pop();
    EXPECT_GT(link_.room(), 0U);
  }
  EXPECT_EQ(peer_.peek(), nullptr);
}

TEST_F(SharedMemoryLinks, JoinPieces) {
  const std::string a(20'000, 'a');
  const std::string b = "b";
  const std::array pieces = {text(a), text(""), text(b)};
  link_.post({}, {}, pieces, Link::Use::kReadInPlace);
  const Incoming* const incoming = peer_.peek();
  ASSERT_NE(incoming, nullptr);
  ASSERT_EQ(incoming->bytes.size(), 20'001U);
  EXPECT_EQ(incoming->bytes[19'999], std::byte{'a'});
  EXPECT_EQ(incoming->bytes[20'000], std::byte{'b'});
}

TEST_F(SharedMemoryLinks, DoNotCopyWhatThePeerCanRead) {
  const size_t size = 100'000;
  auto* const memory = static_cast<std::byte*>(mine_->allocate(size));
  const std::span<const std::byte> piece(memory, size);
  link_.post({}, {}, Link::Pieces(&piece, 1), Link::Use::kReadInPlace);
  EXPECT_EQ(peer_.peek()->bytes.data(), memory);
  EXPECT_FALSE(link_.drained());
  peer_.pop();
  EXPECT_TRUE(link_.drained());
}

TEST_F(SharedMemoryLinks, CopyWhatIsWrittenSoon) {
  const size_t size = 100'000;
  auto* const memory = static_cast<std::byte*>(mine_->allocate(size));
  std::set<const std::byte*> places;
  for (int i = 0; i < 40; ++i) {
    std::memset(memory, i, size);
    const std::span<const std::byte> piece(memory, size);
    ASSERT_EQ(link_.room(), Segment::kStagedBytes);
    link_.post({}, {}, Link::Pieces(&piece, 1), Link::Use::kCopyFirst);
    EXPECT_TRUE(link_.drained());
    std::memset(memory, 0xff, size);
    const Incoming& incoming = *peer_.peek();
    ASSERT_EQ(incoming.bytes.size(), size);
    EXPECT_EQ(incoming.bytes.front(), std::byte(i));
    EXPECT_EQ(incoming.bytes.back(), std::byte(i));
    EXPECT_TRUE(mine_->contains(incoming.bytes.data()));
    places.insert(incoming.bytes.data());
    peer_.pop();
  }
  EXPECT_EQ(places.size(), Segment::kSlots * (Segment::kStagedBytes / size))
      << "all of the memory is used before any is used again";
}

TEST_F(SharedMemoryLinks, WakeAPeerThatWaitsForAMessage) {
  const std::string value = "news";
  const std::span<const std::byte> piece = text(value);
  std::thread sender([&] {
    while (!theirs_->has_sleepers()) std::this_thread::yield();
    link_.post({}, {}, Link::Pieces(&piece, 1), Link::Use::kReadInPlace);
  });
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  const auto has_arrived = [&] { return peer_.peek() != nullptr; };
  while (!has_arrived() && !deadline.passed()) peer_.wait(deadline, has_arrived);
  sender.join();
  EXPECT_TRUE(has_arrived());
  EXPECT_FALSE(theirs_->has_sleepers());
}

TEST_F(SharedMemoryLinks, DoNotSleepIfThereIsSomethingToDo) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  link_.wait(deadline, [&] {
    EXPECT_TRUE(mine_->has_sleepers()) << "news would be noticed from here on";
    return true;
  });
  EXPECT_THROW(link_.wait(deadline, []() -> bool { throw std::runtime_error("broken"); }),
               std::runtime_error);
  EXPECT_FALSE(mine_->has_sleepers());
  EXPECT_FALSE(deadline.passed());
}

TEST_F(SharedMemoryLinks, RefuseImpossibleMessages) {
  RingSlot& slot = theirs_->slot(1, 0, 0);
  slot.ready.store(1);
  const auto expect_refused = [&](uint32_t is_inline, uint64_t bytes, uint64_t offset) {
    slot.is_inline = is_inline;
    slot.bytes = bytes;
    slot.offset = offset;
    EXPECT_TUTTI_ERROR(link_.peek(), ErrorCode::kDataLoss, "rank 1", "impossible message");
  };
  expect_refused(1, 17, 0);
  expect_refused(1, UINT64_MAX, 0);
  expect_refused(0, 1, kLayout.bytes);
  expect_refused(0, kLayout.bytes, 1);
  expect_refused(0, UINT64_MAX, 2);
  expect_refused(0, 2, UINT64_MAX);
  slot.bytes = kLayout.bytes;
  slot.offset = 0;
  EXPECT_EQ(link_.peek()->bytes.size(), kLayout.bytes) << "all of it is there to be read";
}

TEST_F(SharedMemoryLinks, ShowMessagesOfAPeerThatLeft) {
  const std::string value = "left behind";
  const std::span<const std::byte> piece = text(value);
  const std::span<const std::byte> large(static_cast<std::byte*>(mine_->allocate(50'000)), 50'000);
  link_.post({}, {}, Link::Pieces(&large, 1), Link::Use::kReadInPlace);
  ASSERT_NE(peer_.peek(), nullptr);
  peer_.pop();
  peer_.post({}, {}, Link::Pieces(&piece, 1), Link::Use::kReadInPlace);
  EXPECT_FALSE(link_.failure(Link::Look::kDetected).has_value());
  theirs_->set_failure(Segment::State::kLeft, ErrorCode::kUnavailable, "");
  EXPECT_TRUE(link_.failure(Link::Look::kDetected).has_value());
  EXPECT_TRUE(link_.drained());
  ASSERT_NE(link_.peek(), nullptr);
  EXPECT_EQ(link_.peek()->bytes.size(), value.size());
}

}  // namespace tutti::segment_test
