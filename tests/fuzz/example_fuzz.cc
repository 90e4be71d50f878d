// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a tf.train.Example.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/formats/example.h"

#include "tests/fuzz/expect_only_errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::data;
  static const ExampleSpec fixed = ExampleSpec()
                                       .fixed<float>("x", {2}, 0.f)
                                       .fixed<int64_t>("y", {}, 0)
                                       .bytes("s", "")
                                       .fixed<std::string>("t", {2}, "");
  static const ExampleSpec variable =
      ExampleSpec().variable<float>("x").variable<int64_t>("y").variable<std::string>("s");
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  tutti::test::expect_only_errors([&] { fixed.parse(bytes); });
  tutti::test::expect_only_errors([&] {
    fixed.parse_batch(std::vector<std::string_view>{bytes, bytes});
  });
  tutti::test::expect_only_errors([&] { variable.parse(bytes); });
  return 0;
}
