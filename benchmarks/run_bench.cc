// SPDX-License-Identifier: Apache-2.0
//
// What does Strategy::run cost? An empty function on 1, 2 and 4 replicas, against
// a thread pool with a condition variable and std::async. With more replicas than
// cores it also counts the CPU time of idle replicas, which must not spin.

#include <time.h>

#include <condition_variable>
#include <cstdio>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

#include "benchmarks/support/harness.h"

namespace {

// N threads that wait for work under one mutex; the caller waits for all.
class CondPool {
 public:
  explicit CondPool(int size) {
    for (int i = 0; i < size; ++i) threads_.emplace_back([this] { work(); });
  }
  ~CondPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      ++generation_;
    }
    go_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(const std::function<void()>& fn) {
    std::unique_lock lock(mutex_);
    fn_ = &fn;
    running_ = static_cast<int>(threads_.size());
    ++generation_;
    go_.notify_all();
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void work() {
    int seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      go_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (stop_) return;
      lock.unlock();
      (*fn_)();
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable go_;
  std::condition_variable done_;
  const std::function<void()>* fn_ = nullptr;
  int generation_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Cores in use while every replica but one waits for that one.
double cores_used_while_waiting(const tutti::Strategy& strategy) {
  double cores = 0;
  strategy.run([&] {
    tutti::ReplicaContext& context = *tutti::get_replica_context();
    if (context.replica_id_in_sync_group() == 0) {
      const double wall = bench::now_seconds();
      const double cpu = process_cpu_seconds();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      cores = (process_cpu_seconds() - cpu) / (bench::now_seconds() - wall);
    }
    context.merge_call([](tutti::Strategy) {});
  });
  return cores;
}

template <class Once>
bench::Variant loop(std::string name, Once once) {
  return {std::move(name), [once](int64_t iterations) {
            const double start = bench::now_seconds();
            for (int64_t i = 0; i < iterations; ++i) once();
            return bench::now_seconds() - start;
          }};
}

}  // namespace

int main(int argc, char** argv) {
  bench::Harness harness("run", argc, argv);
  tutti::set_log_level(tutti::LogLevel::kWarning);
  tutti::set_logical_cpu_devices(4);
  for (const int replicas : {1, 2, 4}) {
    const std::string name = std::to_string(replicas) + "_replicas";
    if (!harness.wants(name)) continue;
    std::vector<std::string> devices;
    for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
    const tutti::MirroredStrategy strategy(devices);
    const auto cores = strategy.run([] {
      bench::pin_to_core(tutti::get_replica_context()->replica_id_in_sync_group());
      sched_yield();
      return sched_getcpu();
    });
    if (replicas > 1 && replicas <= tutti::usable_cores()) {
      bench::Harness::check(cores[0] != cores[1], "replicas run on one core");
    }
    int calls[4] = {};
    strategy.run([&] { ++calls[tutti::get_replica_context()->replica_id_in_sync_group()]; });
    for (int i = 0; i < replicas; ++i) {
      bench::Harness::check(calls[i] == 1, "run did not call every replica once");
    }
    CondPool pool(replicas);
    harness.compare(
        name, {loop("ours", [&] { strategy.run([] {}); }),
               loop("condition_variable_pool", [&] { pool.run([] {}); }), loop("std_async", [&] {
                 std::vector<std::future<void>> futures;
                 for (int i = 0; i < replicas; ++i) {
                   futures.push_back(std::async(std::launch::async, [] {}));
                 }
                 for (auto& future : futures) future.get();
               })});
    std::printf("info  run/%s/cores_used_while_waiting %.2f\n", name.c_str(),
                cores_used_while_waiting(strategy));
  }
}
