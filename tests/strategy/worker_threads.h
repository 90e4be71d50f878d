// SPDX-License-Identifier: Apache-2.0
//
// Calls a function on every worker of a cluster of threads.

#pragma once

#include <exception>
#include <string>
#include <vector>

#include "tutti/strategy/strategy.h"
#include "tutti/testing/in_process_cluster.h"

namespace tutti::test {

/// Calls fn(strategy, worker) for each worker, simultaneously, and rethrows what the first of them
/// threw.
template <class F>
void for_each_worker(int workers, int replicas, const F& fn) {
  std::vector<std::string> devices;
  for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
  InProcessCluster(workers, {.devices = devices}).run([&](const Strategy& strategy) {
    fn(strategy, strategy.extended().workers().rank());
  });
}

}  // namespace tutti::test
