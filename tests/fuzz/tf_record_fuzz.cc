// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a TFRecord file: plain, and as gzip and zlib would read them.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/data/formats/tf_record_file.h"

#include "tests/fuzz/expect_only_errors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::data;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const Compression kind : {Compression::kNone, Compression::kGzip, Compression::kZlib}) {
    for (const bool skip_corrupt : {false, true}) {
      tutti::test::expect_only_errors([&] {
        TfRecordReader reader(InputFile::from_memory(bytes, "fuzz", {.compression = kind}),
                              {.skip_corrupt = skip_corrupt});
        std::string_view record;
        uint64_t last = 0;
        while (reader.next(record)) last = reader.position();
        if (last <= size && kind == Compression::kNone) reader.seek(last);
      });
    }
  }
  return 0;
}
