// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as TF_CONFIG, and as the JSON of a cluster or a server. What can be read must survive
// being written and read again, and whatever cluster it is, asking for roles gives answers or
// errors.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tutti/cluster/cluster_def.h"
#include "tutti/cluster/internal/cluster_json.h"
#include "tutti/cluster/task_roles.h"

#include "tests/fuzz/expect_only_errors.h"

namespace {

void use_cluster(const tutti::ClusterSpec& spec) {
  if (tutti::ClusterSpec::from_json(spec.to_json()) != spec) std::abort();
  for (const std::string& job : spec.jobs()) {
    if (spec.job_tasks(job).size() < spec.task_indices(job).size()) std::abort();
  }
}

template <class Def>
void use_def(std::string_view text) {
  const Def def = Def::from_json(text);
  if (Def::from_json(def.to_json()) != def) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  tutti::test::expect_only_errors([&] { use_cluster(tutti::ClusterSpec::from_json(text)); });
  tutti::test::expect_only_errors([&] { use_def<tutti::ClusterDef>(text); });
  tutti::test::expect_only_errors([&] { use_def<tutti::ClusterDeviceFilters>(text); });
  tutti::test::expect_only_errors([&] { use_def<tutti::ServerDef>(text); });
  tutti::test::expect_only_errors([&] {
    const tutti::internal::TfConfig config = tutti::internal::parse_tf_config(text);
    use_cluster(config.cluster);
    tutti::test::expect_only_errors([&] { tutti::coordination_leader(config.cluster); });
    tutti::test::expect_only_errors(
        [&] { tutti::id_in_cluster(config.cluster, config.task_type, config.task_id); });
    tutti::test::expect_only_errors(
        [&] { tutti::is_chief(config.cluster, config.task_type, config.task_id); });
  });
  return 0;
}
