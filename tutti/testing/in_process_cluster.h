// SPDX-License-Identifier: Apache-2.0
//
// A cluster whose workers are threads of this process: the same strategy and the same transports,
// without starting processes. It serves tests, and trying out a program for many machines.

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/strategy/replica_runner.h"
#include "tutti/strategy/strategy.h"
#include "tutti/values/communication_options.h"

namespace tutti {

struct InProcessClusterOptions {
  /// The devices of each worker; empty means {"CPU:0"}.
  std::vector<std::string> devices = {};

  /// Options of every collective call. implementation chooses the transport between the workers:
  /// kHost and kAuto use shared memory, kGrpc sends over loopback (kUnimplemented in a build
  /// without gRPC).
  CommunicationOptions communication_options = {};

  /// Threads, turns and time limits of the replicas.
  ReplicaRunnerOptions runner = {};

  /// How long a worker waits for the others in a collective call.
  std::chrono::milliseconds timeout{60'000};
};

/// Thread-safe; each run has its own workers.
class InProcessCluster {
 public:
  /// Throws kInvalidArgument unless `workers` is positive.
  explicit InProcessCluster(int workers, InProcessClusterOptions options = {});
  ~InProcessCluster();
  InProcessCluster(const InProcessCluster&) = delete;
  InProcessCluster& operator=(const InProcessCluster&) = delete;

  int num_workers() const { return workers_; }

  /// Calls fn(strategy) once for each worker, concurrently, each on its own thread with a new
  /// MultiWorkerMirroredStrategy. Returns when all have ended; rethrows the first error that is not
  /// a consequence of another worker's. Workers draw the same random numbers, as processes with
  /// the same seed do: torch::manual_seed() before this call determines them; inside fn it has no
  /// effect.
  /// strategy.cluster_resolver() is null; extended().workers().rank() tells which worker it is.
  void run(const std::function<void(const Strategy&)>& fn) const;

  /// The same; returns what each worker threw, by its index: null if nothing.
  std::vector<std::exception_ptr> try_run(const std::function<void(const Strategy&)>& fn) const;

 private:
  const int workers_;
  const InProcessClusterOptions options_;
};

}  // namespace tutti
