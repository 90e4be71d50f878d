// SPDX-License-Identifier: Apache-2.0
//
// How close does all_reduce_ come to the best loop written by hand, and how far
// ahead is it of LibTorch's operators? float32 sums in place, 4 B to 100 MB, 2 and
// 4 replicas. All variants run on the threads of the replicas, in one program.

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include <ATen/ATen.h>

#include "tutti/tutti.h"

#include "benchmarks/support/barriers.h"
#include "benchmarks/support/harness.h"

namespace {

constexpr int kMaxReplicas = 4;

// The peer's kernel: it reads every input once and writes every output once.
template <int N>
#if defined(__x86_64__) && !defined(__clang__)
__attribute__((target("avx2"), optimize("O3")))
#endif
void
sum_slices(float* const* x, int64_t begin, int64_t end) {
  float* a = x[0];
  float* b = x[1];
  float* c = x[N > 2 ? 2 : 0];
  float* d = x[N > 2 ? 3 : 1];
#if !defined(__clang__)
#pragma GCC ivdep
#endif
  for (int64_t i = begin; i < end; ++i) {
    float sum = a[i] + b[i];
    if constexpr (N > 2) sum += c[i] + d[i];
    a[i] = sum;
    b[i] = sum;
    if constexpr (N > 2) c[i] = sum;
    if constexpr (N > 2) d[i] = sum;
  }
}

class Case {
 public:
  Case(const tutti::Strategy& strategy, int64_t bytes)
      : strategy_(strategy), replicas_(strategy.num_replicas_in_sync()), count_(bytes / 4) {
    for (int r = 0; r < replicas_; ++r) {
      tensors_.push_back(strategy.extended().arena().empty({count_}, at::kFloat));
      pointers_[r] = tensors_.back().data_ptr<float>();
    }
  }

  void fill(float base) {
    for (int r = 0; r < replicas_; ++r) {
      for (int64_t i = 0; i < count_; ++i) {
        pointers_[r][i] = base * static_cast<float>(r + 1) * static_cast<float>(i % 97);
      }
    }
  }

  // 1 + 2 + ... of every pattern; small numbers are exact in float32.
  bool is_summed() const {
    const int sum = replicas_ * (replicas_ + 1) / 2;
    const auto factor = static_cast<float>(sum);
    for (int r = 0; r < replicas_; ++r) {
      for (int64_t i = 0; i < count_; ++i) {
        if (pointers_[r][i] != factor * static_cast<float>(i % 97)) return false;
      }
    }
    return true;
  }

  // Runs `once` on every replica, `iterations` times, between two barriers.
  template <class Once>
  bench::Variant variant(std::string name, Once once) {
    return {std::move(name), [this, once](int64_t iterations) {
              double seconds = 0;
              strategy_.run([&] {
                tutti::ReplicaContext& context = *tutti::get_replica_context();
                const int replica = context.replica_id_in_sync_group();
                start_.wait(replicas_);
                const double begin = bench::now_seconds();
                for (int64_t i = 0; i < iterations; ++i) once(context, replica);
                start_.wait(replicas_);
                if (replica == 0) seconds = bench::now_seconds() - begin;
              });
              return seconds;
            }};
  }

  bench::Variant ours() {
    return variant("ours", [this](tutti::ReplicaContext& context, int replica) {
      context.all_reduce_(tutti::ReduceOp::kSum, tensors_[static_cast<size_t>(replica)]);
    });
  }

  bench::Variant by_operators() {
    return variant("add_copy_condvar", [this](tutti::ReplicaContext&, int replica) {
      condition_.wait(replicas_);
      if (replica == 0) {
        for (int r = 1; r < replicas_; ++r) tensors_[0].add_(tensors_[static_cast<size_t>(r)]);
        for (int r = 1; r < replicas_; ++r) tensors_[static_cast<size_t>(r)].copy_(tensors_[0]);
      }
      condition_.wait(replicas_);
    });
  }

  bench::Variant by_hand() {
    return variant("hand_written", [this](tutti::ReplicaContext&, int replica) {
      const int64_t step = (count_ / replicas_ + 15) / 16 * 16;
      const int64_t begin = std::min(count_, step * replica);
      const int64_t end = replica == replicas_ - 1 ? count_ : std::min(count_, begin + step);
      spin_.wait(replicas_);
      if (replicas_ == 2) {
        sum_slices<2>(pointers_, begin, end);
      } else {
        sum_slices<4>(pointers_, begin, end);
      }
      spin_.wait(replicas_);
    });
  }

 private:
  const tutti::Strategy& strategy_;
  int replicas_;
  int64_t count_;
  std::vector<at::Tensor> tensors_;
  float* pointers_[kMaxReplicas] = {};
  bench::SpinBarrier start_;
  bench::SpinBarrier spin_;
  bench::CondBarrier condition_;
};

}  // namespace

int main(int argc, char** argv) {
  bench::Harness harness("inprocess_all_reduce", argc, argv);
  tutti::set_log_level(tutti::LogLevel::kWarning);
  tutti::set_logical_cpu_devices(kMaxReplicas);
  std::vector<int64_t> sizes = {4, 4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20};
  if (harness.smoke()) sizes = {4, 64 << 10, 1 << 20};
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
    for (const int64_t bytes : sizes) {
      const std::string name = std::to_string(replicas) + "x" + bench::size_name(bytes);
      if (!harness.wants(name)) continue;
      Case c(strategy, bytes);
      for (auto make : {&Case::ours, &Case::by_operators, &Case::by_hand}) {
        c.fill(1);
        const bench::Variant variant = (c.*make)();
        variant.run(1);
        bench::Harness::check(c.is_summed(), name + ": wrong sum by " + variant.name);
      }
      c.fill(0);  // sums stay finite
      const bench::Variant ours = c.ours();
      const int64_t faults = bench::minor_faults();
      ours.run(10);
      bench::Harness::check(bench::minor_faults() - faults < 64, name + ": memory is allocated");
      bench::Variant limit = c.by_hand();
      limit.is_limit = true;
      harness.compare(name, {ours, c.by_operators(), limit});
    }
  }
}
