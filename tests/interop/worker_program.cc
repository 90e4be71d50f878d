// SPDX-License-Identifier: Apache-2.0
//
// worker_program <out> <replicas> <mirrored|auto|host|grpc> [die|throw|leave <step>]
//
// Trains (training.h) as one worker of the cluster in the environment, or alone with "mirrored",
// and writes the bytes of the model to a file. At the given step worker 1 ends in the given
// way. WORKER_CERTIFICATES names a folder of tutti-certs, WORKER_THREADS gives the threads per
// replica, 1 if it is not set. Prints how it ended: "ok", or the code and the text of the error.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tests/multi_worker/training.h"

namespace {

using namespace tutti;  // NOLINT: a program

Strategy make(const std::string& kind, int replicas) {
  const char* const given = std::getenv("WORKER_THREADS");
  const int threads = given != nullptr ? std::atoi(given) : 1;
  if (kind == "mirrored") {
    return MirroredStrategy(testing::cpus(replicas), {.runner = {.threads_per_replica = threads}});
  }
  MultiWorkerMirroredStrategyOptions options;
  options.devices = testing::cpus(replicas);
  options.runner.threads_per_replica = threads;
  options.join_timeout = std::chrono::seconds(60);
  options.communication_options.timeout = std::chrono::seconds(20);
  if (const char* const folder = std::getenv("WORKER_CERTIFICATES")) {
    const std::string all = std::string(folder) + "/all";
    options.security = {.ca_file = std::string(folder) + "/ca.pem",
                        .certificate_file = all + ".pem",
                        .key_file = all + ".key"};
  }
  if (kind == "host")
    options.communication_options.implementation = CommunicationImplementation::kHost;
  if (kind == "grpc")
    options.communication_options.implementation = CommunicationImplementation::kGrpc;
  return MultiWorkerMirroredStrategy(nullptr, options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int replicas = std::atoi(argv[2]);
  set_logical_cpu_devices(replicas);
  const std::string end = argc > 5 ? argv[4] : "";
  const int when = argc > 5 ? std::atoi(argv[5]) : -1;
  torch::manual_seed(7);
  try {
    const Strategy strategy = make(argv[3], replicas);
    testing::TrainingOptions options;
    options.with_norm = true;
    options.before_step = [&](int step) {
      const bool mine = strategy.extended().workers().rank() == 1 &&
                        get_replica_context()->replica_id_in_sync_group() % replicas == 0;
      if (step != when || !mine) return;
      if (end == "die") kill(getpid(), SIGKILL);
      if (end == "throw") throw std::runtime_error("the disk is on fire");
      if (end == "leave") std::_Exit(0);
    };
    const std::string bytes = testing::train(strategy, options);
    std::ofstream(argv[1], std::ios::binary) << bytes;
  } catch (const Error& error) {
    std::printf("%s: %s\n", to_string(error.code()), error.what());
    return 1;
  } catch (const std::exception& error) {
    std::printf("std::exception: %s\n", error.what());
    return 1;
  }
  std::printf("ok\n");
  return 0;
}
