// SPDX-License-Identifier: Apache-2.0

#include "tutti/testing/in_process_cluster.h"

#include <exception>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/thread.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/logical_devices.h"
#include "tutti/group/connect.h"
#include "tutti/group/epoch.h"
#include "tutti/group/text_gather.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/replica_random.h"

namespace tutti {
namespace {

std::string what(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& each) {
    const std::string text = each.what();
    return text.substr(0, text.find('\n'));  // LibTorch adds a backtrace
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

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
  std::vector<std::string> workers;
  for (int w = 0; w < workers_; ++w) {
    workers.push_back(message("/job:worker/task:", w, " (a thread)"));
  }
  TextGather texts("InProcessCluster", workers,
                   "The time for it is InProcessClusterOptions::timeout.");
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
      options.names = workers;
      options.epoch = epoch;
      // All workers share the cores.
      options.local_replicas = static_cast<int>(devices.size());
      options.implementation = options_.communication_options.implementation;
      options.timeout = options_.communication_options.timeout.value_or(options_.timeout);
      options.warning = options_.runner.meeting_warning;
      options.connect_timeout = options_.timeout;
      options.gather = [&](const std::string& mine) {
        return texts.gather(static_cast<size_t>(worker), mine, Deadline::after(options_.timeout));
      };
      if (options.implementation == CommunicationImplementation::kGrpc) {
        options.remote = make_remote_links(options, {.security = {.job_secret = secret}});
      }
      group = make_group(options);
      ReplicaRunnerOptions runner = options_.runner;
      if (runner.threads_per_replica == 0) {
        const std::vector<internal::ProcessCores> cores(static_cast<size_t>(workers_),
                                                        {.pool = "", .cores = usable_cores()});
        runner.threads_per_replica =
            internal::threads_of_each_replica(cores, static_cast<int>(devices.size()));
      }
      const MultiWorkerMirroredStrategy strategy(
          nullptr, {.devices = names,
                    .communication_options = options_.communication_options,
                    .runner = runner,
                    .workers = group});
      fn(strategy);
    } catch (...) {
      errors[static_cast<size_t>(worker)] = std::current_exception();
      texts.fail();
      if (group != nullptr) {
        group->abort(ErrorCode::kCancelled, message(group->name(worker), " ended with an error: ",
                                                    what(errors[static_cast<size_t>(worker)])));
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
