// SPDX-License-Identifier: Apache-2.0
//
// How unmodified operators are intercepted: a dispatch key that LibTorch does not
// use itself gets a kernel for each operator with a `generator` argument, and
// falls through for all others (at no cost). The kernel fills in the replica's
// generator if the caller gave none, and redispatches.

#include "tutti/strategy/replica_random.h"

#include <mutex>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "tutti/base/hash.h"

namespace tutti {
namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Other devices have their own generators, one for each replica's device.
bool draws_on_cpu(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  const size_t first = stack.size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor() && value.toTensor().defined() && !value.toTensor().device().is_cpu()) {
      return false;
    }
    if (value.isDevice() && !value.toDevice().is_cpu()) return false;
  }
  return true;
}

void use_replica_generator(const c10::OperatorHandle& op, c10::DispatchKeySet,
                           torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  ReplicaRandom* const random = internal::thread_context.random;
  if (random != nullptr && draws_on_cpu(schema, *stack)) {
    const auto& arguments = schema.arguments();
    const size_t first = stack->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack)[first + i];
      if (arguments[i].name() == "generator" && value.isNone()) {
        value = random->generator();
      }
    }
  }
  c10::impl::ExcludeDispatchKeyGuard below(kKey);
  op.callBoxed(stack);
}

bool takes_generator(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.name() == "generator") return true;
  }
  return false;
}

// Registers the kernels once, for the life of the process.
void register_kernels() {
  static const bool registered = [] {
    static auto* const fallback =
        new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    fallback->fallback(torch::CppFunction::makeFallthrough());
    static auto* const aten =
        new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto handle = dispatcher.findSchema(name);
      if (!handle || name.name.rfind("aten::", 0) != 0 || !takes_generator(handle->schema())) {
        continue;
      }
      const std::string full =
          name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      aten->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&use_replica_generator>());
    }
    return true;
  }();
  static_cast<void>(registered);
}

}  // namespace

at::Generator current_cpu_generator() {
  ReplicaRandom* const random = internal::thread_context.random;
  return random != nullptr ? random->generator() : at::detail::getDefaultCPUGenerator();
}

uint64_t draw_random_key() {
  at::Generator generator = current_cpu_generator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::get_generator_or_default<at::CPUGeneratorImpl>(generator, generator)->random64();
}

void ReplicaRandom::begin(uint64_t key) {
  key_ = key;
  seeded_ = false;
}

const at::Generator& ReplicaRandom::generator() {
  if (!generator_.defined()) generator_ = at::detail::createCPUGenerator();
  if (!seeded_) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_current_seed(mix_bits(key_ ^ mix_bits(static_cast<uint64_t>(replica_id_))));
    seeded_ = true;
  }
  return generator_;
}

ReplicaRandom::Scope::Scope(ReplicaRandom& random)
    : slot_(&random), was_included_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  register_kernels();
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

ReplicaRandom::Scope::~Scope() { c10::impl::tls_set_dispatch_key_included(kKey, was_included_); }

}  // namespace tutti
