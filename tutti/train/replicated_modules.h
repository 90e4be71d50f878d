// SPDX-License-Identifier: Apache-2.0
//
// One module for each replica of this process, without its C++ type, for optimizers and
// checkpoints. Programs use Replicated (replicated.h), the handle that knows the type.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/call_site.h"
#include "tutti/base/function_ref.h"
#include "tutti/strategy/strategy.h"
#include "tutti/train/torch_names.h"
#include "tutti/values/context_frame.h"

namespace tutti {

/// Shared by all handles of one replicated module. Reading is thread-safe; functions that change
/// all copies need cross-replica context, or a thread that is not in any scope.
class ReplicatedModules : private internal::ErrorExplainer {
 public:
  using ModulePtr = std::shared_ptr<torch::nn::Module>;

  /// Checks that the copies have the same parameters and buffers and share no memory, moves each
  /// to its replica's device, and copies the values of the first to all. `who` is the public
  /// function, for messages; `remedy` is a sentence for copies that share memory.
  ReplicatedModules(const char* who, Strategy strategy, std::vector<ModulePtr> copies,
                    const char* remedy);
  ReplicatedModules(const ReplicatedModules&) = delete;
  ReplicatedModules& operator=(const ReplicatedModules&) = delete;
  virtual ~ReplicatedModules() = default;

  const Strategy& strategy() const { return strategy_; }

  /// How many replicas this process has.
  size_t size() const { return copies_.size(); }
  const std::vector<ModulePtr>& copies() const { return copies_; }

  /// The C++ type of the modules, for messages.
  std::string type_name() const;

  /// The local replica of the calling thread, which from here on uses these modules: they explain
  /// its errors. Throws kFailedPrecondition when the thread is not in a run of this strategy.
  size_t current_replica(const char* who, CallSite site) const {
    const internal::ContextFrame* frame = internal::current_frame();
    if (frame != nullptr && frame->services == services_ && frame->replica != nullptr) [[likely]] {
      internal::thread_context.explainer = this;
      return static_cast<size_t>(frame->replica->local_replica_id());
    }
    return replica_outside_of_run(who, site);
  }
  torch::nn::Module& current(const char* who, CallSite site) const {
    return *copies_[current_replica(who, site)];
  }

  /// Names are in the order of registration. A tied weight is listed once, under its first name;
  /// frozen parameters are listed too.
  const std::vector<std::string>& parameter_names() const { return parameter_names_; }

  /// The leaf tensor that the module uses.
  at::Tensor& parameter(size_t local_replica, size_t i) const {
    return parameters_[local_replica][i];
  }

  const std::vector<std::string>& buffer_names() const { return buffer_names_; }
  at::Tensor& buffer(size_t local_replica, size_t i) const { return buffers_[local_replica][i]; }

  /// The position of a name. Throws kNotFound, which lists the names there are.
  size_t parameter_index(std::string_view name) const;
  size_t buffer_index(std::string_view name) const;

  /// Makes buffers equal that differ between replicas: floating-point and complex ones
  /// become their mean over all replicas, by the canonical tree, others take the value of replica
  /// 0. Buffers that are equal keep their bits. Every worker calls it, on one thread.
  void synchronize_buffers() const;

  /// The same in a meeting, after each worker has sent what pack_buffers() adds to `bytes`:
  /// `workers` is what all have sent, in rank order, or empty if no other worker exists. Member m
  /// of the `members` threads that call it together does buffers m, m + members, ...; no replica
  /// may use its buffers meanwhile.
  void pack_buffers(std::vector<std::byte>& bytes) const;
  void synchronize_buffers(std::span<const std::span<const std::byte>> workers, size_t member,
                           size_t members) const;

  /// Copies the values of the first copy's parameters and buffers to all others.
  void copy_from_primary() const;

  /// Calls fn(local replica) for each, on its device.
  void for_each_replica(FunctionRef<void(size_t local_replica)> fn) const;

  void to(at::ScalarType dtype);

  /// How many times to() was called.
  uint64_t conversions() const { return conversions_; }

  /// Claims parameters for an optimizer: each belongs to one at a time. Throws kFailedPrecondition.
  void claim(const std::vector<size_t>& parameters, const void* owner);
  void release(const void* owner);

  /// Throws kFailedPrecondition inside a replica; `instead` is a sentence that says what to do.
  void check_outside_of_replicas(const char* who, const char* instead) const;

 private:
  /// Names the layers that may have thrown an error about too few rows.
  std::string explain(const ReplicaContext& context, const std::string& error) const override;

  size_t replica_outside_of_run(const char* who, CallSite site) const;
  void list_tensors(const char* who);
  void check_no_shared_memory(const char* who, const char* remedy) const;
  void alias_parameters() const;

  Strategy strategy_;
  StrategyServices* services_;
  uint64_t conversions_ = 0;
  std::vector<const void*> owners_;  // of each parameter, or null
  std::vector<ModulePtr> copies_;
  std::vector<std::string> parameter_names_;
  std::vector<std::string> buffer_names_;
  // Handles to the tensors of the modules; they survive to() and load(), which replace the data.
  mutable std::vector<std::vector<at::Tensor>> parameters_;
  mutable std::vector<std::vector<at::Tensor>> buffers_;
};

namespace internal {

using ModulePtr = ReplicatedModules::ModulePtr;

/// Throws kFailedPrecondition inside a replica, or in the scope of another strategy.
void check_can_replicate(const char* who, const Strategy& strategy);

/// make() once for each local replica, on this thread. Every call draws the same numbers from
/// LibTorch's default generator, which is left as after one call.
std::vector<ModulePtr> make_copies(const char* who, const Strategy& strategy,
                                   FunctionRef<ModulePtr()> make);

/// The module itself for replica 0, clones of it for the others.
std::vector<ModulePtr> clone_copies(const Strategy& strategy, const ModulePtr& module);

/// The module itself for replica 0, make() for the others, which take on its flags.
std::vector<ModulePtr> adopt_copies(const Strategy& strategy, const ModulePtr& module,
                                    FunctionRef<ModulePtr()> make);

}  // namespace internal
}  // namespace tutti
