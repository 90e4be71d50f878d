// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/cpu_threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <climits>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>

#include <ATen/Parallel.h>

#include "tutti/base/crc32c.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/mutex.h"
#include "tutti/base/shared_library.h"

namespace tutti {
namespace {

// On non-Intel CPUs, MKL's summation order depends on the alignment of rows in memory unless strict
// mode is set before its first use, hence before main().
[[maybe_unused]] const bool mkl_is_strict = [] {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel") || read_env("MKL_CBWR")) return false;
  constexpr int kAutoStrict = 2 | 0x10000;  // MKL_CBWR_AUTO | MKL_CBWR_STRICT
  auto* const set = SharedLibrary::of_program().find<int(int)>("mkl_serv_cbwr_set");
  return set != nullptr && set(kAutoStrict) == 0;
#else
  return false;
#endif
}();

// The affinity mask, one bit per core; empty if the system does not report it.
std::string affinity_mask() {
  // Machines with more than 1024 cores need a larger set than cpu_set_t.
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 4) {
    struct Free {
      void operator()(cpu_set_t* set) const { CPU_FREE(set); }
    };
    const std::unique_ptr<cpu_set_t, Free> set(CPU_ALLOC(capacity));
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    CPU_ZERO_S(bytes, set.get());
    if (sched_getaffinity(0, bytes, set.get()) == 0) {
      return {reinterpret_cast<const char*>(set.get()), bytes};
    }
  }
  return "";
}

int cores_from_affinity() {
  int cores = 0;
  for (const char each : affinity_mask()) cores += std::popcount(static_cast<uint8_t>(each));
  return std::max(1, cores);
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The path of this process' cgroup below the mount point, from lines such as
// "0::/user.slice" (v2) or "4:cpu,cpuacct:/docker/abc" (v1).
std::string cgroup_path(bool v2) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (v2 ? controllers == ",," : controllers.find(",cpu,") != std::string::npos) {
      return line.substr(second + 1);
    }
  }
  return "";
}

int smaller_limit(int a, int b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

// Any level above the process may set a limit; the tightest one counts. In a container the host's
// path may not exist; the root of the mount then applies.
template <class Read>
int tightest_limit(std::string path, Read read) {
  int limit = 0;
  while (true) {
    limit = smaller_limit(limit, read(path));
    if (path.empty() || path == "/") return limit;
    path.resize(path.find_last_of('/'));
  }
}

int cores_from_cgroup() {
  const int v2 = tightest_limit(cgroup_path(true), [](const std::string& path) {
    return internal::cores_from_cpu_max(read_line("/sys/fs/cgroup" + path + "/cpu.max"));
  });
  const int v1 = tightest_limit(cgroup_path(false), [](const std::string& path) {
    const std::string folder = "/sys/fs/cgroup/cpu" + path;
    return internal::cores_from_cfs(read_line(folder + "/cpu.cfs_quota_us"),
                                    read_line(folder + "/cpu.cfs_period_us"));
  });
  return smaller_limit(v2, v1);
}

template <class Function>
Function* find_function(const char* name) {
  return SharedLibrary::of_program().find<Function>(name);
}

struct OpenBlas {
  void (*set)(int) = find_function<void(int)>("openblas_set_num_threads");
  int (*get)() = find_function<int()>("openblas_get_num_threads");
  const char* (*core)() = find_function<const char*()>("openblas_get_corename");

  bool found() const { return set != nullptr && get != nullptr; }
};

const OpenBlas& open_blas() {
  static const OpenBlas instance;
  return instance;
}

// MKL keeps a count per thread, which takes precedence over the process-wide one that
// at::set_num_threads sets; 0 clears it. `set` returns the previous count.
struct Mkl {
  int (*set)(int) = find_function<int(int)>("MKL_Set_Num_Threads_Local");
  int (*get)() = find_function<int()>("MKL_Get_Max_Threads");

  bool found() const { return set != nullptr && get != nullptr; }
};

const Mkl& mkl() {
  static const Mkl instance;
  return instance;
}

// at::set_num_threads also empties oneDNN's caches and changes the default of other threads, which
// takes 50 us; OpenMP's own function sets only this thread. The earlier call of at::get_num_threads
// has initialised LibTorch on the thread.
void set_torch_threads(int threads) {
  static auto* const set = find_function<void(int)>("omp_set_num_threads");
  if (set != nullptr) set(threads);
  if (at::get_num_threads() != threads)
    at::set_num_threads(threads);  // no OpenMP, or a different runtime
}

struct BlasState {
  Mutex mutex;
  int scopes TUTTI_GUARDED_BY(mutex) = 0;
  int original TUTTI_GUARDED_BY(mutex) = 0;
};

BlasState& blas_state() {
  static auto* const instance = new BlasState;
  return *instance;
}

}  // namespace

int usable_cores() {
  static const int cores = std::max(1, smaller_limit(cores_from_affinity(), cores_from_cgroup()));
  return cores;
}

std::string core_pool() {
  std::string machine = read_line("/proc/sys/kernel/random/boot_id");
  if (machine.empty()) {
    std::array<char, HOST_NAME_MAX + 1> name = {};
    gethostname(name.data(), name.size() - 1);
    machine = name.data();
  }
  std::string cores = affinity_mask();
  if (cores_from_cgroup() > 0) {
    // Paths are relative to the root of the namespace, so those of containers are equal.
    std::error_code unknown;
    cores += std::filesystem::read_symlink("/proc/self/ns/cgroup", unknown).string();
    cores += cgroup_path(true) + ":" + cgroup_path(false);
  }
  return message(machine, "/", crc32c(cores.data(), cores.size()));
}

TorchThreadsScope::TorchThreadsScope(int threads) : previous_(at::get_num_threads()) {
  if (previous_ != threads) set_torch_threads(threads);
  if (mkl().found()) previous_mkl_ = mkl().set(threads);
}

TorchThreadsScope::~TorchThreadsScope() {
  if (mkl().found()) mkl().set(previous_mkl_);
  // Also undoes a change made inside the scope.
  if (at::get_num_threads() != previous_) set_torch_threads(previous_);
}

BlasThreadsScope::BlasThreadsScope(int threads) {
  if (!open_blas().found()) return;
  BlasState& state = blas_state();
  MutexLock lock(state.mutex);
  const int present = open_blas().get();
  if (state.scopes++ == 0) state.original = present;
  if (present != threads) open_blas().set(threads);
}

BlasThreadsScope::~BlasThreadsScope() {
  if (!open_blas().found()) return;
  BlasState& state = blas_state();
  MutexLock lock(state.mutex);
  if (--state.scopes == 0 && open_blas().get() != state.original) open_blas().set(state.original);
}

int blas_threads() {
  if (open_blas().found()) return open_blas().get();
  return mkl().found() ? mkl().get() : 0;
}

void warn_of_slow_blas() {
  static const bool warned = [] {
    if (!open_blas().found() || open_blas().core == nullptr) return false;
    const std::string advice =
        internal::open_blas_advice(open_blas().core(), internal::best_open_blas_core());
    if (!advice.empty()) log(LogLevel::kWarning, advice);
    return true;
  }();
  static_cast<void>(warned);
}

namespace internal {

int processes_in_pool(std::span<const ProcessCores> processes, size_t which) {
  return static_cast<int>(
      std::count_if(processes.begin(), processes.end(),
                    [&](const ProcessCores& each) { return each.pool == processes[which].pool; }));
}

int threads_of_each_replica(std::span<const ProcessCores> processes, int replicas) {
  std::map<std::string_view, int> sharing;
  for (const ProcessCores& each : processes) ++sharing[each.pool];
  int threads = INT_MAX;
  for (const ProcessCores& each : processes) {
    threads = std::min(threads, each.cores / (sharing[each.pool] * replicas));
  }
  return std::max(1, threads);
}

std::string_view best_open_blas_core() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return "";
}

std::string open_blas_advice(std::string_view core, std::string_view best) {
  // These multiply with AVX2 or better; all others reach at most half of its speed.
  constexpr std::array<std::string_view, 6> kFast = {"Haswell",  "Excavator",  "Zen",
                                                     "SkylakeX", "Cooperlake", "SapphireRapids"};
  const auto same = [core](std::string_view other) {
    return std::equal(
        core.begin(), core.end(), other.begin(), other.end(),
        [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
  };
  if (best.empty() || std::any_of(kFast.begin(), kFast.end(), same)) return "";
  return message("OpenBLAS takes this CPU for the much older \"", core,
                 "\", which makes matrix products several times slower. Set OPENBLAS_CORETYPE=",
                 best, " in the environment before the program starts.");
}

namespace {

int ceil_cores(double quota, double period) {
  if (quota <= 0 || period <= 0) return 0;
  const int whole = static_cast<int>(quota / period);
  return std::max(1, whole * period < quota ? whole + 1 : whole);
}

}  // namespace

int cores_from_cpu_max(std::string_view text) {
  std::istringstream in{std::string(text)};
  double quota = 0;
  double period = 0;
  if (!(in >> quota >> period)) return 0;  // "max 100000" or nothing at all
  return ceil_cores(quota, period);
}

int cores_from_cfs(std::string_view quota, std::string_view period) {
  std::istringstream in(std::string(quota) + " " + std::string(period));
  double quota_us = 0;
  double period_us = 0;
  if (!(in >> quota_us >> period_us)) return 0;
  return ceil_cores(quota_us, period_us);
}

}  // namespace internal
}  // namespace tutti
