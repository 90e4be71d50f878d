// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/multi_worker_extended.h"

#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "tutti/base/error.h"

namespace tutti::internal {

MultiWorkerExtended::MultiWorkerExtended(std::string name, std::vector<DeviceSpec> devices,
                                         std::shared_ptr<WorkerGroup> group,
                                         const std::shared_ptr<WorkerCrossDeviceOps>& ops,
                                         const ReplicaRunnerOptions& options,
                                         const CommunicationOptions& communication_options,
                                         std::shared_ptr<ClusterResolver> resolver)
    : LocalExtended(std::move(name), std::move(devices), ops, options, communication_options,
                    group->rank(), group->size()),
      resolver_(std::move(resolver)),
      group_(std::move(group)),
      ops_(ops),
      input_(group_) {}

std::string MultiWorkerExtended::describe() const {
  return message(LocalExtended::describe(), " of worker ", worker_index(), " of ", num_workers());
}

InputTotals MultiWorkerExtended::add_up_input(const InputProgress& progress) {
  return input_.add_up(progress);
}

uint64_t MultiWorkerExtended::agree_on_seed(uint64_t mine) {
  const at::Tensor seed = at::scalar_tensor(static_cast<int64_t>(mine), at::kLong);
  take_from_first_worker(seed, "seed of a dataset");
  return static_cast<uint64_t>(seed.item<int64_t>());
}

std::vector<at::Tensor> MultiWorkerExtended::gather_from_workers(
    const at::Tensor& mine, std::string_view name, const CommunicationOptions& options) {
  return ops_->gather_bytes(mine, name, options);
}

void MultiWorkerExtended::take_from_first_worker(const at::Tensor& tensor, std::string_view name) {
  ops_->broadcast_from_first(tensor, name, communication_options());
}

// What ends this run must end it everywhere: the others would wait for this worker.
void MultiWorkerExtended::do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) {
  group_->check();
  group_->set_step(runs_.fetch_add(1) + 1);
  const auto noted = [&](ReplicaContext& context) {
    try {
      fn(context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled) note_error(context, error.what());
      throw;
    } catch (const std::exception& error) {
      note_error(context, error.what());
      throw;
    } catch (...) {
      note_error(context, "an exception that is no std::exception");
      throw;
    }
  };
  try {
    LocalExtended::do_call_for_each_replica(noted);
  } catch (const std::exception& error) {
    group_->abort(ErrorCode::kCancelled, message(group_->name(worker_index()), " failed in step ",
                                                 group_->step(), ": ", error.what()));
    throw;
  } catch (...) {
    group_->abort(ErrorCode::kCancelled,
                  message(group_->name(worker_index()), " failed in step ", group_->step(), "."));
    throw;
  }
  group_->check();
}

void MultiWorkerExtended::note_error(const ReplicaContext& context, const char* text) {
  // At once: other replicas of this worker may go on for long.
  group_->abort(ErrorCode::kCancelled,
                message(group_->name(worker_index()), " failed in step ", group_->step(),
                        ", replica ", context.replica_id_in_sync_group(), ": ", text));
}

}  // namespace tutti::internal
