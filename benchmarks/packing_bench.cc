// SPDX-License-Identifier: Apache-2.0
//
// Does it pay to reduce many small tensors in one call? 100 tensors of 64 and of
// 1024 floats on 2 and 4 replicas: one all_reduce_ for all (ours), one for each,
// packs of 64 KB, and LibTorch's operators between condition variable barriers.

#include <sched.h>

#include <vector>

#include <ATen/ATen.h>

#include "tutti/tutti.h"

#include "benchmarks/support/barriers.h"
#include "benchmarks/support/harness.h"

namespace {

constexpr int kTensors = 100;

class Case {
 public:
  Case(const tutti::Strategy& strategy, int64_t elements)
      : strategy_(strategy), replicas_(strategy.num_replicas_in_sync()) {
    tensors_.resize(static_cast<size_t>(replicas_));
    for (auto& list : tensors_) {
      for (int t = 0; t < kTensors; ++t) list.push_back(at::zeros({elements}, at::kFloat));
    }
  }

  void fill(float base) {
    for (size_t r = 0; r < tensors_.size(); ++r) {
      for (size_t t = 0; t < kTensors; ++t) {
        tensors_[r][t].fill_(base * static_cast<float>((r + 1) * (t + 1)));
      }
    }
  }

  bool is_summed() const {
    const int sum = replicas_ * (replicas_ + 1) / 2;
    const auto factor = static_cast<float>(sum);
    for (const auto& list : tensors_) {
      for (size_t t = 0; t < kTensors; ++t) {
        const float* data = list[t].data_ptr<float>();
        for (int64_t i = 0; i < list[t].numel(); ++i) {
          if (data[i] != factor * static_cast<float>(t + 1)) return false;
        }
      }
    }
    return true;
  }

  template <class Once>
  bench::Variant variant(std::string name, Once once) {
    return {std::move(name), [this, once](int64_t iterations) {
              double seconds = 0;
              strategy_.run([&] {
                tutti::ReplicaContext& context = *tutti::get_replica_context();
                const int replica = context.replica_id_in_sync_group();
                start_.wait(replicas_);
                const double begin = bench::now_seconds();
                for (int64_t i = 0; i < iterations; ++i) {
                  once(context, tensors_[static_cast<size_t>(replica)]);
                }
                start_.wait(replicas_);
                if (replica == 0) seconds = bench::now_seconds() - begin;
              });
              return seconds;
            }};
  }

  std::vector<bench::Variant> variants() {
    using Tensors = std::vector<at::Tensor>;
    return {
        variant("ours", [](tutti::ReplicaContext& context,
                           Tensors& mine) { context.all_reduce_(tutti::ReduceOp::kSum, mine); }),
        variant("one_call_each",
                [](tutti::ReplicaContext& context, Tensors& mine) {
                  for (at::Tensor& tensor : mine)
                    context.all_reduce_(tutti::ReduceOp::kSum, tensor);
                }),
        variant("packs_of_64KB",
                [](tutti::ReplicaContext& context, Tensors& mine) {
                  context.all_reduce_(tutti::ReduceOp::kSum, mine, {.bytes_per_pack = 64 << 10});
                }),
        variant("add_copy_condvar",
                [this](tutti::ReplicaContext& context, Tensors&) {
                  condition_.wait(replicas_);
                  if (context.replica_id_in_sync_group() == 0) {
                    for (size_t t = 0; t < kTensors; ++t) {
                      for (size_t r = 1; r < tensors_.size(); ++r)
                        tensors_[0][t].add_(tensors_[r][t]);
                      for (size_t r = 1; r < tensors_.size(); ++r)
                        tensors_[r][t].copy_(tensors_[0][t]);
                    }
                  }
                  condition_.wait(replicas_);
                }),
    };
  }

 private:
  const tutti::Strategy& strategy_;
  int replicas_;
  std::vector<std::vector<at::Tensor>> tensors_;
  bench::SpinBarrier start_;
  bench::CondBarrier condition_;
};

}  // namespace

int main(int argc, char** argv) {
  bench::Harness harness("packing", argc, argv);
  tutti::set_log_level(tutti::LogLevel::kWarning);
  tutti::set_logical_cpu_devices(4);
  for (const int replicas : {2, 4}) {
    std::vector<std::string> devices;
    for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
    const tutti::MirroredStrategy strategy(devices);
    const auto cores = strategy.run([] {
      bench::pin_to_core(tutti::get_replica_context()->replica_id_in_sync_group());
      sched_yield();
      return sched_getcpu();
    });
    if (replicas <= tutti::usable_cores()) {
      bench::Harness::check(cores[0] != cores[1], "replicas run on one core");
    }
    for (const int64_t elements : {64, 1024}) {
      const std::string name =
          std::to_string(replicas) + "x100_tensors_of_" + std::to_string(elements);
      if (!harness.wants(name)) continue;
      Case c(strategy, elements);
      for (const bench::Variant& variant : c.variants()) {
        c.fill(1);
        variant.run(1);
        bench::Harness::check(c.is_summed(), name + ": wrong sum by " + variant.name);
      }
      c.fill(0);
      harness.compare(name, c.variants());
    }
  }
}
