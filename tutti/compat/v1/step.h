// SPDX-License-Identifier: Apache-2.0
//
// The Step classes of tf.distribute: a training loop as an object that is called.
//
//   v1::StandardSingleLossStep step(dataset_fn, loss_fn, optimizer, strategy);
//   step.initialize();
//   for (int i = 0; i < 100; ++i) step();

#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "tutti/compat/tf_v1.h"

namespace tutti::v1 {

/// One or more iterations of training. Not thread-safe.
class Step {
 public:
  explicit Step(Strategy distribution) : distribution_(std::move(distribution)) {}
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  const Strategy& distribution() const { return distribution_; }

  /// Call it before the first step, and to restart the input.
  virtual void initialize() {}

  /// Runs the iterations of this step and returns their outputs.
  virtual MultiStepContext operator()() = 0;

 private:
  Strategy distribution_;
};

/// A step that takes its input from the batches for single replicas of dataset_fn(). Not
/// thread-safe.
template <class T>
class StandardInputStep : public Step {
 public:
  template <class F>
  StandardInputStep(const F& dataset_fn, Strategy distribution)
      : Step(std::move(distribution)),
        iterator_(this->distribution().distribute_datasets_from_function(
            [&](const InputContext&) { return dataset_fn(); })) {}

  void initialize() override { iterator_.initialize(); }

 protected:
  const InputIterator<T>& iterator() const { return iterator_; }

 private:
  InputIterator<T> iterator_;
};

namespace internal {

/// The type of the elements of the dataset that F returns.
template <class F>
using DatasetElement = typename std::decay_t<std::invoke_result_t<const F&>>::value_type;

}  // namespace internal

/// In each iteration every replica computes loss_fn(context, parts of its batch...), or
/// loss_fn(parts...), and updates the model by the sum of the gradients. `optimizer` has
/// zero_grad() and step(), as DistributedOptimizer does, and outlives the step. Not thread-safe.
template <class D, class L, class Optimizer>
class StandardSingleLossStep : public StandardInputStep<internal::DatasetElement<D>> {
 public:
  StandardSingleLossStep(const D& dataset_fn, L loss_fn, Optimizer& optimizer,
                         Strategy distribution, int iterations_per_step = 1)
      : StandardInputStep<internal::DatasetElement<D>>(dataset_fn, std::move(distribution)),
        loss_fn_(std::move(loss_fn)),
        optimizer_(optimizer),
        iterations_(iterations_per_step) {}

  MultiStepContext operator()() override {
    const auto one = [this](const MultiStepContext& context, auto batch) {
      this->distribution().run(
          [&](const auto&... parts) {
            optimizer_.zero_grad();
            if constexpr (std::is_invocable_v<const L&, const MultiStepContext&,
                                              decltype(parts)...>) {
              loss_fn_(context, parts...).backward();
            } else {
              loss_fn_(parts...).backward();
            }
            optimizer_.step();
          },
          batch);
    };
    return this->distribution().extended().run_steps(one, this->iterator(), iterations_);
  }

 private:
  const L loss_fn_;
  Optimizer& optimizer_;  // outlives the step
  const int iterations_;
};

}  // namespace tutti::v1
