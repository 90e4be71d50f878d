// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/iteration.h"

#include "tutti/base/error.h"
#include "tutti/data/internal/random.h"
#include "tutti/data/node.h"

namespace tutti::data {

StageStats Iteration::Stage::stats() const {
  return {name_, calls_.load(std::memory_order_relaxed),
          static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9,
          skipped_.load(std::memory_order_relaxed)};
}

uint64_t Iteration::Order::mixed(uint64_t i) const {
  return mix_bits((seed ^ mix_bits(mix_bits(pass) + epoch)) + i);
}

void Iteration::Order::save(StateWriter& state) const {
  for (const uint64_t number : {seed, pass, epoch}) state.number(static_cast<int64_t>(number));
}

Iteration::Order Iteration::Order::restore(StateReader& state) {
  Order order;
  for (uint64_t* number : {&order.seed, &order.pass, &order.epoch}) {
    *number = static_cast<uint64_t>(state.number());
  }
  return order;
}

Iteration::NodeOrder* Iteration::find_order(const Node& node) {
  for (NodeOrder& each : orders_) {
    if (each.node == &node) return &each;
  }
  return nullptr;
}

Iteration::Order Iteration::next_order(const Node& node, std::optional<uint64_t> seed,
                                       uint64_t own_seed, std::atomic<uint64_t>& passes) {
  const MutexLock lock(mutex_);
  if (NodeOrder* known = find_order(node)) {
    ++known->order.epoch;
    return known->order;
  }
  Order order;
  if (seed) {
    order.seed = *seed;
  } else if (shared_ != nullptr) {
    order.seed = shared_->seed_of(node, own_seed);
  } else {
    order.seed = seed_ ? mix_bits(*seed_ + orders_.size()) : own_seed;
  }
  order.pass = pass_ ? *pass_ : passes.fetch_add(1);
  orders_.push_back({&node, order});
  return order;
}

void Iteration::set_order(const Node& node, const Order& order, std::atomic<uint64_t>& passes) {
  const MutexLock lock(mutex_);
  NodeOrder* const known = find_order(node);
  TUTTI_CHECK(known != nullptr);
  // A node in several branches has several streams; the most advanced one counts.
  if (!known->restored || order.epoch > known->order.epoch) known->order = order;
  known->restored = true;
  if (shared_ != nullptr) shared_->set_seed(node, order.seed);
  if (pass_) return;
  // Later passes in this process continue after the restored one.
  uint64_t next = passes.load();
  while (next <= order.pass && !passes.compare_exchange_weak(next, order.pass + 1)) {
  }
}

uint64_t Iteration::seed_of(const Node& node, uint64_t own_seed) {
  const MutexLock lock(mutex_);
  const NodeOrder* const known = find_order(node);
  return known != nullptr ? known->order.seed : own_seed;
}

void Iteration::set_seed(const Node& node, uint64_t seed) {
  const MutexLock lock(mutex_);
  if (NodeOrder* const known = find_order(node)) known->order.seed = seed;
}

std::unique_ptr<Iteration> Iteration::inner(uint64_t number) const {
  return std::make_unique<Iteration>(number,
                                     seed_ ? std::optional(mix_bits(*seed_ ^ number)) : seed_);
}

std::unique_ptr<Iteration> Iteration::again(uint64_t number) {
  return std::make_unique<Iteration>(number, seed_, shared_ != nullptr ? shared_ : this);
}

Iteration::Stage& Iteration::stage(const Node& node) {
  if (shared_ != nullptr) return shared_->stage(node);
  const MutexLock lock(mutex_);
  for (auto& [owner, stage] : stages_) {
    if (owner == &node) return *stage;
  }
  stages_.emplace_back(&node, std::make_unique<Stage>(std::string(node.name())));
  return *stages_.back().second;
}

std::vector<StageStats> Iteration::stats() const {
  const MutexLock lock(mutex_);
  std::vector<StageStats> all;
  for (const auto& [owner, stage] : stages_) all.push_back(stage->stats());
  return all;
}

int64_t Iteration::skipped() const {
  int64_t all = 0;
  for (const StageStats& stage : stats()) all += stage.skipped;
  return all;
}

}  // namespace tutti::data
