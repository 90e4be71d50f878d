// SPDX-License-Identifier: Apache-2.0
//
// How many cores this process may use, and how many threads LibTorch and its BLAS use. LibTorch's
// and MKL's counts belong to the calling thread; OpenBLAS has one for the whole process, and its
// speed collapses when several threads call it with a count above 1.

#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// The cores this process may use: the smaller of the affinity mask and the
/// cgroup's CPU limit (rounded up), at least 1. Read once.
int usable_cores();

/// Names the set of cores that usable_cores() counts: processes that share cores get the same name;
/// those on different machines, affinity masks or limited cgroups get different ones.
std::string core_pool();

/// Sets what at::get_num_threads returns on this thread, and MKL's count, for the lifetime of the
/// object. An object belongs to the thread that makes it.
class TorchThreadsScope {
 public:
  explicit TorchThreadsScope(int threads);
  ~TorchThreadsScope();

  TorchThreadsScope(const TorchThreadsScope&) = delete;
  TorchThreadsScope& operator=(const TorchThreadsScope&) = delete;

 private:
  int previous_;
  int previous_mkl_ = 0;
};

/// Sets OpenBLAS' process-wide thread count for the lifetime of the object. While scopes overlap,
/// the count of the last to begin applies; the last to end restores the value that the first one
/// found. Does nothing with a different BLAS: TorchThreadsScope sets MKL's. Thread-safe.
class BlasThreadsScope {
 public:
  explicit BlasThreadsScope(int threads);
  ~BlasThreadsScope();

  BlasThreadsScope(const BlasThreadsScope&) = delete;
  BlasThreadsScope& operator=(const BlasThreadsScope&) = delete;
};

/// The current thread count of OpenBLAS, or of MKL on this thread; 0 with any other BLAS.
int blas_threads();

/// Logs a warning, once per process, if OpenBLAS chose kernels for a CPU far older than this one.
/// It chooses when it is loaded, so a running program can only advise.
void warn_of_slow_blas();

namespace internal {

/// The cores of one of several processes.
struct ProcessCores {
  std::string pool;  ///< core_pool()
  int cores = 1;     ///< usable_cores()
};

/// How many of `processes` share the cores of `which`, itself included.
int processes_in_pool(std::span<const ProcessCores> processes, size_t which);

/// The number of threads for each of the `replicas` of each process when processes that share cores
/// divide them. The smallest share applies to all, so that all compute the same bits. At least 1.
int threads_of_each_replica(std::span<const ProcessCores> processes, int replicas);

/// The value of OPENBLAS_CORETYPE that suits this CPU; empty if any does.
std::string_view best_open_blas_core();

/// The warning to log if OpenBLAS chose `core`; empty if that is fast enough.
std::string open_blas_advice(std::string_view core, std::string_view best);

/// Cores allowed by the text of cgroup v2's cpu.max ("200000 100000", "max
/// 100000"); 0 when there is no limit or the text is not understood.
int cores_from_cpu_max(std::string_view text);

/// The same for cgroup v1's cpu.cfs_quota_us and cpu.cfs_period_us.
int cores_from_cfs(std::string_view quota, std::string_view period);

}  // namespace internal
}  // namespace tutti
