// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a page of the list of pods that the API of Kubernetes returns.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tutti/cluster/internal/pod_list.h"

#include "tests/fuzz/expect_only_errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  tutti::test::expect_only_errors([&] {
    for (const auto& pod : tutti::internal::parse_pod_page("fuzz", text).pods) {
      if (pod.name.empty()) std::abort();
    }
  });
  return 0;
}
