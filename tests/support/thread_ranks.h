// SPDX-License-Identifier: Apache-2.0
//
// Ranks of a group as threads of the test: each calls a function with its group.

#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tutti/group/connect.h"

namespace tutti::testing {

/// Gives the texts of all threads to all; in place of a rendezvous between processes.
class ThreadGather {
 public:
  explicit ThreadGather(int size) : texts_(static_cast<size_t>(size)) {}

  std::vector<std::string> operator()(int rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    texts_[static_cast<size_t>(rank)] = mine;
    if (++arrived_ == static_cast<int>(texts_.size())) {
      arrived_ = 0;
      done_ = texts_;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
    return done_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_;
  std::vector<std::string> done_;
  int arrived_ = 0;
  int round_ = 0;
};

/// Options of rank `rank` of `size`, except those that connect it.
inline GroupOptions thread_rank_options(int rank, int size, uint64_t epoch) {
  GroupOptions options;
  options.rank = rank;
  for (int r = 0; r < size; ++r) {
    options.names.push_back("/job:worker/task:" + std::to_string(r) + " (thread)");
  }
  options.epoch = epoch;
  options.segment_bytes = size_t{1} << 30;
  options.timeout = std::chrono::seconds(20);
  options.connect_timeout = std::chrono::seconds(20);
  return options;
}

/// Calls fn(group) on every rank; what they throw is returned, by rank.
inline std::vector<std::exception_ptr> run_thread_ranks(
    int size, const std::function<void(WorkerGroup&)>& fn,
    const std::function<void(GroupOptions&)>& change = [](GroupOptions&) {}) {
  static std::atomic<uint64_t> epochs{0x7e57};
  const uint64_t epoch = ++epochs;
  ThreadGather gather(size);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        GroupOptions options = thread_rank_options(r, size, epoch);
        options.gather = [&, r](const std::string& mine) { return gather(r, mine); };
        change(options);
        const std::shared_ptr<WorkerGroup> group = make_group(options);
        fn(*group);
      } catch (...) {
        errors[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  return errors;
}

}  // namespace tutti::testing
