// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_engine.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/collectives/nccl/nccl_share.h"

namespace tutti::internal {

using std::chrono::milliseconds;

// One all-reduce as one member sees it.
struct NcclEngine::Call {
  const AllReduceBatch& batch;
  const NcclPlan& plan;
  milliseconds timeout;
  Deadline deadline;
  std::atomic<int64_t>* key;
  size_t first;  // the replicas this member works for: [first, last)
  size_t last;
  std::string me;
  std::shared_ptr<NcclTeam> team = nullptr;
  bool is_last = false;
};

namespace {

// Keeps sums of a limit from overflowing.
constexpr milliseconds kForever = std::chrono::hours(24 * 3650);

std::exception_ptr late_error(milliseconds limit) {
  return std::make_exception_ptr(Error(
      ErrorCode::kDeadlineExceeded,
      message("NcclAllReduce: a call into NCCL or LibTorch has not returned within ", limit.count(),
              " ms. The communicators were aborted; the next call makes new ones. "
              "CommunicationOptions::timeout sets the limit.")));
}

std::string describe_member(const AllReduceBatch& batch, const std::vector<c10::Device>& devices) {
  if (batch.members() > 1) return describe_replica(batch.member(), devices[batch.member()]);
  return message("the thread of replicas 0 to ", batch.replicas() - 1);
}

}  // namespace

void NcclEngine::run(const AllReduceBatch& batch, const NcclPlan& plan, milliseconds timeout) {
  const bool alone = batch.members() == 1;
  Call call{batch,
            plan,
            timeout,
            Deadline::after(timeout),
            alone ? nullptr : &batch.claims(0),
            alone ? 0 : batch.member(),
            alone ? batch.replicas() : batch.member() + 1,
            describe_member(batch, plan.devices)};
  const NcclTeams::Joined joined = teams_.join(call.key, batch.members());
  call.team = joined.team;
  call.is_last = joined.is_last;
  try {
    const std::shared_ptr<NcclGroup> group = start(call);
    run_nccl_share({batch, plan, *group, *call.team, call.first, call.last}, call.deadline,
                   timeout);
  } catch (...) {
    const std::shared_ptr<NcclGroup> group = call.team->group();
    if (call.team->fail(std::current_exception()) && group != nullptr) {
      group->abort(seams_.abort_grace);
    }
    if (group == nullptr) teams_.give_up(call.key);
    leave(*call.team);
    call.team->throw_if_failed();
  }
  leave(*call.team);
}

void NcclEngine::leave(NcclTeam& team) {
  const NcclTeams::Left left = teams_.leave(team);
  if (!left.has_turn) return;
  watchdog_.dismiss();
  // This precedes the next turn, so that others do not get aborted communicators.
  if (left.failed) drop(team.group());
  teams_.give_turn_back();
}

std::shared_ptr<NcclGroup> NcclEngine::start(const Call& call) {
  if (call.is_last) return start_as_last(call);
  return call.team->wait_for_start(
      call.deadline,
      message("NcclAllReduce: ", call.me, " has waited for ", call.timeout.count(),
              " ms for the threads of the other replicas or for another all-reduce."));
}

std::shared_ptr<NcclGroup> NcclEngine::start_as_last(const Call& call) {
  const NcclFunctions& nccl = seams_.functions == nullptr ? nccl_functions() : *seams_.functions;
  if (!teams_.take_turn(*call.team, call.deadline)) {
    throw Error(ErrorCode::kDeadlineExceeded,
                message("NcclAllReduce: ", call.me, " has waited for ", call.timeout.count(),
                        " ms for another all-reduce of the same object."));
  }
  std::shared_ptr<NcclGroup> group = group_of(nccl, call.plan.devices);
  // Members detect a passed deadline themselves, except inside NCCL; they get time to act first.
  const milliseconds limit = std::min<milliseconds>(call.timeout, kForever);
  watchdog_.watch(Deadline::after(limit + seams_.abort_grace),
                  [team = call.team, group, limit, grace = seams_.abort_grace] {
                    if (team->fail(late_error(limit))) group->abort(grace);
                  });
  call.team->start(group);
  return group;
}

std::shared_ptr<NcclGroup> NcclEngine::group_of(const NcclFunctions& nccl,
                                                const std::vector<c10::Device>& devices) {
  std::vector<int> key;
  for (const c10::Device& device : devices) key.push_back(device.index());
  MutexLock lock(mutex_);
  std::shared_ptr<NcclGroup>& group = groups_[key];
  if (group == nullptr) group = std::make_shared<NcclGroup>(nccl, devices);
  return group;
}

void NcclEngine::drop(const std::shared_ptr<NcclGroup>& group) {
  MutexLock lock(mutex_);
  std::erase_if(groups_, [&](const auto& entry) { return entry.second == group; });
}

}  // namespace tutti::internal
