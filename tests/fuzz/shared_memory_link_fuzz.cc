// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as the messages of a peer in shared memory. The first byte chooses the operation of
// this rank, the second what the peer reports about itself; then come messages as they lie in
// slots, each after a byte that says what of it is made valid. After each message the operation is
// compared with a plain reader of the slots: what it has received, whether it is done, and whether
// it has refused a message.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/base/log.h"
#include "tutti/collectives/worker_all_reduce.h"
#include "tutti/group/shared_memory/segment.h"
#include "tutti/group/shared_memory/shared_memory_link.h"
#include "tutti/group/worker_group.h"

#include "tests/fuzz/expect_only_errors.h"

namespace {

using namespace tutti;
using internal::RingSlot;
using internal::Segment;
using internal::SharedMemoryLink;

enum Valid : uint8_t {
  kHash = 1,
  kSequence = 2,
  kTotal = 4,
  kSize = 8,
  kReady = 16,
  kPastTheEnd = 32
};

constexpr uint64_t kEpoch = 1;
constexpr size_t kPlace = 4096;  // what this rank expects of the peer, in bytes
constexpr int64_t kSmallCount = 1024;
constexpr int64_t kLargeCount = 8192;

class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint8_t byte() {
    uint8_t value = 0;
    fill(&value, 1);
    return value;
  }
  void fill(void* memory, size_t size) {
    const size_t taken = std::min(size, bytes_.size());
    if (taken > 0) std::memcpy(memory, bytes_.data(), taken);
    bytes_ = bytes_.subspan(taken);
  }

 private:
  std::span<const uint8_t> bytes_;
};

Operation operation(uint8_t choice) {
  Operation operation;
  const std::array kinds = {OperationKind::kAllGather, OperationKind::kBroadcast,
                            OperationKind::kExchange, OperationKind::kAllReduce,
                            OperationKind::kAllReduce};
  operation.kind = kinds[choice % 5];
  if (operation.kind == OperationKind::kAllReduce) {
    operation.dtype = at::kFloat;
    operation.op = ReduceOp::kSum;
  }
  return operation;
}

std::vector<std::byte> own_bytes() {
  std::vector<std::byte> bytes(kPlace);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

std::vector<float> own_numbers() {
  std::vector<float> numbers(kLargeCount);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.25F * static_cast<float>(i) - 700;
  return numbers;
}

enum class Progress { kWaits, kDone, kRefused };

// What an operation must make of the slots of the peer, in plain loops.
class PlainReader {
 public:
  PlainReader(const Segment& theirs, uint8_t choice)
      : theirs_(theirs),
        choice_(choice % 5),
        hash_(make_fingerprint(operation(choice), kEpoch).hash) {}

  Progress advance() {
    while (progress_ == Progress::kWaits) {
      const RingSlot& slot = theirs_.slot(0, 0, popped_);
      if (slot.ready.load() != popped_ + 1) break;
      progress_ = take(slot);
    }
    return progress_;
  }

  // These belong to operations that move bytes; there are as many as have arrived.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::vector<float>& numbers() const { return numbers_; }

 private:
  Progress take(const RingSlot& slot) {
    const uint64_t size = theirs_.layout().bytes;
    const bool fits = slot.is_inline != 0 ? slot.bytes <= RingSlot::kInlineBytes
                                          : slot.offset <= size && slot.bytes <= size - slot.offset;
    if (!fits || slot.head.hash != hash_ || slot.head.sequence != popped_) {
      return Progress::kRefused;
    }
    ++popped_;
    const std::span<const std::byte> bytes(
        slot.is_inline != 0 ? slot.inline_bytes : theirs_.data() + slot.offset, slot.bytes);
    return choice_ < 3 ? take_bytes(slot.head.total, bytes) : take_numbers(slot.head.total, bytes);
  }

  Progress take_bytes(uint64_t total, std::span<const std::byte> bytes) {
    // all_gather takes as much as the first message promises, here up to kPlace.
    if (popped_ == 1) expected_ = choice_ == 0 ? std::min<uint64_t>(total, kPlace) : kPlace;
    if (total != expected_ || bytes.size() > expected_ - bytes_.size()) return Progress::kRefused;
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return bytes_.size() == expected_ ? Progress::kDone : Progress::kWaits;
  }

  // A small sum comes as all numbers of the peer; a large one as those of the first half, to be
  // added, and then as the sums of the second.
  Progress take_numbers(uint64_t total, std::span<const std::byte> bytes) {
    const auto count = static_cast<size_t>(choice_ == 3 ? kSmallCount : kLargeCount);
    const size_t part = choice_ == 3 ? count : count / 2;
    if (total != count || bytes.size() != part * sizeof(float)) return Progress::kRefused;
    for (size_t i = 0; i < part; ++i) {
      float number = 0;
      std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
      float& mine = numbers_[(popped_ - 1) * part + i];
      mine = popped_ == 1 ? mine + number : number;
    }
    return popped_ * part == count ? Progress::kDone : Progress::kWaits;
  }

  const Segment& theirs_;
  const int choice_;
  const uint64_t hash_;
  uint32_t popped_ = 0;
  uint64_t expected_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<float> numbers_ = own_numbers();
  Progress progress_ = Progress::kWaits;
};

// Rank 0 of two; rank 1 is the input.
class Pair {
 public:
  Pair() {
    Segment::Layout layout{kLanes, 2, 0};
    layout.bytes = layout.tensors_offset() + (64 << 10);
    mine_ = Segment::create(kEpoch, 0, layout);
    theirs_ = Segment::create(kEpoch, 1, layout);
    WorkerGroup::Links links(kLanes);
    for (size_t c = 0; c < kLanes; ++c) {
      links[c].resize(2);
      links[c][1] = std::make_unique<SharedMemoryLink>(mine_, theirs_, c, 0, 1, nullptr);
    }
    WorkerGroup::Options options;
    options.epoch = kEpoch;
    options.names = {"rank 0", "rank 1"};
    group_ = std::make_unique<WorkerGroup>(options, std::move(links), std::make_shared<HeapArena>(),
                                           nullptr);
  }

  Lane& lane() { return group_->lane(LaneKind::kCollectives); }

  std::unique_ptr<Transfer> start(uint8_t choice) {
    const Deadline deadline = Deadline::forever();
    switch (choice % 5) {
      case 0:
        return lane().all_gather(
            {}, own_, [this](int rank, size_t bytes) { return place(rank, bytes); }, deadline);
      case 1:
        return lane().broadcast({}, 1, own_, deadline);
      case 2:
        return lane().exchange({}, {{1, own_}}, {{1, theirs_place_}}, deadline);
      case 3:
        return reduction(kSmallCount, deadline);
      default:
        return reduction(kLargeCount, deadline);
    }
  }

  PlainReader plain_reader(uint8_t choice) const { return {*theirs_, choice}; }

  // Whether the memory of this rank holds what the plain reader has.
  bool agrees(uint8_t choice, const PlainReader& plain, bool done) const {
    if (choice % 5 < 3) {
      const std::vector<std::byte>& memory = choice % 5 == 1 ? own_ : theirs_place_;
      return std::equal(plain.bytes().begin(), plain.bytes().end(), memory.begin());
    }
    return !done ||
           std::equal(value_.begin(), value_.end(), plain.numbers().begin(), [](float a, float b) {
             return (std::isnan(a) && std::isnan(b)) ||
                    std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
           });
  }

  void write_message(Input& input, uint8_t choice, uint32_t sequence) {
    const uint8_t valid = input.byte();
    RingSlot& slot = theirs_->slot(0, 0, sequence);
    uint32_t ready = 0;
    input.fill(&ready, sizeof ready);
    input.fill(&slot.is_inline, sizeof slot.is_inline);
    input.fill(&slot.head, sizeof slot.head);
    input.fill(&slot.bytes, sizeof slot.bytes);
    input.fill(&slot.offset, sizeof slot.offset);
    input.fill(slot.inline_bytes, sizeof slot.inline_bytes);
    input.fill(&slot.fingerprint, sizeof slot.fingerprint);
    const bool small = choice % 5 == 3;
    const bool reduction = choice % 5 >= 3;
    if ((valid & kHash) != 0) slot.head.hash = make_fingerprint(operation(choice), kEpoch).hash;
    if ((valid & kSequence) != 0) slot.head.sequence = sequence;
    if ((valid & kTotal) != 0) {
      slot.head.total = static_cast<uint64_t>(small ? kSmallCount : kLargeCount);
      if (!reduction) slot.head.total = kPlace;
    }
    if ((valid & kSize) != 0) {
      slot.bytes = choice % 5 == 4 ? kLargeCount / 2 * sizeof(float) : kPlace;
      slot.is_inline = 0;
      slot.offset = theirs_->staged_offset(0, 0, sequence);
    }
    if ((valid & kPastTheEnd) != 0) slot.offset = theirs_->layout().bytes - slot.bytes + 1;
    slot.ready.store((valid & kReady) != 0 ? sequence + 1 : ready);
  }

  void fail(Input& input) {
    const auto code = static_cast<ErrorCode>(input.byte());
    std::string text(input.byte(), 'x');
    input.fill(text.data(), text.size());
    theirs_->set_failure(Segment::State::kAborted, code, text);
  }

 private:
  std::span<std::byte> place(int rank, size_t bytes) {
    if (rank == 0) return own_;
    return std::span(theirs_place_).first(std::min(bytes, theirs_place_.size()));
  }

  std::unique_ptr<Transfer> reduction(int64_t count, const Deadline& deadline) {
    WorkerReduction job;
    job.count = count;
    job.nodes = {value_.data()};
    job.outputs = {value_.data()};
    return start_all_reduce(lane(), tree_, job, {}, deadline);
  }

  std::shared_ptr<Segment> mine_;
  std::shared_ptr<Segment> theirs_;
  WorkerTree tree_{2, 1};
  std::vector<std::byte> own_ = own_bytes();
  std::vector<std::byte> theirs_place_ = std::vector<std::byte>(kPlace);
  std::vector<float> value_ = own_numbers();
  std::unique_ptr<WorkerGroup> group_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  set_log_level(LogLevel::kOff);
  Input input({data, size});
  const uint8_t choice = input.byte();
  const uint8_t failure = input.byte();
  Pair pair;
  PlainReader plain = pair.plain_reader(choice);
  const std::unique_ptr<Transfer> transfer = pair.start(choice);
  if (failure != 0) pair.fail(input);
  auto progress = Progress::kWaits;
  for (uint32_t i = 0; i < Segment::kSlots && !input.empty(); ++i) {
    pair.write_message(input, choice, i);
    progress = Progress::kRefused;
    test::expect_only_errors(
        [&] { progress = transfer->advance() ? Progress::kDone : Progress::kWaits; });
    if (progress != plain.advance()) throw std::logic_error("it went on, or did not");
    if (progress == Progress::kRefused) break;
    if (!pair.agrees(choice, plain, progress == Progress::kDone)) {
      throw std::logic_error("it has received something else");
    }
    if (progress == Progress::kDone) break;
  }
  return 0;
}
