// SPDX-License-Identifier: Apache-2.0
//
// A borrowed callable: two pointers, no allocation. Use it for parameters that
// are only called before the function that takes them returns.

#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace tutti {

template <class Signature>
class FunctionRef;

/// Refers to a callable that outlives the reference. Immutable; it may be called concurrently if
/// the callable may.
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  FunctionRef() = default;

  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> &&
             !std::is_function_v<std::remove_reference_t<F>> &&
             std::is_invocable_r_v<R, F&, Args...>)
  FunctionRef(F&& f)  // NOLINT(google-explicit-constructor): a parameter type, meant to convert.
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  FunctionRef(R (&f)(Args...))  // NOLINT(google-explicit-constructor)
      : object_(reinterpret_cast<void*>(&f)), call_([](void* object, Args... args) -> R {
          return reinterpret_cast<R (*)(Args...)>(object)(std::forward<Args>(args)...);
        }) {}

  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  void* object_ = nullptr;
  R (*call_)(void*, Args...) = nullptr;
};

}  // namespace tutti
