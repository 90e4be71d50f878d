// SPDX-License-Identifier: Apache-2.0
//
// The models that benchmarks train, with initial values and batches that are the same in Python
// (training_ddp.py) and in C++, and a loop that trains one with a strategy.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "tutti/train/optimizer/distributed_optimizer.h"
#include "tutti/train/replicated.h"
#include "tutti/tutti.h"

namespace bench {

/// The learning rate of SGD, in all trainings.
inline constexpr double kLearningRate = 0.01;

using Batch = std::tuple<at::Tensor, at::Tensor>;

/// Returns values from -1 to 1, the same in Python and in C++.
at::Tensor numbers(int64_t count, int seed);

struct Net : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;

  void fill();
};

struct Model {
  std::string name;
  std::function<std::shared_ptr<Net>()> make;
  std::vector<int64_t> shape;  ///< of a replica's batch
  int64_t classes = 10;
  double limit_target = 0;   ///< fraction of the two silent threads' speed
  double python_target = 0;  ///< step time relative to that of Python

  std::shared_ptr<Net> make_filled() const;
  Batch batch(int replica) const;
};

/// Makes a net of linear layers with relu between them.
std::function<std::shared_ptr<Net>()> layers(const std::vector<int64_t>& sizes);

/// Returns `one`, `mlp`, `cnn`, `big` and `many`; small versions for a smoke run.
std::vector<Model> models(bool smoke);

/// Trains a model with a strategy, as a user's program does. For one thread.
class Trainer {
 public:
  /// When gradients are summed over the replicas.
  enum class Sums {
    kDuringBackward,
    kAfterBackward,
    kNever,  ///< Nothing is summed or updated: the computation alone.
  };

  /// `first_replica` is the global index of the strategy's first replica in this process; each
  /// trains on the batch with its index.
  Trainer(tutti::Strategy strategy, const Model& model, int first_replica = 0);

  /// The sum of the losses of this process's replicas.
  double step(Sums sums = Sums::kDuringBackward);

 private:
  tutti::Strategy strategy_;
  tutti::Replicated<Net> net_;
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer_;
  tutti::PerReplica<Batch> batches_;
};

struct Losses {
  double first = 0;
  double last = 0;
};

inline constexpr int kCheckedSteps = 10;

/// Returns the losses of the first and the last of some steps.
template <class Loop>
Losses losses_of(Loop&& loop, int64_t steps = kCheckedSteps) {
  Losses losses;
  losses.first = loop.step();
  for (int64_t i = 1; i < steps; ++i) losses.last = loop.step();
  return losses;
}

/// The number of steps before the clock starts: the previous variant has emptied the caches.
inline int64_t warm_up_steps(int64_t iterations) { return 1 + iterations / 10; }

}  // namespace bench
