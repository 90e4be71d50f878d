// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/replicated_modules.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/SmallVector.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include "tutti/base/error.h"
#include "tutti/base/hash.h"
#include "tutti/base/joined.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/device/device_scope.h"
#include "tutti/train/internal/few_rows.h"

namespace tutti {
namespace {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

std::string shape_of(const at::Tensor& tensor) {
  return message(tensor.scalar_type(), tensor.sizes());
}

// Each tensor once, under its first name.
void list_once(const NamedTensors& tensors, std::vector<std::string>& names,
               std::vector<at::Tensor>& list) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& each : tensors) {
    if (!seen.insert(each.value().unsafeGetTensorImpl()).second) continue;
    names.push_back(each.key());
    list.push_back(each.value());
  }
}

// What is compared between copies: each name, its tensor, and the first name of that tensor.
std::vector<std::string> outline(const NamedTensors& tensors) {
  std::map<const c10::TensorImpl*, std::string> first;
  std::vector<std::string> lines;
  for (const auto& each : tensors) {
    const auto [at, is_new] = first.emplace(each.value().unsafeGetTensorImpl(), each.key());
    lines.push_back(message("'", each.key(), "' ", shape_of(each.value()),
                            is_new ? "" : " tied to '" + at->second + "'"));
  }
  return lines;
}

void check_same_outline(const char* who, const char* kind, size_t replica,
                        const NamedTensors& first, const NamedTensors& other) {
  const std::vector<std::string> expected = outline(first);
  const std::vector<std::string> found = outline(other);
  if (expected == found) return;
  size_t i = 0;
  while (i < expected.size() && i < found.size() && expected[i] == found[i]) ++i;
  const auto line = [i](const std::vector<std::string>& lines) {
    return i < lines.size() ? lines[i] : std::string("missing");
  };
  throw Error(ErrorCode::kInvalidArgument,
              message(who, ": the modules of replicas 0 and ", replica, " differ: ", kind, " ", i,
                      " is ", line(expected), " on replica 0 and ", line(found), " on replica ",
                      replica, ". All copies must be constructed in the same way."));
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.numel() > 0 ? tensor.storage().data() : nullptr;
}

void copy_flags(const torch::nn::Module& from, torch::nn::Module& to) {
  const auto targets = to.named_modules();
  // Parents come before their children, and train() reaches the children.
  for (const auto& each : from.named_modules()) {
    const auto* const target = targets.find(each.key());
    if (target != nullptr && (*target)->is_training() != each.value()->is_training()) {
      (*target)->train(each.value()->is_training());
    }
  }
}

size_t index_of(const std::vector<std::string>& names, std::string_view name, const char* what,
                const std::string& type) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  throw Error(ErrorCode::kNotFound,
              message("Replicated: ", type, " has no ", what, " '", name,
                      "'. It has: ", names.empty() ? "none" : joined(names), "."));
}

}  // namespace

ReplicatedModules::ReplicatedModules(const char* who, Strategy strategy,
                                     std::vector<ModulePtr> copies, const char* remedy)
    : strategy_(std::move(strategy)), services_(&strategy_.extended()), copies_(std::move(copies)) {
  list_tensors(who);
  check_no_shared_memory(who, remedy);
  const at::NoGradGuard no_grad;
  for_each_replica([&](size_t r) {
    const c10::Device device = torch_device(strategy_.extended().worker_devices()[r]);
    if (!device.is_cpu()) copies_[r]->to(device);
    if (r > 0) copy_flags(*copies_[0], *copies_[r]);
    for (size_t i = 0; r > 0 && i < parameter_names_.size(); ++i) {
      parameter(r, i).set_requires_grad(parameter(0, i).requires_grad());
    }
  });
  copy_from_primary();
  alias_parameters();
}

void ReplicatedModules::list_tensors(const char* who) {
  const NamedTensors parameters = copies_[0]->named_parameters();
  const NamedTensors buffers = copies_[0]->named_buffers();
  parameters_.resize(size());
  buffers_.resize(size());
  list_once(parameters, parameter_names_, parameters_[0]);
  list_once(buffers, buffer_names_, buffers_[0]);
  for (size_t r = 1; r < size(); ++r) {
    const NamedTensors others = copies_[r]->named_parameters();
    const NamedTensors other_buffers = copies_[r]->named_buffers();
    check_same_outline(who, "parameter", r, parameters, others);
    check_same_outline(who, "buffer", r, buffers, other_buffers);
    std::vector<std::string> names;  // equal to those of the first, by the check
    list_once(others, names, parameters_[r]);
    list_once(other_buffers, names, buffers_[r]);
  }
}

void ReplicatedModules::check_no_shared_memory(const char* who, const char* remedy) const {
  std::map<const void*, size_t> owner;
  for (size_t r = 0; size() > 1 && r < size(); ++r) {
    const auto check = [&](const char* kind, const std::string& name, const at::Tensor& tensor) {
      const void* memory = memory_of(tensor);
      if (memory == nullptr) return;
      const auto [at, is_new] = owner.emplace(memory, r);
      if (is_new || at->second == r) return;
      throw Error(ErrorCode::kInvalidArgument,
                  message(who, ": the modules of replicas ", at->second, " and ", r,
                          copies_[at->second] == copies_[r] ? " are the same object; they" : "",
                          " share the memory of ", kind, " '", name, "'. ", remedy));
    };
    for (size_t i = 0; i < parameter_names_.size(); ++i) {
      check("parameter", parameter_names_[i], parameter(r, i));
    }
    for (size_t i = 0; i < buffer_names_.size(); ++i) {
      check("buffer", buffer_names_[i], buffer(r, i));
    }
  }
}

void ReplicatedModules::copy_from_primary() const {
  const at::NoGradGuard no_grad;
  StrategyExtended& extended = strategy_.extended();
  for (size_t i = 0; i < parameter_names_.size(); ++i) {
    extended.workers().broadcast(parameter(0, i), parameter_names_[i]);
  }
  for (size_t i = 0; i < buffer_names_.size(); ++i) {
    extended.workers().broadcast(buffer(0, i), buffer_names_[i]);
  }
  for (size_t r = 1; r < size(); ++r) {
    for (size_t i = 0; i < parameter_names_.size(); ++i) {
      if (memory_of(parameter(r, i)) != memory_of(parameter(0, i))) {
        parameter(r, i).copy_(parameter(0, i));
      }
    }
    for (size_t i = 0; i < buffer_names_.size(); ++i) buffer(r, i).copy_(buffer(0, i));
  }
}

void ReplicatedModules::alias_parameters() const {
  if (!strategy_.extended().shares_parameters()) return;
  for (size_t r = 1; r < size(); ++r) {
    for (size_t i = 0; i < parameter_names_.size(); ++i) {
      parameter(r, i).set_data(parameter(0, i).data());
    }
  }
}

std::string ReplicatedModules::type_name() const {
  const torch::nn::Module& module = *copies_[0];
  return c10::demangle(typeid(module).name());
}

size_t ReplicatedModules::parameter_index(std::string_view name) const {
  return index_of(parameter_names_, name, "parameter", type_name());
}

size_t ReplicatedModules::buffer_index(std::string_view name) const {
  return index_of(buffer_names_, name, "buffer", type_name());
}

void ReplicatedModules::for_each_replica(FunctionRef<void(size_t)> fn) const {
  for (size_t r = 0; r < size(); ++r) {
    const DeviceScope device(strategy_.extended().worker_devices()[r]);
    fn(r);
  }
}

void ReplicatedModules::to(at::ScalarType dtype) {
  ++conversions_;
  for_each_replica([&](size_t r) { copies_[r]->to(dtype); });
  alias_parameters();
}

void ReplicatedModules::claim(const std::vector<size_t>& parameters, const void* owner) {
  owners_.resize(parameter_names_.size());
  for (const size_t i : parameters) {
    if (owners_[i] == nullptr) continue;
    throw Error(ErrorCode::kFailedPrecondition,
                message("DistributedOptimizer: the parameter '", parameter_names_[i],
                        "' belongs to another optimizer, and two would each add the gradients of "
                        "all replicas. Destroy the first optimizer, or give the two different "
                        "parameters."));
  }
  for (const size_t i : parameters) owners_[i] = owner;
}

void ReplicatedModules::release(const void* owner) {
  std::replace(owners_.begin(), owners_.end(), owner, static_cast<const void*>(nullptr));
}

// ---- buffers ---------------------------------------------------------------

namespace {

bool all_on_host(std::span<const at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& each) {
    return each.device().is_cpu() && each.layout() == at::kStrided && each.is_contiguous();
  });
}

// A module may resize its buffers to the rows it receives.
bool same_form(std::span<const at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& each) {
    return each.defined() && each.sizes() == tensors[0].sizes() &&
           each.scalar_type() == tensors[0].scalar_type();
  });
}

bool all_equal(std::span<const at::Tensor> tensors, bool on_host) {
  return std::all_of(tensors.begin() + 1, tensors.end(), [&](const at::Tensor& each) {
    return on_host ? std::memcmp(each.data_ptr(), tensors[0].data_ptr(), each.nbytes()) == 0
                   : at::equal(each.to(tensors[0].device()), tensors[0]);
  });
}

void take_mean(std::span<at::Tensor> tensors, bool on_host) {
  const at::Tensor& first = tensors[0];
  if (!on_host) {
    const at::Tensor mean = reduce_tree(ReduceOp::kMean, tensors);
    for (at::Tensor& each : tensors) each.copy_(mean);
    return;
  }
  c10::SmallVector<void*, 8> memory;
  for (const at::Tensor& each : tensors) memory.push_back(each.data_ptr());
  reduce_tree(ReduceOp::kMean, first.scalar_type(), {memory.data(), memory.size()},
              {memory.data(), memory.size()}, 0, first.numel());
}

void bring_into_agreement(std::vector<at::Tensor>& tensors) {
  if (!same_form(tensors) || tensors[0].numel() == 0) return;
  const bool on_host = all_on_host(tensors);
  // Equal values are left alone: the mean of seven equal numbers may differ from them.
  if (all_equal(tensors, on_host)) return;
  if (tensors[0].is_floating_point() || tensors[0].is_complex()) {
    take_mean(tensors, on_host);
  } else {
    for (size_t r = 1; r < tensors.size(); ++r) tensors[r].copy_(tensors[0]);
  }
}

}  // namespace

namespace {

// Precedes the bytes of a packed buffer.
struct PackedHead {
  uint64_t bytes = 0;
  uint64_t form = 0;  // the same for the same shape and dtype

  explicit PackedHead(const at::Tensor& tensor) : bytes(tensor.nbytes()) {
    form = static_cast<uint64_t>(tensor.scalar_type());
    for (const int64_t size : tensor.sizes()) {
      form = multiplied(form, static_cast<uint64_t>(size)) + 1;
    }
  }
  PackedHead() = default;
  bool operator==(const PackedHead&) const = default;
};

// A buffer of another worker.
struct Packed {
  PackedHead head;
  std::span<const std::byte> bytes;  // fewer than the head says if the message is too short
};

std::vector<Packed> unpack(std::span<const std::byte> rest, size_t count) {
  std::vector<Packed> all(count);
  for (Packed& each : all) {
    if (rest.size() >= sizeof each.head) std::memcpy(&each.head, rest.data(), sizeof each.head);
    rest = rest.subspan(std::min(rest.size(), sizeof each.head));
    each.bytes = rest.first(std::min<size_t>(rest.size(), each.head.bytes));
    rest = rest.subspan(each.bytes.size());
  }
  return all;
}

// Undefined if it has another shape or dtype: a module may have resized it to the rows it received.
at::Tensor copy_of(const Packed& packed, const at::Tensor& like) {
  if (packed.head != PackedHead(like) || packed.bytes.size() != packed.head.bytes) return {};
  const at::Tensor values = at::empty(like.sizes(), like.options().device(at::kCPU));
  if (!packed.bytes.empty()) {
    std::memcpy(values.data_ptr(), packed.bytes.data(), packed.bytes.size());
  }
  return values.to(like.device());
}

}  // namespace

void ReplicatedModules::pack_buffers(std::vector<std::byte>& bytes) const {
  for (size_t r = 0; r < size(); ++r) {
    for (size_t i = 0; i < buffer_names_.size(); ++i) {
      const at::Tensor values = buffer(r, i).detach().to(at::kCPU).contiguous();
      const PackedHead head(values);
      const auto* const first = reinterpret_cast<const std::byte*>(&head);
      const auto* const data = static_cast<const std::byte*>(values.data_ptr());
      bytes.insert(bytes.end(), first, first + sizeof head);
      bytes.insert(bytes.end(), data, data + head.bytes);
    }
  }
}

void ReplicatedModules::synchronize_buffers() const {
  if (buffer_names_.empty()) return;
  WorkerGroup& group = strategy_.extended().workers();
  if (group.is_alone()) return synchronize_buffers({}, 0, 1);  // nothing to pack
  std::vector<std::byte> mine;
  pack_buffers(mine);
  const std::vector<at::Tensor> all =
      group.gather(at::from_blob(mine.data(), {static_cast<int64_t>(mine.size())}, at::kByte),
                   "buffers of the modules");
  std::vector<std::span<const std::byte>> workers;
  for (const at::Tensor& each : all) {
    workers.emplace_back(static_cast<const std::byte*>(each.data_ptr()), each.nbytes());
  }
  synchronize_buffers(workers, 0, 1);
}

// All replicas of all workers are examined together, so that the same rule applies to all.
void ReplicatedModules::synchronize_buffers(std::span<const std::span<const std::byte>> workers,
                                            size_t member, size_t members) const {
  const size_t num_workers = std::max<size_t>(workers.size(), 1);
  if (num_workers * size() == 1) return;
  const at::NoGradGuard no_grad;
  const auto own = static_cast<size_t>(strategy_.extended().workers().rank());
  std::vector<std::vector<Packed>> packed;
  for (const std::span<const std::byte> bytes : workers) {
    packed.push_back(unpack(bytes, size() * buffer_names_.size()));
  }
  std::vector<at::Tensor> tensors;
  for (size_t i = member; i < buffer_names_.size(); i += members) {
    tensors.clear();
    for (size_t w = 0; w < num_workers; ++w) {
      for (size_t r = 0; r < size(); ++r) {
        const at::Tensor& like = buffer(w == own ? r : 0, i);
        tensors.push_back(w == own ? like : copy_of(packed[w][r * buffer_names_.size() + i], like));
      }
    }
    bring_into_agreement(tensors);
  }
}

std::string ReplicatedModules::explain(const ReplicaContext& context,
                                       const std::string& error) const {
  const auto replica = static_cast<size_t>(context.local_replica_id());
  return internal::explain_few_rows(*copies_[replica], context.replica_id_in_sync_group(), error);
}

// ---- where a call is allowed -----------------------------------------------

size_t ReplicatedModules::replica_outside_of_run(const char* who, CallSite site) const {
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame == nullptr && services_->is_ambient()) return 0;
  const std::string where = frame == nullptr ? std::string("outside of Strategy::run")
                            : frame->replica == nullptr
                                ? std::string("in cross-replica context")
                                : message("in replica ", frame->replica->replica_id_in_sync_group(),
                                          " of ", frame->services->describe());
  const std::string at = site.line > 0 ? message(" at ", site) : std::string();
  throw Error(ErrorCode::kFailedPrecondition,
              message(who, ": ", type_name(), " has a copy for each replica of ",
                      services_->describe(), ", but the call", at, " is ", where,
                      frame != nullptr && frame->services != services_ &&
                              frame->services->describe() == services_->describe()
                          ? " (another object)"
                          : "",
                      ". Use it inside run() of its own strategy; elsewhere primary() reads the "
                      "copy of replica 0, and for_each(), train() and eval() reach all copies."));
}

void ReplicatedModules::check_outside_of_replicas(const char* who, const char* instead) const {
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame == nullptr || frame->replica == nullptr) return;
  throw Error(ErrorCode::kFailedPrecondition,
              message(who, ": called inside replica ", frame->replica->replica_id_in_sync_group(),
                      " of ", frame->services->describe(),
                      ", while other replicas may use the copies of ", type_name(), ". ", instead));
}

}  // namespace tutti
