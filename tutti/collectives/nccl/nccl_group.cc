// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_group.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/base/log.h"

namespace tutti::internal {

std::string describe_replica(size_t replica, c10::Device device) {
  return message("replica ", replica, " (", device, ")");
}

NcclGroup::NcclGroup(const NcclFunctions& nccl, std::vector<c10::Device> devices)
    : nccl_(nccl), devices_(std::move(devices)), communicators_(devices_.size(), nullptr) {
  std::vector<int> indices;
  for (const c10::Device& device : devices_) indices.push_back(device.index());
  check_nccl(
      nccl_,
      nccl_.comm_init_all(communicators_.data(), static_cast<int>(indices.size()), indices.data()),
      "ncclCommInitAll", message("the devices ", joined(devices_)));
  MutexLock lock(mutex_);
  states_.assign(devices_.size(), RankState::kIdle);
}

NcclGroup::~NcclGroup() {
  for (const size_t rank : take_idle(/*also_busy=*/true)) {
    const NcclResult result = nccl_.comm_destroy(communicators_[rank]);
    if (result == NcclResult::kSuccess) continue;
    log(LogLevel::kWarning,
        message("NcclAllReduce: ncclCommDestroy failed on ", describe_replica(rank, devices_[rank]),
                ": ", nccl_.get_error_string(result)));
  }
}

NcclGroup::Calls::Calls(NcclGroup& group, size_t first, size_t last)
    : group_(group), first_(first), last_(last) {
  group_.enter(first_, last_);
  const NcclResult result = group_.nccl_.group_start();
  open_ = result == NcclResult::kSuccess;
  if (open_) return;
  group_.leave(first_, last_);
  check(result, "ncclGroupStart");
}

NcclGroup::Calls::~Calls() {
  // NCCL wants every group ended. If a call of NCCL failed it drops the others; after an
  // error of ours it launches what was queued, which the abort that follows ends. An abort
  // waits for this destructor, unless it has waited for longer than its grace.
  if (open_) group_.nccl_.group_end();
  group_.leave(first_, last_);
}

void NcclGroup::Calls::send(size_t rank, const void* data, size_t bytes, size_t peer) {
  group_.check_open(rank);
  check(group_.nccl_.send(data, bytes, NcclDataType::kInt8, static_cast<int>(peer),
                          group_.communicators_[rank], nullptr),
        "ncclSend", rank);
}

void NcclGroup::Calls::receive(size_t rank, void* data, size_t bytes, size_t peer) {
  group_.check_open(rank);
  check(group_.nccl_.recv(data, bytes, NcclDataType::kInt8, static_cast<int>(peer),
                          group_.communicators_[rank], nullptr),
        "ncclRecv", rank);
}

void NcclGroup::Calls::all_gather(size_t rank, const void* data, void* all, size_t bytes) {
  group_.check_open(rank);
  check(group_.nccl_.all_gather(data, all, bytes, NcclDataType::kInt8, group_.communicators_[rank],
                                nullptr),
        "ncclAllGather", rank);
}

void NcclGroup::Calls::submit() {
  open_ = false;
  check(group_.nccl_.group_end(), "ncclGroupEnd");
}

void NcclGroup::Calls::check(NcclResult result, const char* function, size_t rank) const {
  if (result == NcclResult::kSuccess) return;
  check_nccl(group_.nccl_, result, function, describe_replica(rank, group_.devices_[rank]));
}

// Checks calls that belong to all ranks.
void NcclGroup::Calls::check(NcclResult result, const char* function) const {
  if (last_ - first_ == 1) return check(result, function, first_);
  if (result == NcclResult::kSuccess) return;
  check_nccl(group_.nccl_, result, function,
             message("replicas ", first_, " to ", last_ - 1, " (", joined(group_.devices_), ")"));
}

void NcclGroup::check_async_error(size_t rank) {
  enter(rank, rank + 1);
  NcclResult async = NcclResult::kSuccess;
  const NcclResult result = nccl_.comm_get_async_error(communicators_[rank], &async);
  leave(rank, rank + 1);
  const std::string where = describe_replica(rank, devices_[rank]);
  check_nccl(nccl_, result, "ncclCommGetAsyncError", where);
  if (async == NcclResult::kSuccess || async == NcclResult::kInProgress) return;
  check_nccl(nccl_, async, "an operation", where);
}

void NcclGroup::abort(std::chrono::milliseconds grace) {
  {
    MutexLock lock(mutex_);
    if (aborting_) return;
    aborting_ = true;
  }
  const Deadline deadline = Deadline::after(grace);
  for (size_t aborted = 0; aborted < size();) {
    const uint32_t seen = left_.load();
    for (const size_t rank : take_idle(deadline.passed())) {
      nccl_.comm_abort(communicators_[rank]);  // there is no remedy if that fails too
      ++aborted;
    }
    if (aborted < size()) left_.wait(seen, WaitMode::kYield, deadline);
  }
}

void NcclGroup::enter(size_t first, size_t last) {
  MutexLock lock(mutex_);
  if (aborting_) throw_aborted(first);
  for (size_t rank = first; rank < last; ++rank) states_[rank] = RankState::kInCall;
}

// An abort that has waited long enough does not wait for the end of a group.
void NcclGroup::check_open(size_t rank) {
  MutexLock lock(mutex_);
  if (states_[rank] == RankState::kAborted) throw_aborted(rank);
}

void NcclGroup::throw_aborted(size_t rank) const {
  throw Error(ErrorCode::kCancelled,
              message("NcclAllReduce: the communicator of ", describe_replica(rank, devices_[rank]),
                      " was aborted."));
}

void NcclGroup::leave(size_t first, size_t last) {
  {
    MutexLock lock(mutex_);
    for (size_t rank = first; rank < last; ++rank) {
      if (states_[rank] == RankState::kInCall) states_[rank] = RankState::kIdle;
    }
  }
  left_.bump();
}

// Marks ranks as aborted: those outside of calls, or all that are not yet.
std::vector<size_t> NcclGroup::take_idle(bool also_busy) {
  std::vector<size_t> taken;
  MutexLock lock(mutex_);
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    if (states_[rank] == RankState::kAborted) continue;
    if (states_[rank] == RankState::kInCall && !also_busy) continue;
    states_[rank] = RankState::kAborted;
    taken.push_back(rank);
  }
  return taken;
}

}  // namespace tutti::internal
