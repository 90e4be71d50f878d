// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a .npy and as a .npz file.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/data/formats/npy_file.h"

#include "tests/fuzz/expect_only_errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::data;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  tutti::test::expect_only_errors([&] { parse_npy(bytes); });
  tutti::test::expect_only_errors([&] {
    const NpzFile file = NpzFile::from_memory(bytes);
    for (const std::string& name : file.names()) {
      tutti::test::expect_only_errors([&] { file.read(name); });
    }
  });
  return 0;
}
