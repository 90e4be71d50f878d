// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a CSV file, with typed columns and as text.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/formats/csv_file.h"

#include "tests/fuzz/expect_only_errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::data;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  tutti::test::expect_only_errors([&] {
    CsvReader reader(InputFile::from_memory(bytes, "fuzz"), {.header = false});
    std::vector<std::string_view> fields;
    while (reader.next_fields(fields)) {
    }
  });
  tutti::test::expect_only_errors([&] {
    CsvReader reader(InputFile::from_memory(bytes, "fuzz"),
                     {.columns = {csv_column<int64_t>("i", 0), csv_column<float>("f", 0.f),
                                  csv_column<double>("d", 0.), csv_column<bool>("b", false),
                                  csv_column<std::string>("s")}});
    CsvRow row;
    while (reader.next(row)) {
    }
  });
  return 0;
}
