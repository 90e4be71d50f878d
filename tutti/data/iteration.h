// SPDX-License-Identifier: Apache-2.0
//
// State shared by the streams of one pass over a pipeline: the orders of random nodes, and the time
// spent in the user's functions.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/nest/element_codec.h"

namespace tutti::data {

class Node;

/// The work of one stage's function in a pass. A plain value.
struct StageStats {
  std::string stage;
  int64_t calls = 0;
  double seconds = 0;
  int64_t skipped = 0;  ///< Damaged records that were skipped, as requested.
};

/// The state of one pass over a pipeline; outlives its streams. Thread-safe.
class Iteration {
 public:
  Iteration() = default;
  /// Takes the number of the pass and a seed for nodes without a user's seed, which is set where
  /// several processes must have the same orders.
  Iteration(uint64_t pass, std::optional<uint64_t> seed, Iteration* stages = nullptr)
      : pass_(pass), seed_(seed), shared_(stages) {}

  /// Counts the calls of one node's function. Thread-safe.
  class Stage {
   public:
    explicit Stage(std::string name) : name_(std::move(name)) {}

    /// Calls fn and measures its time.
    template <class F>
    auto measure(const F& fn) {
      const auto begin = std::chrono::steady_clock::now();
      struct Add {
        Stage& stage;
        std::chrono::steady_clock::time_point begin;
        ~Add() { stage.add(1, std::chrono::steady_clock::now() - begin); }
      } const add{*this, begin};
      return fn();
    }
    void add(int64_t calls, std::chrono::nanoseconds took) {
      calls_.fetch_add(calls, std::memory_order_relaxed);
      nanoseconds_.fetch_add(took.count(), std::memory_order_relaxed);
    }
    void count_skipped(int64_t records) { skipped_.fetch_add(records, std::memory_order_relaxed); }
    StageStats stats() const;

   private:
    std::string name_;
    std::atomic<int64_t> skipped_{0};
    std::atomic<int64_t> calls_{0};
    std::atomic<int64_t> nanoseconds_{0};
  };

  /// The order of a random node. It is part of positions, so that orders continue unchanged, even
  /// in a different process. A plain value.
  struct Order {
    uint64_t seed = 0;
    uint64_t pass = 0;   ///< The pass over the dataset.
    uint64_t epoch = 0;  ///< How often the node was started in this pass.

    /// A seed for the i-th inner pass, distinct for each `i`.
    uint64_t mixed(uint64_t i = 0) const;
    void save(StateWriter& state) const;
    static Order restore(StateReader& state);
  };

  /// The next order of a node. The first one in a pass uses the user's `seed` if set, else the
  /// node's `own_seed`; `passes` counts the passes over the node.
  Order next_order(const Node& node, std::optional<uint64_t> seed, uint64_t own_seed,
                   std::atomic<uint64_t>& passes);
  /// Sets the order of a restored position.
  void set_order(const Node& node, const Order& order, std::atomic<uint64_t>& passes);

  /// A pass inside this one, with separate orders: over a dataset that a function returned, or
  /// again over the same nodes, whose stages it then shares.
  std::unique_ptr<Iteration> inner(uint64_t number) const;
  std::unique_ptr<Iteration> again(uint64_t number);

  /// The stage of a node, one for all passes over the node.
  Stage& stage(const Node& node);
  std::vector<StageStats> stats() const;
  /// The number of damaged records that all stages skipped.
  int64_t skipped() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<const Node*, std::unique_ptr<Stage>>> stages_ TUTTI_GUARDED_BY(mutex_);
  struct NodeOrder {
    const Node* node;
    Order order;
    bool restored = false;
  };
  NodeOrder* find_order(const Node& node) TUTTI_REQUIRES(mutex_);
  uint64_t seed_of(const Node& node, uint64_t own_seed);
  void set_seed(const Node& node, uint64_t seed);

  const std::optional<uint64_t> pass_ = std::nullopt;
  const std::optional<uint64_t> seed_ = std::nullopt;
  Iteration* const shared_ = nullptr;  // the first pass over the same nodes, if this is a later one
  std::vector<NodeOrder> orders_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::data
