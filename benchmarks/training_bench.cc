// SPDX-License-Identifier: Apache-2.0
//
// Training steps on two replicas against two threads that never communicate (the limit), Python's
// DistributedDataParallel (if it is installed) and one plain LibTorch loop; one replica against the
// plain loop; the fused Adam against torch::optim. --instructions runs steps for a program that
// counts instructions, see count_instructions.sh.

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tutti/train/optimizer/distributed_optimizer.h"
#include "tutti/train/replicated.h"
#include "tutti/tutti.h"

#include "benchmarks/support/barriers.h"
#include "benchmarks/support/harness.h"
#include "benchmarks/support/models.h"
#include "benchmarks/support/python_peer.h"

namespace {

using bench::Batch;
using bench::Harness;
using bench::kCheckedSteps;
using bench::Losses;
using bench::losses_of;
using bench::Model;
using bench::models;
using bench::Net;
using bench::numbers;
using bench::Variant;
using bench::warm_up_steps;

constexpr int kReplicas = 2;

// ---- a plain LibTorch loop

class Plain {
 public:
  Plain(const Model& model, Batch batch)
      : net_(model.make_filled()),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(bench::kLearningRate)),
        batch_(std::move(batch)) {}

  double step() {
    const auto& [x, y] = batch_;
    const at::Tensor loss = torch::nn::functional::cross_entropy(net_->forward(x), y);
    zero_grad();
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }
  int64_t num_parameters() const {
    int64_t sum = 0;
    for (const at::Tensor& parameter : net_->parameters()) sum += parameter.numel();
    return sum;
  }

 private:
  // LibTorch 2's zero_grad(): faster than filling with zeros and adding to them.
  void zero_grad() {
    for (const auto& group : optimizer_.param_groups()) {
      for (const at::Tensor& parameter : group.params()) parameter.mutable_grad().reset();
    }
  }

  std::shared_ptr<Net> net_;
  torch::optim::SGD optimizer_;
  Batch batch_;
};

template <class Step>
Variant steps(std::string name, Step step) {
  return {std::move(name), [step](int64_t iterations) {
            const tutti::TorchThreadsScope torch_threads(1);
            const tutti::BlasThreadsScope blas_threads(1);
            for (int64_t i = 0; i < warm_up_steps(iterations); ++i) step();
            const double begin = bench::now_seconds();
            for (int64_t i = 0; i < iterations; ++i) step();
            return bench::now_seconds() - begin;
          }};
}

// Runs two plain loops at once, on threads that wait between measurements. The time is from their
// common start until both are done.
class SilentThreads {
 public:
  explicit SilentThreads(std::array<Plain*, kReplicas> loops) {
    for (size_t t = 0; t < kReplicas; ++t) {
      threads_.emplace_back([this, t, loop = loops[t]] { work(t, *loop); });
    }
  }
  ~SilentThreads() {
    iterations_ = 0;
    between_.wait(kReplicas + 1);
    for (std::thread& thread : threads_) thread.join();
  }
  SilentThreads(const SilentThreads&) = delete;
  SilentThreads& operator=(const SilentThreads&) = delete;

  double run(int64_t iterations) {
    const tutti::BlasThreadsScope blas_threads(1);
    iterations_ = iterations;
    between_.wait(kReplicas + 1);
    between_.wait(kReplicas + 1);
    return std::max(end_[0], end_[1]) - std::min(begin_[0], begin_[1]);
  }

 private:
  void work(size_t t, Plain& loop) {
    const tutti::TorchThreadsScope torch_threads(1);
    while (true) {
      between_.wait(kReplicas + 1);
      if (iterations_ == 0) return;
      for (int64_t i = 0; i < warm_up_steps(iterations_); ++i) loop.step();
      start_.wait(kReplicas);
      begin_[t] = bench::now_seconds();
      for (int64_t i = 0; i < iterations_; ++i) loop.step();
      end_[t] = bench::now_seconds();
      between_.wait(kReplicas + 1);
    }
  }

  bench::CondBarrier between_;
  bench::SpinBarrier start_;
  int64_t iterations_ = 0;
  std::array<double, kReplicas> begin_ = {};
  std::array<double, kReplicas> end_ = {};
  std::vector<std::thread> threads_;
};

// ---- the same with Tutti

tutti::MirroredStrategy mirrored(int replicas) {
  std::vector<std::string> devices;
  for (int r = 0; r < replicas; ++r) devices.push_back("CPU:" + std::to_string(r));
  return tutti::MirroredStrategy(devices, {.runner = {.threads_per_replica = 1}});
}

class Ours {
 public:
  Ours(const Model& model, int replicas) : trainer_(mirrored(replicas), model) {}

  double step() { return trainer_.step(); }

 private:
  bench::Trainer trainer_;
};

// ---- comparisons

void check_equal(const Losses& found, const Losses& expected, const std::string& name) {
  Harness::check(std::abs(found.first - expected.first) <= 1e-5 * std::abs(expected.first) &&
                     std::abs(found.last - expected.last) <= 2e-3 * std::abs(expected.last),
                 name + ": the losses are " + std::to_string(found.first) + " and " +
                     std::to_string(found.last) + " instead of " + std::to_string(expected.first) +
                     " and " + std::to_string(expected.last));
}

// All train on the same rows: ours and Python's on two replicas, the plain loop in one batch.
void check_losses(const Model& model, const bench::PythonPeer& python) {
  const auto [x0, y0] = model.batch(0);
  const auto [x1, y1] = model.batch(1);
  Plain plain(model, {at::cat({x0, x1}), at::cat({y0, y1})});
  const Losses expected = losses_of(plain);
  const Losses ours = losses_of(Ours(model, kReplicas));
  check_equal(ours, expected, model.name);
  std::string others;
  if (python.is_there()) {
    const std::string answer =
        python.ask("check " + model.name + " " + std::to_string(kCheckedSteps));
    char* rest = nullptr;
    const long parameters = std::strtol(answer.c_str(), &rest, 10);
    Harness::check(parameters == plain.num_parameters(),
                   model.name + ": the model in Python has a different size");
    Losses theirs;
    theirs.first = std::strtod(rest, &rest);
    theirs.last = std::strtod(rest, &rest);
    check_equal(theirs, expected, model.name + " in Python");
    others = ", Python " + std::to_string(theirs.first) + " and " + std::to_string(theirs.last);
  }
  std::printf(
      "info  training/%s %ld parameters; loss of steps 1 and %d: ours %f and %f, LibTorch %f and "
      "%f%s\n",
      model.name.c_str(), static_cast<long>(plain.num_parameters()), kCheckedSteps, ours.first,
      ours.last, expected.first, expected.last, others.c_str());
}

void two_replicas(Harness& harness, const Model& model, const bench::PythonPeer& python) {
  const std::string name = model.name + "_2_replicas";
  if (!harness.wants(name)) return;
  check_losses(model, python);
  Ours ours(model, kReplicas);
  Plain first(model, model.batch(0)), second(model, model.batch(1));
  SilentThreads silent({&first, &second});
  const double over = model.python_target;
  std::vector<Variant> variants = {
      steps("ours", [&] { ours.step(); }),
      {"two_silent_threads", [&](int64_t iterations) { return silent.run(iterations); },
       /*is_limit=*/true, model.limit_target},
      steps("libtorch_1_thread", [&] { first.step(); })};
  python.add_steps(model.name, "python_ddp", over > 0 ? 1 / over : 0, variants);
  const bool is_one = model.name == "one";
  if (is_one) python.add_steps("one_plain", "python_plain", 0, variants);
  const bench::Comparison found = harness.compare(name, variants);
  if (!is_one) return;
  std::printf("info  training/%s added by replicas %.2f us (target: at most 10)", name.c_str(),
              found.difference(0, 1) * 1e6);
  if (variants.size() > 4) std::printf(", by Python's %.2f us", found.difference(3, 4) * 1e6);
  std::printf("\n");
}

void one_replica(Harness& harness, const Model& model) {
  const std::string name = model.name + "_1_replica";
  if (!harness.wants(name)) return;
  Ours ours(model, 1);
  Plain plain(model, model.batch(0));
  harness.compare(name, {steps("ours", [&] { ours.step(); }),
                         steps("libtorch_1_thread", [&] { plain.step(); })});
}

// ---- Adam on many small tensors

struct Tensors final : torch::nn::Module {
  Tensors() {
    for (int i = 0; i < 100; ++i) {
      all.push_back(register_parameter(std::to_string(i), numbers(64, i)));
    }
  }
  std::vector<at::Tensor> all;
};

// Both repeat the step with the same gradients; ours is given them again each time, because it
// refuses to use a sum twice.
void fused_adam(Harness& harness) {
  const std::string name = "adam_100_tensors_of_64";
  if (!harness.wants(name)) return;
  const auto give_gradients = [](Tensors& tensors) {
    for (const at::Tensor& parameter : tensors.all) parameter.square().sum().backward();
  };
  const torch::optim::AdamOptions options(1e-3);
  const tutti::MirroredStrategy strategy = mirrored(1);
  const auto model = tutti::replicate<Tensors>(strategy);
  tutti::DistributedOptimizer<torch::optim::Adam> ours(model, options);
  Tensors plain;
  torch::optim::Adam theirs(plain.parameters(), options);
  give_gradients(plain);
  theirs.step();
  strategy.run([&] {
    give_gradients(*model);
    ours.step();
  });
  for (size_t i = 0; i < plain.all.size(); ++i) {
    Harness::check(at::allclose(plain.all[i], model.primary().all[i]),
                   name + ": parameters differ after one step");
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : plain.all) gradients.push_back(parameter.grad().clone());
  const auto our_step = [&] {
    for (size_t i = 0; i < gradients.size(); ++i) model->all[i].mutable_grad() = gradients[i];
    ours.step();
  };
  const auto our_steps = [&](int64_t iterations) {
    return strategy
        .run([&] {
          for (int64_t i = 0; i < warm_up_steps(iterations); ++i) our_step();
          const double begin = bench::now_seconds();
          for (int64_t i = 0; i < iterations; ++i) our_step();
          return bench::now_seconds() - begin;
        })
        .only();
  };
  Variant libtorch = steps("torch_optim", [&] { theirs.step(); });
  libtorch.target = 100;
  harness.compare(name, {{"ours", our_steps}, libtorch});
}

// ---- steps for a program that counts instructions

template <class Loop>
int run_steps(Loop&& loop, int64_t count) {
  const tutti::TorchThreadsScope torch_threads(1);
  double loss = 0;
  for (int64_t i = 0; i < count; ++i) loss = loop.step();
  std::printf("loss %f after %ld steps\n", loss, static_cast<long>(count));
  return 0;
}

int instructions(const std::vector<std::string>& words) {
  const auto value = [&](const std::string& option, const std::string& otherwise) {
    for (size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] == option) return words[i + 1];
    }
    return otherwise;
  };
  const std::string who = value("--instructions", "");
  const std::string name = value("--model", "mlp");
  const int64_t count = std::atoll(value("--steps", "10").c_str());
  const int replicas = std::atoi(value("--replicas", "1").c_str());
  for (const Model& model : models(false)) {
    if (model.name != name) continue;
    if (who == "plain") return run_steps(Plain(model, model.batch(0)), count);
    if (who == "tutti") return run_steps(Ours(model, replicas), count);
  }
  std::printf(
      "usage: bench_training --instructions plain|tutti [--model one|mlp|cnn|big|many] "
      "[--steps N] [--replicas 1|2]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  tutti::set_log_level(tutti::LogLevel::kWarning);
  tutti::set_logical_cpu_devices(kReplicas);
  if (argc > 1 && std::strcmp(argv[1], "--instructions") == 0) {
    return instructions(std::vector<std::string>(argv + 1, argv + argc));
  }
  Harness harness("training", argc, argv);
  if (tutti::blas_threads() == 0) {
    std::printf(
        "info  training: LibTorch's BLAS is neither MKL nor OpenBLAS; with a slow one (Debian's "
        "libblas3) matrix products hide everything else\n");
  }
  const bench::PythonPeer python("training_ddp.py", harness.smoke());
  for (const Model& model : models(harness.smoke())) {
    two_replicas(harness, model, python);
    one_replica(harness, model);
  }
  fused_adam(harness);
}
