// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/reduction_to_one_device.h"

#include <atomic>
#include <utility>

#include <ATen/ops/cat.h>
#include <c10/core/ScalarType.h>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/base/log.h"
#include "tutti/collectives/internal/host_batch.h"
#include "tutti/collectives/internal/reduce_components.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/device/device_scope.h"
#include "tutti/nest/leaf.h"

namespace tutti {
namespace {

// Counts to ten; after that the counter is only read.
class FirstTen {
 public:
  bool more() {
    constexpr int kTimes = 10;
    return count_.load(std::memory_order_relaxed) < kTimes &&
           count_.fetch_add(1, std::memory_order_relaxed) < kTimes;
  }

 private:
  std::atomic<int> count_{0};
};

FirstTen reduce_lines;
FirstTen gather_lines;

void log_transfer(const char* what, const DeviceSpec& device,
                  const std::vector<DeviceSpec>& destinations) {
  log(LogLevel::kInfo, message(what, " to ", device.short_name(), " then broadcast to (",
                               joined(destinations, ", ", &DeviceSpec::short_name), ")."));
}

}  // namespace

ReductionToOneDevice::ReductionToOneDevice(std::optional<std::string> reduce_to_device,
                                           AccumulationFn accumulation_fn)
    : accumulation_fn_(std::move(accumulation_fn)) {
  if (!reduce_to_device) return;
  if (reduce_to_device->empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "ReductionToOneDevice: reduce_to_device is empty; name a device such as \"CPU:0\", "
                "or leave it out for the first destination.");
  }
  reduce_to_device_ = DeviceSpec::canonical(*reduce_to_device);
  torch_device(*reduce_to_device_);  // throws for a device that LibTorch does not have
}

at::Tensor ReductionToOneDevice::do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                           const CommunicationOptions&) {
  const at::Device device =
      reduce_to_device_ ? torch_device(*reduce_to_device_) : value[0].device();
  return reduce_on(device, op, {value.begin(), value.end()});
}

std::vector<at::Tensor> ReductionToOneDevice::do_reduce_to(ReduceOp op,
                                                           const PerReplica<at::Tensor>& value,
                                                           const Devices& devices,
                                                           const CommunicationOptions&) {
  const DeviceSpec& target = reduce_to_device_ ? *reduce_to_device_ : devices[0];
  if (reduce_lines.more()) log_transfer("Reduce", target, devices);
  const at::Tensor reduced = reduce_on(torch_device(target), op, {value.begin(), value.end()});
  if (devices.size() == 1 && reduced.device() == torch_device(devices[0])) return {reduced};
  return do_broadcast(reduced, devices);
}

at::Tensor ReductionToOneDevice::do_gather(const PerReplica<at::Tensor>& value,
                                           const Devices& devices, int64_t axis,
                                           const CommunicationOptions&) {
  const DeviceSpec& target = reduce_to_device_ ? *reduce_to_device_ : devices[0];
  if (gather_lines.more()) log_transfer("Gather", target, devices);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : value) parts.push_back(part.detach().to(torch_device(target)));
  return at::cat(parts, axis);
}

void ReductionToOneDevice::do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions&) {
  if (batch.member() != 0 || batch.tensors() == 0) return;
  Devices devices;
  const auto devices_of_replicas = [&] {
    std::vector<at::Tensor> components;
    for (size_t r = 0; r < batch.replicas(); ++r) components.push_back(batch.input(r, 0));
    return Destinations(PerReplica<at::Tensor>(std::move(components))).devices();
  };
  for (size_t t = 0; t < batch.tensors(); ++t) {
    if (reduce_lines.more()) {
      if (devices.empty()) devices = devices_of_replicas();
      log_transfer("Reduce", reduce_to_device_ ? *reduce_to_device_ : devices[0], devices);
    }
    const bool on_host = !reduce_to_device_ || torch_device(*reduce_to_device_).is_cpu();
    if (on_host && !uses_fn(batch.op()) && internal::in_host_memory(batch, t)) {
      internal::reduce_range(batch, t, 0, batch.like(t).numel());  // all copies in one pass
      continue;
    }
    std::vector<at::Tensor> components;
    for (size_t r = 0; r < batch.replicas(); ++r) components.push_back(batch.input(r, t));
    const at::Device device =
        reduce_to_device_ ? torch_device(*reduce_to_device_) : components[0].device();
    const at::Tensor reduced = reduce_on(device, batch.op(), components);
    for (size_t r = 0; r < batch.replicas(); ++r) batch.output(r, t).copy_(reduced);
  }
}

at::Tensor ReductionToOneDevice::reduce_on(at::Device device, ReduceOp op,
                                           const std::vector<at::Tensor>& value) {
  std::vector<at::Tensor> components;
  for (const at::Tensor& each : value) components.push_back(each.detach().to(device));
  if (uses_fn(op)) return accumulate(op, components);
  return internal::reduce_components(op, components, arena());
}

at::Tensor ReductionToOneDevice::accumulate(ReduceOp op,
                                            const std::vector<at::Tensor>& components) {
  const at::Tensor& like = components[0];
  const at::ScalarType dtype = like.scalar_type();
  at::Tensor sum = accumulation_fn_(components);
  if (!sum.defined() || sum.sizes() != like.sizes() || !c10::canCast(sum.scalar_type(), dtype)) {
    throw Error(ErrorCode::kInvalidArgument,
                message("ReductionToOneDevice: accumulation_fn returned ", describe(sum), " for ",
                        components.size(), " components of ", describe(like),
                        "; it must return their sum, a tensor of the same shape."));
  }
  sum = sum.detach();
  if (op == ReduceOp::kMean) {
    return divide_sum(sum, static_cast<int64_t>(components.size()), dtype);
  }
  sum = sum.to(dtype);
  // A result that is one of the components would share memory with a replica.
  for (const at::Tensor& each : components) {
    if (each.is_alias_of(sum)) return sum.clone();
  }
  return sum;
}

}  // namespace tutti
