// SPDX-License-Identifier: Apache-2.0
//
// Prints the cluster that resolve_cluster() finds, as one line of JSON:
// tests/cluster/slurm_cluster.py starts it as the tasks of Slurm's job steps.

#include <iostream>
#include <optional>
#include <string>

#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/cluster/resolve_cluster.h"
#include "tutti/cluster/task_roles.h"

int main() {
  try {
    const auto cluster = tutti::resolve_cluster();
    const tutti::ClusterSpec spec = cluster->cluster_spec();
    const auto type = cluster->task_type();
    const auto id = cluster->task_id();
    // In one piece, because many tasks write to the same output.
    std::cout << tutti::message("{\"rank\": ", tutti::id_in_cluster(spec, type, id),
                                ", \"task\": \"", type.value_or("none"), ' ', id.value_or(0),
                                "\", \"node\": \"", tutti::read_env("SLURMD_NODENAME").value_or(""),
                                "\", \"cluster\": ", spec.to_json(), ", \"banner\": \"",
                                tutti::cluster_banner(*cluster, 1), "\"}\n")
              << std::flush;
    return 0;
  } catch (const tutti::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
