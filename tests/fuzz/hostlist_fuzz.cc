// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as Slurm's list of hosts and as its tasks per node. Whatever is named, there is a limit
// to how much it is.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tutti/cluster/internal/hostlist.h"

#include "tests/fuzz/expect_only_errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  tutti::test::expect_only_errors([&] {
    const auto hosts = tutti::internal::expand_hostlist("fuzz", text);
    if (hosts.empty() || hosts.size() > tutti::internal::kMostHosts) std::abort();
    for (const std::string& host : hosts) {
      if (host.empty() || host.size() > 253) std::abort();
    }
  });
  tutti::test::expect_only_errors([&] {
    const auto tasks = tutti::internal::expand_tasks_per_node("fuzz", text);
    if (tasks.empty() || tasks.size() > tutti::internal::kMostHosts) std::abort();
  });
  return 0;
}
