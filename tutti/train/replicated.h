// SPDX-License-Identifier: Apache-2.0
//
// Modules on many replicas: replicate<Net>(strategy, args...) makes one copy of a module for each
// replica, adopt(strategy, module) does so for an existing one. Inside Strategy::run `model->` is
// the copy of the calling replica. Any torch::nn::Module works.
//
// Copies are equal at first. Parameters stay equal as long as an optimizer of this library, or
// equal gradients, update them. Buffers (the statistics of BatchNorm) diverge within a step; after
// each optimizer step, and by synchronize_buffers(), floating-point buffers become their mean over
// all replicas and others take the value of replica 0.

#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/base/function_ref.h"
#include "tutti/strategy/strategy.h"
#include "tutti/train/replicated_modules.h"
#include "tutti/train/torch_names.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"

namespace tutti {

template <class M>
class Replicated;

namespace internal {

template <class M>
struct module_impl {
  using type = M;
};
template <class M>
  requires requires { typename M::ContainedType; }
struct module_impl<M> {
  using type = typename M::ContainedType;
};
template <class M>
struct module_impl<std::shared_ptr<M>> {
  using type = M;
};

template <class M>
concept ModuleType = std::derived_from<typename module_impl<M>::type, torch::nn::Module>;

template <class Impl>
std::shared_ptr<Impl> module_ptr(const std::shared_ptr<Impl>& module) {
  return module;
}
template <class Impl>
std::shared_ptr<Impl> module_ptr(const torch::nn::ModuleHolder<Impl>& holder) {
  return holder.is_empty() ? nullptr : holder.ptr();
}

// The copies with their type: a cast from torch::nn::Module, a virtual base, would be slow.
// Thread-safe as ReplicatedModules is.
template <class Impl>
class TypedModules final : public ReplicatedModules {
 public:
  template <class... A>
  explicit TypedModules(A&&... args) : ReplicatedModules(std::forward<A>(args)...) {
    for (const ModulePtr& copy : copies()) typed_.push_back(&dynamic_cast<Impl&>(*copy));
  }
  Impl* const* typed() const { return typed_.data(); }

 private:
  std::vector<Impl*> typed_;
};

// The last step of every function that makes a Replicated<M>.
template <class M>
Replicated<M> replicated(const char* who, const Strategy& strategy, std::vector<ModulePtr> copies,
                         const char* remedy) {
  using Impl = typename module_impl<M>::type;
  return Replicated<M>(
      std::make_shared<TypedModules<Impl>>(who, strategy, std::move(copies), remedy));
}

}  // namespace internal

/// A handle, cheap to copy; all copies refer to the same modules. `M` is a module class (NetImpl)
/// or its holder (Net). Thread-safe as far as the modules are: each replica uses its own copy.
template <class M>
class Replicated {
 public:
  using Impl = typename internal::module_impl<M>::type;

  explicit Replicated(const std::shared_ptr<internal::TypedModules<Impl>>& modules)
      : modules_(modules), typed_(modules->typed()) {}

  /// Replicated<Net> and Replicated<NetImpl> convert to each other: they hold the same modules.
  template <class Other>
    requires(!std::same_as<Other, M> && std::same_as<typename Replicated<Other>::Impl, Impl>)
  Replicated(const Replicated<Other>& other)  // NOLINT(google-explicit-constructor)
      : modules_(other.modules_), typed_(other.typed_) {}

  /// The copy of the calling replica. Throws kFailedPrecondition outside of a run of the module's
  /// strategy.
  Impl* operator->() const { return typed_[current("Replicated::operator->")]; }
  Impl& operator*() const { return *typed_[current("Replicated::operator*")]; }

  /// Calls forward() of the calling replica's copy.
  template <class... A>
  decltype(auto) operator()(A&&... args) const {
    return typed_[current("Replicated::operator()")]->forward(std::forward<A>(args)...);
  }

  /// The copy of replica 0, for reading between runs. Changes to it reach the others by
  /// copy_from_primary(). Throws kFailedPrecondition inside a replica.
  Impl& primary() const {
    modules_->check_outside_of_replicas("Replicated::primary", "Use the model's -> there.");
    return *typed_[0];
  }
  std::shared_ptr<Impl> primary_ptr() const {
    return std::shared_ptr<Impl>(modules_->copies()[0], &primary());
  }

  /// Copies all parameters and buffers of the primary to the other copies.
  void copy_from_primary() const {
    modules_->check_outside_of_replicas("Replicated::copy_from_primary", "Call it between runs.");
    modules_->copy_from_primary();
  }

  /// Calls fn(copy) or fn(copy, local replica) for every copy in turn, on its device. What fn
  /// changes must be the same for all copies.
  template <class F>
  void for_each(const F& fn) const {
    static_assert(std::invocable<const F&, Impl&> || std::invocable<const F&, Impl&, int>,
                  "Replicated::for_each: the function must accept (Module&) or (Module&, int)");
    const auto call = [&](size_t replica) {
      if constexpr (std::invocable<const F&, Impl&, int>) {
        fn(*typed_[replica], static_cast<int>(replica));
      } else {
        fn(*typed_[replica]);
      }
    };
    modules_->check_outside_of_replicas("Replicated::for_each", "Use the model's -> there.");
    modules_->for_each_replica(call);
  }

  /// Sets the training mode of all copies. Throws kFailedPrecondition inside a replica.
  void train(bool on = true) const {
    modules_->check_outside_of_replicas("Replicated::train",
                                        "Call it between runs: it is for all copies.");
    modules_->for_each_replica([&](size_t replica) { typed_[replica]->train(on); });
  }
  void eval() const { train(false); }
  bool is_training() const { return typed_[0]->is_training(); }

  /// Converts parameters and buffers of all copies to another floating-point type. Throws
  /// kFailedPrecondition inside a replica.
  void to(at::ScalarType dtype) const {
    modules_->check_outside_of_replicas("Replicated::to",
                                        "Call it between runs: it is for all copies.");
    modules_->to(dtype);
  }

  /// The parameter of every copy; value() of the result is the calling replica's. The result
  /// shares the memory of the modules. Throws kNotFound.
  Mirrored<at::Tensor> parameter(std::string_view name) const {
    const size_t i = modules_->parameter_index(name);
    return Mirrored<at::Tensor>(
        collect([&](size_t r) -> const at::Tensor& { return modules_->parameter(r, i); }));
  }
  std::vector<std::pair<std::string, Mirrored<at::Tensor>>> named_parameters() const {
    std::vector<std::pair<std::string, Mirrored<at::Tensor>>> all;
    for (const std::string& name : modules_->parameter_names()) {
      all.emplace_back(name, parameter(name));
    }
    return all;
  }

  /// The buffer of every copy; within a step they differ. Throws kNotFound.
  PerReplica<at::Tensor> buffer(std::string_view name) const {
    const size_t i = modules_->buffer_index(name);
    return PerReplica<at::Tensor>(
        collect([&](size_t r) -> const at::Tensor& { return modules_->buffer(r, i); }));
  }

  /// Makes the buffers of all copies equal, see above. An optimizer of this library does so at each
  /// step. Throws kFailedPrecondition inside a replica.
  void synchronize_buffers() const {
    modules_->check_outside_of_replicas("Replicated::synchronize_buffers", "Call it between runs.");
    modules_->synchronize_buffers();
  }

  const Strategy& strategy() const { return modules_->strategy(); }

  /// The copies without their type, for optimizers and files.
  const std::shared_ptr<ReplicatedModules>& modules() const { return modules_; }

 private:
  template <class Other>
  friend class Replicated;

  size_t current(const char* who) const { return modules_->current_replica(who, CallSite{}); }

  template <class Get>
  std::vector<at::Tensor> collect(const Get& get) const {
    std::vector<at::Tensor> tensors;
    for (size_t r = 0; r < modules_->size(); ++r) tensors.push_back(get(r));
    return tensors;
  }

  std::shared_ptr<ReplicatedModules> modules_;
  Impl* const* typed_;
};

/// A module for each replica, made by M's constructor from the same arguments. The constructor is
/// called once for each local replica, on this thread; LibTorch's random numbers continue as after
/// one call. M need not be Cloneable. Throws kFailedPrecondition inside a replica.
template <internal::ModuleType M, class... A>
Replicated<M> replicate(const Strategy& strategy, const A&... args) {
  using Impl = typename internal::module_impl<M>::type;
  constexpr bool kFits = std::constructible_from<Impl, const A&...>;
  static_assert(kFits, "replicate: the module has no constructor for these arguments");
  if constexpr (kFits) {
    const auto make = [&]() -> internal::ModulePtr { return std::make_shared<Impl>(args...); };
    return internal::replicated<M>(
        "replicate", strategy, internal::make_copies("replicate", strategy, make),
        "An argument of replicate() holds a tensor or module, or the constructor keeps one in a "
        "static variable: make it inside the constructor, or give replicate() a factory that "
        "makes everything from scratch.");
  }
}

/// The same with a factory: factory() returns a new module, as a shared_ptr or a holder. The copies
/// must share no parameters and no buffers.
template <class F>
  requires(std::invocable<const F&> && !internal::ModuleType<F>)
auto replicate(const Strategy& strategy, const F& factory) {
  using M = std::decay_t<std::invoke_result_t<const F&>>;
  static_assert(internal::ModuleType<M>,
                "replicate: the factory must return a module, as a shared_ptr or a ModuleHolder");
  if constexpr (internal::ModuleType<M>) {
    const auto make = [&]() -> internal::ModulePtr { return internal::module_ptr(factory()); };
    return internal::replicated<typename internal::module_impl<M>::type>(
        "replicate", strategy, internal::make_copies("replicate", strategy, make),
        "The factory must make a new module with new tensors each time it is called; look for a "
        "captured module, a captured tensor or a static variable.");
  }
}

/// Makes an existing module (a shared_ptr or a holder) the copy of replica 0, and clones it for the
/// others, with its tied weights, frozen parameters and training mode. No random numbers are drawn.
/// Throws kInvalidArgument when LibTorch cannot clone the module.
template <class Module>
auto adopt(const Strategy& strategy, const Module& module) {
  static_assert(internal::ModuleType<Module>,
                "adopt: the module must be a shared_ptr to a module or a ModuleHolder");
  if constexpr (internal::ModuleType<Module>) {
    return internal::replicated<typename internal::module_impl<Module>::type>(
        "adopt", strategy, internal::clone_copies(strategy, internal::module_ptr(module)),
        "clone() of the module does not copy it. Register it in reset(), or give adopt() a "
        "factory as the third argument.");
  }
}

/// The same for modules that cannot be cloned: factory() makes the copies of the other replicas,
/// which take on the values and flags of `module`.
template <class Module, std::invocable F>
auto adopt(const Strategy& strategy, const Module& module, const F& factory) {
  using Made = typename internal::module_impl<std::decay_t<std::invoke_result_t<const F&>>>::type;
  constexpr bool kFits = internal::ModuleType<Module> &&
                         std::derived_from<Made, typename internal::module_impl<Module>::type>;
  static_assert(kFits,
                "adopt: the module must be a shared_ptr to a module or a ModuleHolder, and the "
                "factory must return such modules of the same type");
  if constexpr (kFits) {
    const auto make = [&]() -> internal::ModulePtr { return internal::module_ptr(factory()); };
    return internal::replicated<typename internal::module_impl<Module>::type>(
        "adopt", strategy, internal::adopt_copies(strategy, internal::module_ptr(module), make),
        "The factory must make a new module with new tensors each time it is called; it must not "
        "return or use the module that is adopted.");
  }
}

}  // namespace tutti
