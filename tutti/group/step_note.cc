// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/step_note.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr std::chrono::seconds kLookAround{1};
// Notes of workers about one model have similar sizes, except for attachments whose size depends on
// the data.
constexpr size_t kMaxFactor = 8;
constexpr size_t kSomeBytes = 8 << 20;

// The parts of a note that another worker has sent.
struct Parts {
  std::span<const std::byte> numbers;
  std::span<const std::byte> flags;
  std::span<const std::byte> attachment;

  Parts(std::span<const std::byte> note, size_t num_flags) {
    uint64_t count = 0;
    TUTTI_CHECK(note.size() >= sizeof count + num_flags);
    std::memcpy(&count, note.data(), sizeof count);
    note = note.subspan(sizeof count);
    TUTTI_CHECK(count <= (note.size() - num_flags) / sizeof(double));
    numbers = note.first(count * sizeof(double));
    flags = note.subspan(numbers.size(), num_flags);
    attachment = note.subspan(numbers.size() + num_flags);
  }

  size_t count() const { return numbers.size() / sizeof(double); }
  double number(size_t i) const {
    double value = 0;
    std::memcpy(&value, numbers.data() + i * sizeof value, sizeof value);
    return value;
  }
};

}  // namespace

StepNote::StepNote(WorkerGroup& group, size_t local_replicas,
                   std::optional<std::chrono::milliseconds> timeout)
    : group_(group), timeout_(timeout), exchanges_(local_replicas) {
  if (group_.is_alone()) return;
  notes_.resize(static_cast<size_t>(group_.size()));
  attachments_.resize(notes_.size());
}

void StepNote::set_num_flags(size_t count) {
  if (group_.is_alone()) return;
  flags_.assign(count, 0);
  flags_of_all_.assign(count, 0);
}

void StepNote::state(FunctionRef<void(std::vector<double>& numbers)> write) {
  if (!group_.is_alone()) write(statement_);
}

void StepNote::attach(FunctionRef<void(std::vector<std::byte>& bytes)> write) {
  if (!group_.is_alone()) write(attachment_);
}

std::unique_ptr<Transfer> StepNote::send(const char* name) {
  mine_.clear();
  const uint64_t stated = statement_.size();
  for (const auto& part :
       {std::as_bytes(std::span(&stated, 1)), std::as_bytes(std::span(statement_)),
        std::as_bytes(std::span(flags_)), std::as_bytes(std::span(attachment_))}) {
    mine_.insert(mine_.end(), part.begin(), part.end());
  }
  statement_.clear();
  attachment_.clear();
  std::fill(flags_.begin(), flags_.end(), 0);
  const std::array<int64_t, 1> sizes = {static_cast<int64_t>(flags_.size())};
  Operation operation;
  operation.name = name;
  operation.sizes = sizes;
  Lane& lane = group_.lane(LaneKind::kFlags);
  std::unique_ptr<Transfer> transfer = lane.all_gather(
      operation, mine_,
      [this](int rank, size_t bytes) {
        check_size(rank, bytes);
        std::vector<std::byte>& place = notes_[static_cast<size_t>(rank)];
        place.resize(bytes);
        return std::span(place);
      },
      lane.deadline(timeout_));
  transfer->advance();
  return transfer;
}

// Called before memory is allocated for what a worker sends.
void StepNote::check_size(int rank, size_t bytes) const {
  const size_t limit = kMaxFactor * (mine_.size() + kSomeBytes);
  if (bytes <= limit) return;
  throw Error(ErrorCode::kFailedPrecondition,
              message("DistributedOptimizer: ", group_.name(rank), " sends ", bytes,
                      " bytes as a note, but ", group_.name(group_.rank()), " accepts at most ",
                      limit, ". All workers must train the same model with the same options."));
}

// What preceded it had its own deadlines.
void StepNote::receive(Transfer& transfer) {
  transfer.set_deadline(group_.lane(LaneKind::kFlags).deadline(timeout_));
  transfer.wait();
  read();
}

void StepNote::read() {
  disagreement_.reset();
  std::fill(flags_of_all_.begin(), flags_of_all_.end(), 0);
  const Parts first(notes_[0], flags_.size());
  for (size_t r = 0; r < notes_.size(); ++r) {
    const Parts parts(notes_[r], flags_.size());
    attachments_[r] = parts.attachment;
    for (size_t i = 0; i < flags_of_all_.size(); ++i) {
      flags_of_all_[i] |= std::to_integer<uint8_t>(parts.flags[i]);
    }
    const auto disagree = [&](size_t i, double a, double b) {
      disagreement_ = {{group_.name(0), group_.name(static_cast<int>(r))}, i, {a, b}};
    };
    const size_t common = std::min(parts.count(), first.count());
    for (size_t i = 0; i < common && !disagreement_; ++i) {
      const double a = first.number(i);
      const double b = parts.number(i);
      if (std::bit_cast<uint64_t>(a) != std::bit_cast<uint64_t>(b)) disagree(i, a, b);
    }
    if (parts.count() == first.count() || disagreement_) continue;
    disagree(common, static_cast<double>(first.count()), static_cast<double>(parts.count()));
    disagreement_->is_count = true;
  }
}

void StepNote::exchange(size_t replica, FunctionRef<void()> meanwhile) {
  if (group_.is_alone()) return meanwhile();
  const uint32_t exchange = ++exchanges_[replica];
  if (replica == 0) return exchange_for_all(meanwhile);
  meanwhile();
  wait_for(exchange);
}

void StepNote::exchange_for_all(FunctionRef<void()> meanwhile) {
  try {
    std::unique_ptr<Transfer> transfer;
    std::exception_ptr error;
    try {
      transfer = send("flags of a step");
    } catch (...) {
      error = std::current_exception();
    }
    meanwhile();  // in any case: there the other replicas may be waiting for this one
    if (error != nullptr) std::rethrow_exception(error);
    receive(*transfer);
  } catch (...) {
    error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
    done_.bump();
    throw;
  }
  done_.bump();
}

void StepNote::wait_for(uint32_t exchange) {
  // In floating point, which does not overflow for a timeout that means forever.
  const std::chrono::duration<double> timeout = timeout_.value_or(group_.options().timeout);
  const Deadline deadline = Deadline::after(2 * timeout);
  while (true) {
    const bool is_late = deadline.passed();  // before looking: the process may have been stopped
    const uint32_t done = done_.load();
    if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(error_);
    if (static_cast<int32_t>(done - exchange) >= 0) return;
    if (!is_late) {
      done_.wait(done, group_.options().wait_mode, Deadline::after(kLookAround));
      continue;
    }
    throw Error(ErrorCode::kDeadlineExceeded,
                message("DistributedOptimizer::step: a replica of ", group_.name(group_.rank()),
                        " waited too long for the notes of the other workers. Check what the "
                        "other replicas are doing, or raise communication_options.timeout."));
  }
}

void StepNote::exchange_dropped() {
  if (!group_.is_alone()) receive(*send("flags of a step that is dropped"));
}

}  // namespace tutti
