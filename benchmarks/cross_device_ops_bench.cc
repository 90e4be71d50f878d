// SPDX-License-Identifier: Apache-2.0
//
// Which implementation of CrossDeviceOps suits CPU replicas? float32 sums by all_reduce_, in
// place, 4 KB to 100 MB, 2 and 4 replicas. All variants use the same tensors, each with its own
// strategy. NcclAllReduce is not among them: in host memory it delegates to HostAllReduce.

#include <sched.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tutti/tutti.h"

#include "benchmarks/support/barriers.h"
#include "benchmarks/support/harness.h"

namespace {

constexpr int kMaxReplicas = 4;

struct Implementation {
  std::string name;
  tutti::MirroredStrategy strategy;
};

// Returns all implementations; the first is ours, the default.
std::vector<Implementation> make_implementations(int replicas) {
  std::vector<std::string> devices;
  for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
  std::vector<Implementation> all;
  const auto add = [&](std::string name, std::shared_ptr<tutti::CrossDeviceOps> ops) {
    all.push_back(
        {std::move(name), tutti::MirroredStrategy(devices, {.cross_device_ops = std::move(ops)})});
  };
  add("ours", std::make_shared<tutti::HostAllReduce>());
  add("reduction_to_one_device", std::make_shared<tutti::ReductionToOneDevice>());
  add("hierarchical_copy_1", std::make_shared<tutti::HierarchicalCopyAllReduce>(1));
  add("hierarchical_copy_" + std::to_string(replicas),
      std::make_shared<tutti::HierarchicalCopyAllReduce>(replicas));
  return all;
}

class Case {
 public:
  Case(tutti::Arena& arena, int replicas, int64_t bytes) : replicas_(replicas), count_(bytes / 4) {
    for (int r = 0; r < replicas_; ++r) tensors_.push_back(arena.empty({count_}, at::kFloat));
  }

  void fill(float base) {
    for (int r = 0; r < replicas_; ++r) {
      float* data = tensors_[static_cast<size_t>(r)].data_ptr<float>();
      for (int64_t i = 0; i < count_; ++i) {
        data[i] = base * static_cast<float>(r + 1) * static_cast<float>(i % 97);
      }
    }
  }

  // 1 + 2 + ... of every pattern; small numbers are exact in float32.
  bool is_summed() const {
    const int sum = replicas_ * (replicas_ + 1) / 2;
    const auto factor = static_cast<float>(sum);
    for (const at::Tensor& tensor : tensors_) {
      const float* data = tensor.data_ptr<float>();
      for (int64_t i = 0; i < count_; ++i) {
        if (data[i] != factor * static_cast<float>(i % 97)) return false;
      }
    }
    return true;
  }

  // all_reduce_ on every replica, `iterations` times, between two barriers.
  bench::Variant variant(const Implementation& implementation) {
    return {implementation.name, [this, &implementation](int64_t iterations) {
              double seconds = 0;
              implementation.strategy.run([&] {
                tutti::ReplicaContext& context = *tutti::get_replica_context();
                const int replica = context.replica_id_in_sync_group();
                at::Tensor& tensor = tensors_[static_cast<size_t>(replica)];
                start_.wait(replicas_);
                const double begin = bench::now_seconds();
                for (int64_t i = 0; i < iterations; ++i) {
                  context.all_reduce_(tutti::ReduceOp::kSum, tensor);
                }
                start_.wait(replicas_);
                if (replica == 0) seconds = bench::now_seconds() - begin;
              });
              return seconds;
            }};
  }

 private:
  int replicas_;
  int64_t count_;
  std::vector<at::Tensor> tensors_;
  bench::SpinBarrier start_;
};

void pin_replicas(const tutti::Strategy& strategy, int replicas) {
  const auto cores = strategy.run([] {
    bench::pin_to_core(tutti::get_replica_context()->replica_id_in_sync_group());
    sched_yield();
    return sched_getcpu();
  });
  if (replicas <= tutti::usable_cores()) {
    bench::Harness::check(cores[0] != cores[1], "replicas run on one core");
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Harness harness("cross_device_ops", argc, argv);
  tutti::set_log_level(tutti::LogLevel::kWarning);
  tutti::set_logical_cpu_devices(kMaxReplicas);
  std::vector<int64_t> sizes = {4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20};
  if (harness.smoke()) sizes = {4 << 10, 64 << 10, 1 << 20};
  for (const int replicas : {2, 4}) {
    const std::vector<Implementation> implementations = make_implementations(replicas);
    for (const Implementation& each : implementations) pin_replicas(each.strategy, replicas);
    for (const int64_t bytes : sizes) {
      const std::string name = std::to_string(replicas) + "x" + bench::size_name(bytes);
      if (!harness.wants(name)) continue;
      Case c(implementations[0].strategy.extended().arena(), replicas, bytes);
      std::vector<bench::Variant> variants;
      for (const Implementation& each : implementations) {
        variants.push_back(c.variant(each));
        c.fill(1);
        variants.back().run(1);
        bench::Harness::check(c.is_summed(), name + ": wrong sum by " + each.name);
      }
      c.fill(0);  // sums stay finite
      harness.compare(name, variants);
    }
  }
}
