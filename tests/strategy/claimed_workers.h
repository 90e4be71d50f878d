// SPDX-License-Identifier: Apache-2.0
//
// Strategies that claim to be workers of one job: threads of this process that agree about the
// end of their data as workers on several machines do.

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/thread.h"
#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/host_all_reduce.h"
#include "tutti/strategy/replica_runner.h"
#include "tutti/strategy/strategy.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::test {

/// Where the workers meet. Thread-safe.
class WorkerTable {
 public:
  explicit WorkerTable(int workers) : workers_(workers) {}

  int workers() const { return workers_; }

  InputTotals add(const InputProgress& progress) {
    std::unique_lock lock(mutex_);
    Sum& sum = sums_[{progress.pass, progress.step}];
    sum.totals.replicas_with_data += progress.local_replicas_with_data;
    sum.totals.rows += progress.local_rows;
    ++sum.calls;
    changed_.notify_all();
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return sum.calls == workers_; })) {
      throw Error(ErrorCode::kDeadlineExceeded, "WorkerTable: a worker did not come.");
    }
    return sum.totals;
  }

  uint64_t agree(uint64_t mine) {
    const std::lock_guard lock(mutex_);
    if (!seed_) seed_ = mine;
    return *seed_;
  }

 private:
  struct Sum {
    InputTotals totals;
    int calls = 0;
  };

  const int workers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int64_t, int64_t>, Sum> sums_;
  std::optional<uint64_t> seed_;
};

class ClaimedWorkerExtended final : public StrategyExtended {
 public:
  ClaimedWorkerExtended(std::shared_ptr<WorkerTable> table, int worker, int replicas)
      : StrategyExtended("ClaimedWorkerStrategy", devices_of(replicas), worker * replicas,
                         table->workers() * replicas),
        table_(std::move(table)),
        worker_(worker),
        runner_(name(), *this, contexts()) {}

  int num_workers() const override { return table_->workers(); }
  int worker_index() const override { return worker_; }
  InputTotals add_up_input(const InputProgress& progress) override { return table_->add(progress); }
  uint64_t agree_on_seed(uint64_t mine) override { return table_->agree(mine); }

  CrossDeviceOps& cross_device_ops() override { return ops_; }
  void meet(ReplicaContext& context, MeetingRequest& request) override {
    runner_.meet(context.local_replica_id(), request);
  }

 private:
  static std::vector<DeviceSpec> devices_of(int count) {
    std::vector<DeviceSpec> devices;
    for (int i = 0; i < count; ++i) {
      devices.push_back(DeviceSpec::canonical("CPU:" + std::to_string(i)));
    }
    return devices;
  }

  void do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) override { runner_.run(fn); }

  std::shared_ptr<WorkerTable> table_;
  const int worker_;
  HostAllReduce ops_;
  ReplicaRunner runner_;
};

/// Calls fn(strategy, worker) for each worker, all at once, and rethrows what the first of them
/// threw.
template <class F>
void for_each_worker(int workers, int replicas, const F& fn) {
  const auto table = std::make_shared<WorkerTable>(workers);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(workers));
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int w = 0; w < workers; ++w) {
      threads.push_back(std::make_unique<Thread>("worker", [&, w] {
        try {
          fn(Strategy(std::make_shared<ClaimedWorkerExtended>(table, w, replicas)), w);
        } catch (...) {
          errors[static_cast<size_t>(w)] = std::current_exception();
        }
      }));
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace tutti::test
