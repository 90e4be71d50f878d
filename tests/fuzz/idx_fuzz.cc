// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as an IDX file.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/data/formats/idx_file.h"

#include "tests/fuzz/expect_only_errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::data;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  tutti::test::expect_only_errors([&] {
    InputFile file = InputFile::from_memory(bytes, "fuzz");
    read_idx(file);
  });
  return 0;
}
