// SPDX-License-Identifier: Apache-2.0

#include "benchmarks/support/harness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include <torch/version.h>

namespace bench {
namespace {

constexpr int kRounds = 21;
constexpr int kMaxRounds = 63;      // noisy machines get more rounds
constexpr size_t kEnough = 7;       // with fewer quiet rounds a case is noisy
constexpr double kQuiet = 0.35;     // cores used by other programs
constexpr double kPatience = 60;    // seconds after which a case gets no more rounds
constexpr double kLong = 120;       // seconds after which kEnough rounds suffice
constexpr double kSeconds = 0.025;  // duration of one measurement

double clock_seconds(clockid_t id) {
  timespec time{};
  clock_gettime(id, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Seconds that all cores together have been busy or stolen since boot.
double machine_busy_seconds() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  file >> cpu >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  return (user + nice + system + irq + soft + steal) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double helper_seconds = 0;  // of processes that work for this one

double own_seconds() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID) + helper_seconds; }

// Cores used by others since construction.
class ForeignLoad {
 public:
  double cores() const {
    const double wall = now_seconds() - wall_;
    const double own = own_seconds() - own_;
    return std::max(0.0, (machine_busy_seconds() - busy_ - own) / wall);
  }

 private:
  double wall_ = now_seconds();
  double own_ = own_seconds();
  double busy_ = machine_busy_seconds();
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(position);
  const size_t high = std::min(low + 1, values.size() - 1);
  const double part = position - static_cast<double>(low);
  return values[low] * (1 - part) + values[high] * part;
}

std::string time_name(double seconds) {
  char text[64];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof text, "%.2f us", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.2f ms", seconds * 1e3);
  }
  return text;
}

// Describes what the results depend on besides the program: "LibTorch 2.15.0 with MKL, ..."
std::string describe_setup() {
  std::string blas = dlsym(RTLD_DEFAULT, "MKL_Get_Max_Threads") != nullptr ? "MKL" : "its BLAS";
  using CoreName = const char*();
  if (void* const core = dlsym(RTLD_DEFAULT, "openblas_get_corename")) {
    blas = std::string("OpenBLAS for ") + reinterpret_cast<CoreName*>(core)();
  }
  std::ifstream file("/proc/cpuinfo");
  std::string cpu;
  while (cpu.rfind("model name", 0) != 0 && std::getline(file, cpu)) {
  }
  return "LibTorch " TORCH_VERSION " with " + blas + ", compiler " __VERSION__ ", " +
         std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) + " cores of" +
         cpu.substr(std::min(cpu.size(), cpu.find(':') + 1));
}

// Returns enough iterations for one measurement.
int64_t calibrate(const Variant& variant, double target) {
  int64_t iterations = 1;
  while (true) {
    const double seconds = variant.run(iterations);
    if (seconds >= target / 2 || iterations >= (int64_t{1} << 24)) {
      const double wanted = static_cast<double>(iterations) * target / std::max(seconds, 1e-9);
      return std::max<int64_t>(1, static_cast<int64_t>(wanted));
    }
    iterations *= 2;
  }
}

}  // namespace

Harness::Harness(std::string topic, int argc, char** argv) : topic_(std::move(topic)) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--smoke") {
      smoke_ = true;
    } else if (argument.rfind("--filter=", 0) == 0) {
      filter_ = argument.substr(9);
    } else {
      std::printf("usage: bench_%s [--smoke] [--filter=TEXT]\n", topic_.c_str());
      std::exit(argument == "--help" ? 0 : 2);
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!smoke_) std::printf("setup: %s\n", describe_setup().c_str());
}

bool Harness::wants(const std::string& case_name) const {
  return case_name.find(filter_) != std::string::npos;
}

void Harness::check(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "benchmark stopped: %s\n", what.c_str());
  std::exit(1);
}

double Comparison::difference(size_t longer, size_t shorter) const {
  if (noisy) return best[longer] - best[shorter];
  std::vector<double> differences;
  for (size_t r = 0; r < times[longer].size(); ++r) {
    differences.push_back(times[longer][r] - times[shorter][r]);
  }
  return quantile(differences, 0.5);
}

double Comparison::ratio(size_t longer, size_t shorter) const {
  if (noisy) return best[longer] / best[shorter];
  std::vector<double> ratios;
  for (size_t r = 0; r < times[longer].size(); ++r) {
    ratios.push_back(times[longer][r] / times[shorter][r]);
  }
  return quantile(ratios, 0.5);
}

double Comparison::typical(size_t variant) const {
  return noisy ? best[variant] : quantile(times[variant], 0.5);
}

Comparison Harness::compare(const std::string& case_name, const std::vector<Variant>& variants,
                            size_t ours) {
  const size_t count = variants.size();
  const double target = smoke_ ? 1e-4 : kSeconds;
  std::vector<int64_t> iterations;
  for (const Variant& variant : variants) iterations.push_back(calibrate(variant, target));

  const double start = now_seconds();
  Comparison result;
  result.times.resize(count);
  result.best.assign(count, std::numeric_limits<double>::infinity());
  std::vector<double> loads;
  int dropped = 0;
  for (int round = 0; round < (smoke_ ? 1 : kMaxRounds); ++round) {
    const double passed = now_seconds() - start;
    if (round >= kRounds && (loads.size() >= kEnough || passed > kPatience)) break;
    if (loads.size() >= kEnough && passed > kLong) break;
    std::vector<double> seconds(count, 0);
    const ForeignLoad load;
    const auto measure = [&](size_t v) {
      const double one = variants[v].run(iterations[v]) / static_cast<double>(iterations[v]);
      seconds[v] += one / 2;
      result.best[v] = std::min(result.best[v], one);
    };
    for (size_t v = 0; v < count; ++v) measure(v);
    for (size_t v = count; v-- > 0;) measure(v);
    const double cores = load.cores();
    if (cores > kQuiet && !smoke_) {
      ++dropped;
      continue;
    }
    loads.push_back(cores);
    for (size_t v = 0; v < count; ++v) result.times[v].push_back(seconds[v]);
  }
  result.noisy = loads.size() < kEnough && !smoke_;
  for (size_t o = 0; o < ours; ++o) {
    const std::string name = ours > 1 ? case_name + "/" + variants[o].name : case_name;
    for (size_t v = ours; v < count; ++v) report(name, variants, o, v, result, loads, dropped);
  }
  return result;
}

void Harness::report(const std::string& case_name, const std::vector<Variant>& variants, size_t o,
                     size_t v, const Comparison& result, const std::vector<double>& loads,
                     int dropped) const {
  const std::string name = topic_ + "/" + case_name + "/" + variants[v].name;
  std::string goal;
  const double target = o == 0 ? variants[v].target : variants[v].more_targets[o - 1];
  if (target > 0) {
    std::array<char, 32> text = {};
    std::snprintf(text.data(), text.size(), ", target %.2f", target);
    goal = text.data();
  }
  if (result.noisy) {
    std::printf("ratio %s noisy  (%zu quiet rounds of %d; best of all: ours %s, %s %s, %.2f%s)\n",
                name.c_str(), loads.size(), dropped + static_cast<int>(loads.size()),
                time_name(result.best[o]).c_str(), variants[v].name.c_str(),
                time_name(result.best[v]).c_str(), result.best[v] / result.best[o], goal.c_str());
    return;
  }
  std::vector<double> ratios;
  for (size_t r = 0; r < loads.size(); ++r) {
    ratios.push_back(result.times[v][r] / result.times[o][r]);
  }
  std::string limits;
  for (size_t l = 1; l < variants.size(); ++l) {
    if (variants[l].is_limit && l != v) {
      limits += "limit " + time_name(quantile(result.times[l], 0.5)) + ", ";
    }
  }
  std::printf(
      "ratio %s %.2f  (ours %s, %s %s, %squartiles %.2f..%.2f%s, foreign %.2f, %zu rounds)\n",
      name.c_str(), quantile(ratios, 0.5), time_name(quantile(result.times[o], 0.5)).c_str(),
      variants[v].name.c_str(), time_name(quantile(result.times[v], 0.5)).c_str(), limits.c_str(),
      quantile(ratios, 0.25), quantile(ratios, 0.75), goal.c_str(), quantile(loads, 0.5),
      loads.size());
}

void count_as_own(double cpu_seconds) { helper_seconds += cpu_seconds; }

void pin_to_core(int k) {
  static const cpu_set_t allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
  }();
  const int cores = CPU_COUNT(&allowed);
  int wanted = k % std::max(1, cores);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
}

std::string size_name(int64_t bytes) {
  if (bytes >= (1 << 20)) return std::to_string(bytes >> 20) + "MB";
  if (bytes >= (1 << 10)) return std::to_string(bytes >> 10) + "KB";
  return std::to_string(bytes) + "B";
}

double now_seconds() { return clock_seconds(CLOCK_MONOTONIC); }

int64_t minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

}  // namespace bench
