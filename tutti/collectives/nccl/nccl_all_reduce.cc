// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_all_reduce.h"

#include <chrono>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/collectives/internal/host_batch.h"
#include "tutti/collectives/nccl/nccl_engine.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kDefaultNcclTimeout = std::chrono::minutes(10);

int check_num_packs(int num_packs) {
  if (num_packs >= 0) return num_packs;
  throw Error(ErrorCode::kInvalidArgument,
              message("NcclAllReduce: num_packs is ", num_packs, "; it must be 0 or more."));
}

}  // namespace

bool nccl_is_available() {
  try {
    internal::nccl_functions();
    return true;
  } catch (const Error&) {
    return false;  // the first use of NCCL reports the reason
  }
}

NcclAllReduce::NcclAllReduce(int num_packs) : NcclAllReduce(num_packs, internal::NcclSeams()) {}

NcclAllReduce::NcclAllReduce(int num_packs, const internal::NcclSeams& seams)
    : num_packs_(check_num_packs(num_packs)),
      engine_(std::make_unique<internal::NcclEngine>(seams)) {}

NcclAllReduce::~NcclAllReduce() = default;

at::Tensor NcclAllReduce::do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                    const CommunicationOptions& options) {
  return host_.reduce(op, value, Destinations(value[0]), options)[0];
}

void NcclAllReduce::do_all_reduce(const AllReduceBatch& batch,
                                  const CommunicationOptions& options) {
  if (batch.replicas() == 1) return host_.all_reduce(batch, options);
  const internal::NcclPlan plan = internal::plan_nccl(batch, num_packs_, engine_->device_of());
  if (plan.host_tensors.size() == batch.tensors()) {
    if (batch.tensors() > 0 && !warned_.exchange(true)) {
      log(LogLevel::kWarning,
          "NcclAllReduce: tensors in host memory are reduced without NCCL; use HostAllReduce "
          "between CPU devices. (Logged only once.)");
    }
    return host_.all_reduce(batch, options);
  }
  if (!plan.packs.empty()) {
    engine_->run(batch, plan, options.timeout.value_or(kDefaultNcclTimeout));
  }
  // Last, because no member waits for this one any more if it fails here.
  if (batch.member() != 0) return;
  // Host tensors beside those of GPUs are few and small, so one member reduces them.
  for (const size_t t : plan.host_tensors) internal::reduce_by_operators(batch, t);
}

}  // namespace tutti
