// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/rank_resolver.h"

#include <utility>

namespace tutti {

ClusterSpec RankClusterResolver::cluster_spec() const {
  const int size = ranks().size;
  std::map<int, std::string> workers;
  for (int rank = 0; rank < size; ++rank) workers.emplace_hint(workers.end(), rank, "");
  workers[0] = rendezvous_address();
  return ClusterSpec::sparse({{"worker", std::move(workers)}});
}

}  // namespace tutti
