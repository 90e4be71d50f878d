// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/worker_group.h"

#include <array>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include "tutti/base/log.h"
#include "tutti/group/input_board.h"

namespace tutti {
namespace {

constexpr std::array<const char*, kLanes> kLaneNames = {"collectives", "gradients", "flags",
                                                        "input"};

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

WorkerGroup::WorkerGroup(Options options, Links links, std::shared_ptr<Arena> shared,
                         std::shared_ptr<void> keep)
    : options_(std::move(options)),
      keep_(std::move(keep)),
      shared_(std::move(shared)),
      arena_(shared_ != nullptr ? shared_ : std::make_shared<HeapArena>()),
      warning_(options_.warning.count()) {
  TUTTI_CHECK(links.size() == kLanes);
  for (auto& each : links) {
    TUTTI_CHECK(each.size() == options_.names.size());
    lanes_.push_back(std::make_unique<Lane>(*this, std::move(each)));
  }
  input_ = std::make_unique<internal::InputBoard>(*this);
}

std::shared_ptr<WorkerGroup> WorkerGroup::alone() {
  Options options;
  options.names = {"the only worker"};
  options.description = "nothing, it is alone";
  Links links(kLanes);
  for (auto& lane : links) lane.resize(1);
  return std::make_shared<WorkerGroup>(std::move(options), std::move(links), nullptr, nullptr);
}

WorkerGroup::~WorkerGroup() = default;

// A rank that knows that the group has ended may reuse memory that others read, so the others are
// told first.
bool WorkerGroup::abort(ErrorCode code, const std::string& text) {
  if (is_alone()) return false;
  {
    const MutexLock telling(telling_);
    {
      const MutexLock lock(mutex_);
      if (error_ != nullptr) return false;
      error_ = std::make_exception_ptr(Error(code, text));
    }
    Lane& first = *lanes_[0];
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) first.link(r).abort(code, text, std::nullopt);
    }
    aborted_.store(true, std::memory_order_release);
  }
  if (code == ErrorCode::kFailedPrecondition || code == ErrorCode::kInvalidArgument) {
    log_operations();
  }
  return true;
}

void WorkerGroup::log_operations() const {
  std::string text;
  for (size_t c = 0; c < lanes_.size(); ++c) {
    const std::string operations = lanes_[c]->log_.describe();
    if (!operations.empty()) text += message("\n", kLaneNames[c], ":\n", operations);
  }
  log(LogLevel::kError, message("the last operations of ", name(rank()), ", by lane:", text));
}

void WorkerGroup::throw_if_aborted() {
  if (!aborted_.load(std::memory_order_acquire)) return;
  std::exception_ptr error;
  {
    const MutexLock lock(mutex_);
    error = error_;
  }
  std::rethrow_exception(error);
}

void WorkerGroup::check_peers() {
  throw_if_aborted();
  Lane& first = *lanes_[0];
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const std::optional<PeerFailure> failure = first.link(r).failure(Link::Look::kReported);
    if (failure) abort(failure->code, failure->text);
  }
  throw_if_aborted();
}

std::string WorkerGroup::place() const {
  return is_alone() ? "" : message(" of worker ", rank(), " of ", size());
}

std::vector<at::Tensor> WorkerGroup::gather(const at::Tensor& mine, std::string_view what,
                                            std::optional<std::chrono::milliseconds> timeout) {
  if (is_alone()) return {mine};
  Lane& lane = this->lane(LaneKind::kCollectives);
  const MutexLock lock(lane.turn());
  std::vector<at::Tensor> all(static_cast<size_t>(size()));
  Operation operation;
  operation.name = what;
  lane.all_gather(
          operation, bytes_of(mine),
          [&](int rank, size_t bytes) {
            at::Tensor& place = all[static_cast<size_t>(rank)];
            place = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
            return bytes_of(place);
          },
          lane.deadline(timeout))
      ->wait();
  return all;
}

void WorkerGroup::broadcast(const at::Tensor& tensor, std::string_view what,
                            std::optional<std::chrono::milliseconds> timeout) {
  if (is_alone()) return;
  Lane& lane = this->lane(LaneKind::kCollectives);
  const MutexLock lock(lane.turn());
  const at::Tensor memory = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  Operation operation;
  operation.name = what;
  operation.dtype = memory.scalar_type();
  operation.sizes = memory.sizes();
  lane.broadcast(operation, 0, bytes_of(memory), lane.deadline(timeout))->wait();
  if (!memory.is_alias_of(tensor) || !tensor.is_contiguous()) tensor.copy_(memory);
}

at::Tensor WorkerGroup::of_first(const at::Tensor& mine, std::string_view what) {
  if (is_alone()) return mine;
  at::Tensor value = mine.detach().clone();
  broadcast(value, what);
  return value;
}

std::optional<uint64_t> WorkerGroup::agree(FunctionRef<uint64_t()> propose, std::string_view what) {
  if (is_alone()) return std::nullopt;
  const at::Tensor number = at::scalar_tensor(static_cast<int64_t>(propose()), at::kLong);
  broadcast(number, what);
  return static_cast<uint64_t>(number.item<int64_t>());
}

void WorkerGroup::barrier(std::string_view what) {
  if (is_alone()) return;
  Lane& lane = this->lane(LaneKind::kCollectives);
  const MutexLock lock(lane.turn());
  Operation operation;
  operation.name = what;
  lane.barrier(operation, lane.deadline())->wait();
}

void WorkerGroup::gather_equal(std::span<const std::byte> mine, std::span<std::byte> all,
                               const std::string& what,
                               std::optional<std::chrono::milliseconds> timeout) {
  Lane& lane = this->lane(LaneKind::kCollectives);
  const MutexLock lock(lane.turn());
  Operation operation;
  operation.name = what;
  lane.all_gather(
          operation, mine,
          [&](int rank, size_t bytes) {
            if (bytes != mine.size()) {
              throw Error(ErrorCode::kFailedPrecondition,
                          message(what, ": ", name(rank), " has ", bytes,
                                  " bytes of numbers where ", name(this->rank()), " has ",
                                  mine.size(), ". All must give as many of the same type."));
            }
            return all.subspan(static_cast<size_t>(rank) * mine.size(), mine.size());
          },
          lane.deadline(timeout))
      ->wait();
}

InputTotals WorkerGroup::add_up(const InputProgress& progress) {
  if (is_alone()) return {progress.local_replicas_with_data, progress.local_rows, progress.stop};
  return input_->add_up(progress);
}

void WorkerGroup::go_on_after_input_pass(int64_t pass) {
  int64_t next = input_passes_.load();
  while (next <= pass && !input_passes_.compare_exchange_weak(next, pass + 1)) {
  }
}

void WorkerGroup::end_input_pass(int64_t pass) {
  if (!is_alone()) input_->forget(pass);
}

}  // namespace tutti
