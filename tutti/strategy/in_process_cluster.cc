// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/in_process_cluster.h"

#include <atomic>
#include <exception>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/base/wait_word.h"
#include "tutti/collectives/worker_cross_device_ops.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/logical_devices.h"
#include "tutti/group/connect.h"
#include "tutti/group/grpc/factory.h"
#include "tutti/group/rendezvous/rendezvous.h"
#include "tutti/rpc/server.h"
#include "tutti/strategy/internal/multi_worker_extended.h"
#include "tutti/strategy/internal/tally.h"
#include "tutti/strategy/replica_random.h"

namespace tutti {
namespace {

// Gives the text of every worker to every worker. A worker that fails before it comes lets the
// others go with an error.
class Exchange {
 public:
  explicit Exchange(int workers) : texts_(static_cast<size_t>(workers)) {}

  std::vector<std::string> gather(int worker, const std::string& mine, const Deadline& deadline) {
    uint64_t round = 0;
    {
      const MutexLock lock(mutex_);
      round = complete_ + 1;
      texts_[static_cast<size_t>(worker)] = mine;
      if (++arrived_ == texts_.size()) {
        arrived_ = 0;
        result_ = texts_;
        complete_ = round;
        news_.bump();
      }
    }
    while (true) {
      const uint32_t seen = news_.load();
      const bool late = deadline.passed();
      {
        // What all have given is handed out even if one has failed since.
        const MutexLock lock(mutex_);
        if (complete_ >= round) return result_;
        if (failed_ || late) {
          throw Error(ErrorCode::kCancelled,
                      message("InProcessCluster: worker ", worker, " of ", texts_.size(),
                              " cannot be connected, because another one ",
                              failed_ ? "failed before it came; its error says why."
                                      : "did not come before InProcessClusterOptions::timeout."));
        }
      }
      news_.park(seen, deadline);
    }
  }

  void fail() {
    {
      const MutexLock lock(mutex_);
      failed_ = true;
    }
    news_.bump();
  }

 private:
  WaitWord news_;
  Mutex mutex_;
  std::vector<std::string> texts_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::string> result_ TUTTI_GUARDED_BY(mutex_);
  size_t arrived_ TUTTI_GUARDED_BY(mutex_) = 0;
  uint64_t complete_ TUTTI_GUARDED_BY(mutex_) = 0;  // rounds
  bool failed_ TUTTI_GUARDED_BY(mutex_) = false;
};

bool is_cancelled(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& each) {
    return each.code() == ErrorCode::kCancelled;
  } catch (...) {
    return false;
  }
}

}  // namespace

InProcessCluster::InProcessCluster(int workers, InProcessClusterOptions options)
    : workers_(workers), options_(std::move(options)) {
  if (workers < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                message("InProcessCluster: ", workers, " workers; there must be at least one."));
  }
  options_.communication_options.validate();
}

InProcessCluster::~InProcessCluster() = default;

std::vector<std::exception_ptr> InProcessCluster::try_run(
    const std::function<void(const Strategy&)>& fn) const {
  Exchange exchange(workers_);
  const uint64_t epoch = random_epoch();
  const uint64_t key = draw_random_key();
  const std::string secret = message(random_epoch(), "-", random_epoch());
  const std::vector<std::string> names =
      options_.devices.empty() ? std::vector<std::string>{"CPU:0"} : options_.devices;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(workers_));
  const auto work = [&](int worker) {
    std::shared_ptr<WorkerGroup> group;
    try {
      ReplicaRandom random(-1);
      random.begin(key);
      const ReplicaRandom::Scope own_numbers(random);
      const std::vector<DeviceSpec> devices =
          internal::logical_device_table().resolve("InProcessCluster", names);
      GroupOptions options;
      options.rank = worker;
      for (int w = 0; w < workers_; ++w) {
        options.names.push_back(message("/job:worker/task:", w, " (a thread)"));
      }
      options.epoch = epoch;
      // All workers share the cores.
      options.local_replicas = static_cast<int>(devices.size());
      options.implementation = options_.communication_options.implementation;
      options.timeout = options_.communication_options.timeout.value_or(options_.timeout);
      options.warning = options_.runner.meeting_warning;
      options.connect_timeout = options_.timeout;
      options.gather = [&](const std::string& mine) {
        return exchange.gather(worker, mine, Deadline::after(options_.timeout));
      };
      if (options.implementation == CommunicationImplementation::kGrpc) {
        rpc::ServerOptions listening;
        listening.security.job_secret = secret;
        const auto server = std::make_shared<rpc::Server>(listening);
        rpc::ChannelOptions channel;
        channel.security = listening.security;
        options.remote =
            make_grpc_links(server, worker, epoch, options.gather(server->address()), channel);
      }
      group = make_group(options);
      const auto ops =
          std::make_shared<WorkerCrossDeviceOps>(group, static_cast<int>(devices.size()));
      ReplicaRunnerOptions runner = options_.runner;
      if (runner.threads_per_replica == 0) {
        const std::vector<internal::ProcessCores> workers(static_cast<size_t>(workers_),
                                                          {.pool = "", .cores = usable_cores()});
        runner.threads_per_replica =
            internal::threads_of_each_replica(workers, static_cast<int>(devices.size()));
      }
      const Strategy strategy(std::make_shared<internal::MultiWorkerExtended>(
          "MultiWorkerMirroredStrategy", devices, group, ops, runner,
          options_.communication_options));
      fn(strategy);
    } catch (...) {
      errors[static_cast<size_t>(worker)] = std::current_exception();
      exchange.fail();
      if (group != nullptr) {
        group->abort(ErrorCode::kCancelled,
                     message(group->name(worker), " ended with an error: ",
                             internal::text_of(errors[static_cast<size_t>(worker)])));
      }
    }
  };
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int w = 0; w < workers_; ++w) {
      threads.push_back(
          std::make_unique<Thread>(message("tutti/worker", w), [&work, w] { work(w); }));
    }
  }
  return errors;
}

void InProcessCluster::run(const std::function<void(const Strategy&)>& fn) const {
  const std::vector<std::exception_ptr> errors = try_run(fn);
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr && !is_cancelled(error)) std::rethrow_exception(error);
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace tutti
