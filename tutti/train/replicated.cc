// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/replicated.h"

#include <mutex>
#include <string>
#include <typeinfo>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include "tutti/base/error.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/replica_random.h"
#include "tutti/train/internal/tied_weights.h"

namespace tutti::internal {
namespace {

// The state of LibTorch's default generator, on the CPU: modules draw their initial values there,
// whatever device they are moved to afterwards.
class DefaultGenerator {
 public:
  DefaultGenerator() : generator_(current_cpu_generator()) {}

  at::Tensor state() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    return generator_.get_state();
  }
  void set_state(const at::Tensor& state) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state);
  }

 private:
  at::Generator generator_;
};

// Restores the generator's state in its destructor.
class KeepRandomNumbers {
 public:
  KeepRandomNumbers() : state_(generator_.state()) {}
  ~KeepRandomNumbers() { generator_.set_state(state_); }
  KeepRandomNumbers(const KeepRandomNumbers&) = delete;
  KeepRandomNumbers& operator=(const KeepRandomNumbers&) = delete;

 private:
  DefaultGenerator generator_;
  at::Tensor state_;
};

size_t count(const Strategy& strategy) {
  return static_cast<size_t>(strategy.extended().num_local_replicas());
}

std::string type_of(const torch::nn::Module& module) {
  return c10::demangle(typeid(module).name());
}

ModulePtr checked(const char* who, ModulePtr module) {
  if (module != nullptr) return module;
  throw Error(ErrorCode::kInvalidArgument,
              message(who,
                      ": the module is empty. A holder initialised with nullptr has no "
                      "module yet; make one first."));
}

[[noreturn]] void refuse_to_clone(const torch::nn::Module& module, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              message("adopt: LibTorch cannot clone ", type_of(module), ": ", why,
                      " Give adopt() a factory as the third argument: adopt(strategy, module, [] { "
                      "return Net(...); })."));
}

ModulePtr clone(const torch::nn::Module& module) {
  ModulePtr copy;
  try {
    copy = module.clone();
  } catch (const c10::Error& error) {
    refuse_to_clone(module, error.what_without_backtrace());
  }
  // A class that inherits clone() from its base is cloned into that base.
  const auto copies = copy->named_modules();
  for (const auto& each : module.named_modules()) {
    const ModulePtr* const same = copies.find(each.key());
    if (same != nullptr && type_of(**same) == type_of(*each.value())) continue;
    refuse_to_clone(module, message("clone() makes '", each.key(), "', a ", type_of(*each.value()),
                                    ", into ", same == nullptr ? "nothing" : type_of(**same), "."));
  }
  return copy;
}

}  // namespace

void check_can_replicate(const char* who, const Strategy& strategy) {
  const ContextFrame* innermost = current_frame();
  for (const ContextFrame* frame = innermost; frame != nullptr; frame = frame->previous) {
    if (frame->replica == nullptr) continue;
    throw Error(ErrorCode::kFailedPrecondition,
                message(who, ": called inside run() of ", frame->services->describe(),
                        ". Modules are made once for all replicas: call it before run()."));
  }
  if (innermost == nullptr || innermost->services == &strategy.extended()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              message(who, ": mixing different strategies: the module is for ",
                      strategy.extended().describe(), ", but the call is in the scope of ",
                      innermost->services->describe(), ". Leave that scope first."));
}

std::vector<ModulePtr> make_copies(const char* who, const Strategy& strategy,
                                   FunctionRef<ModulePtr()> make) {
  check_can_replicate(who, strategy);
  std::vector<ModulePtr> copies;
  if (count(strategy) == 1) {
    copies.push_back(checked(who, make()));
    return copies;
  }
  DefaultGenerator generator;
  const at::Tensor before = generator.state();
  copies.push_back(checked(who, make()));
  const KeepRandomNumbers after_one;
  while (copies.size() < count(strategy)) {
    generator.set_state(before);  // so that unregistered values are equal too
    copies.push_back(checked(who, make()));
  }
  return copies;
}

std::vector<ModulePtr> clone_copies(const Strategy& strategy, const ModulePtr& module) {
  check_can_replicate("adopt", strategy);
  std::vector<ModulePtr> copies = {checked("adopt", module)};
  if (count(strategy) == 1) return copies;
  const KeepRandomNumbers keep;  // clone() draws random initial values and overwrites them
  while (copies.size() < count(strategy)) {
    copies.push_back(clone(*module));
    tie_as(*module, *copies.back());
  }
  return copies;
}

std::vector<ModulePtr> adopt_copies(const Strategy& strategy, const ModulePtr& module,
                                    FunctionRef<ModulePtr()> make) {
  check_can_replicate("adopt", strategy);
  std::vector<ModulePtr> copies = {checked("adopt", module)};
  if (count(strategy) == 1) return copies;
  const KeepRandomNumbers keep;
  while (copies.size() < count(strategy)) copies.push_back(checked("adopt", make()));
  return copies;
}

}  // namespace tutti::internal
