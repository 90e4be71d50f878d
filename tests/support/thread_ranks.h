// SPDX-License-Identifier: Apache-2.0
//
// Ranks of a group as threads of the test: each calls a function with its group.

#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tutti/group/connect.h"
#include "tutti/group/text_gather.h"

namespace tutti::testing {

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

/// Calls fn(group) on every rank; returns what they threw, by rank.
inline std::vector<std::exception_ptr> run_thread_ranks(
    int size, const std::function<void(WorkerGroup&)>& fn,
    const std::function<void(GroupOptions&)>& change = [](GroupOptions&) {}) {
  static std::atomic<uint64_t> epochs{0x7e57};
  const uint64_t epoch = ++epochs;
  TextGather texts("test", thread_rank_options(0, size, epoch).names);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        GroupOptions options = thread_rank_options(r, size, epoch);
        options.gather = [&, r](const std::string& mine) {
          return texts.gather(static_cast<size_t>(r), mine,
                              Deadline::after(std::chrono::seconds(20)));
        };
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
