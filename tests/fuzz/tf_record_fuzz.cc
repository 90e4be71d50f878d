// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a TFRecord file: plain, and as gzip and zlib would read them. What comes out is
// compared with a plain reader below, which knows the format and nothing else.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/files/tf_record_file.h"

#include "tests/fuzz/expect_only_errors.h"

namespace {

using namespace tutti::data;

// Much less than by default: filling it would be most of the work, and more of it is refilled.
constexpr size_t kBuffer = 256;
constexpr uint64_t kMaxRecord = uint64_t{1} << 31;

struct Records {
  std::vector<std::string> records = {};
  uint64_t skipped = 0;
  bool damaged = false;  // it ended with an error

  bool operator==(const Records&) const = default;
};

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] % 2 * 0x82f63b78);
  }
  return table;
}

uint64_t masked_crc(std::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 255];
  crc = ~crc;
  return static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8);
}

Records read_plainly(std::string_view bytes, const TfRecordReaderOptions& options) {
  Records found;
  while (!bytes.empty()) {
    found.damaged = true;
    if (bytes.size() < 12) return found;
    const uint64_t length = little_endian(bytes.substr(0, 8));
    if (little_endian(bytes.substr(8, 4)) != masked_crc(bytes.substr(0, 8))) return found;
    if (length > kMaxRecord || length + 4 > bytes.size() - 12) return found;
    const std::string_view data = bytes.substr(12, length);
    const bool intact = little_endian(bytes.substr(12 + length, 4)) == masked_crc(data);
    bytes.remove_prefix(16 + length);
    found.damaged = false;
    if (intact || !options.check_data) {
      found.records.emplace_back(data);
    } else if (options.skip_corrupt) {
      ++found.skipped;
    } else {
      found.damaged = true;
      return found;
    }
  }
  return found;
}

InputFile open(std::string_view bytes, Compression kind) {
  return InputFile::from_memory(bytes, "fuzz", {.compression = kind, .buffer_size = kBuffer});
}

// Other bytes are refused at the first one, which is not worth the time of so many inputs.
bool may_begin(Compression kind, std::string_view bytes) {
  if (kind == Compression::kNone || bytes.empty()) return true;
  return kind == Compression::kGzip ? bytes[0] == '\x1f' : (bytes[0] & 0x0f) == 8;
}

// All that is in the file, or nothing if it is damaged.
std::optional<std::string> decompress(std::string_view bytes, Compression kind) {
  std::optional<std::string> content;
  tutti::test::expect_only_errors([&] {
    InputFile file = open(bytes, kind);
    std::string all;
    while (!file.at_end()) all += file.read(kBuffer);
    content = std::move(all);
  });
  return content;
}

Records read_by_library(std::string_view bytes, Compression kind,
                        const TfRecordReaderOptions& options) {
  Records found{.damaged = true};
  TfRecordReader reader(open(bytes, kind), options);
  tutti::test::expect_only_errors([&] {
    std::string_view record;
    while (reader.next(record)) found.records.emplace_back(record);
    found.damaged = false;
    const uint64_t end = reader.position();
    if (kind != Compression::kNone) return;
    reader.seek(end);
    if (end != bytes.size() || reader.next(record)) {
      throw std::logic_error("the position after the last record is not the end");
    }
  });
  found.skipped = reader.skipped();
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const Compression kind : {Compression::kNone, Compression::kGzip, Compression::kZlib}) {
    if (!may_begin(kind, bytes)) continue;
    const std::optional<std::string> content =
        kind == Compression::kNone ? std::string(bytes) : decompress(bytes, kind);
    for (const TfRecordReaderOptions& options :
         {TfRecordReaderOptions{}, {.skip_corrupt = true}, {.check_data = false}}) {
      const Records found = read_by_library(bytes, kind, options);
      if (content && !(found == read_plainly(*content, options))) {
        throw std::logic_error("the library reads other records than the plain reader");
      }
      if (!content && !found.damaged) throw std::logic_error("damage went unseen");
      if (!content) break;
    }
  }
  return 0;
}
