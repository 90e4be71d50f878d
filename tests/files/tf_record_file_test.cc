// SPDX-License-Identifier: Apache-2.0

#include "tutti/files/tf_record_file.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/damage.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tutti::data {
namespace {

using test::from_hex;
using test::read_file;
using test::TempFolder;
using test::write_file;
using Records = std::vector<std::string>;

constexpr Compression kRecordKinds[] = {Compression::kNone, Compression::kGzip, Compression::kZlib};
constexpr std::string_view kHello = "0500000000000000 eab2043e 68656c6c6f bb1f1c19";
constexpr std::string_view kEmpty = "0000000000000000 29039807 d8ea82a2";

void write_records(const std::string& path, const Records& records,
                   Compression kind = Compression::kNone) {
  TfRecordWriter writer(path, {.compression = kind});
  for (const std::string& record : records) writer.write(record);
  writer.close();
}

Records all_records(TfRecordReader& reader) {
  Records records;
  std::string record;
  while (reader.next(record)) records.push_back(record);
  return records;
}

TfRecordReader over(const std::string& bytes, TfRecordReaderOptions options = {}) {
  return TfRecordReader(
      InputFile::from_memory(bytes, "memory.tfrecord",
                             {.compression = Compression::kNone, .reader = "TfRecordReader"}),
      options);
}

Records sample_records() {
  std::mt19937_64 random(3);
  Records records = {"hello", "", "x"};
  for (const size_t size : {size_t{100}, size_t{5000}, size_t{300000}, size_t{17}}) {
    std::string record(size, '\0');
    for (char& byte : record) byte = static_cast<char>(random() % 7);
    records.push_back(record);
  }
  return records;
}

TEST(TfRecordWriter, WritesKnownBytes) {
  TempFolder folder;
  write_records(folder.path("x"), {"hello", ""});
  EXPECT_EQ(read_file(folder.path("x")), from_hex(kHello) + from_hex(kEmpty));
}

TEST(TfRecordReader, ReadsBackWhatWasWritten) {
  TempFolder folder;
  const Records records = sample_records();
  for (const Compression kind : kRecordKinds) {
    write_records(folder.path("x"), records, kind);
    for (const size_t buffer : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
      TfRecordReader asked(folder.path("x"), {.compression = kind, .buffer_size = buffer});
      EXPECT_EQ(all_records(asked), records) << to_string(kind);
      TfRecordReader guessed(folder.path("x"), {.buffer_size = buffer});
      EXPECT_EQ(all_records(guessed), records) << to_string(kind);
    }
  }
}

TEST(TfRecordReader, FindsNoRecordsInAnEmptyFile) {
  TempFolder folder;
  write_file(folder.path("x"), "");
  TfRecordReader reader(folder.path("x"));
  EXPECT_EQ(all_records(reader), Records{});
  write_records(folder.path("x"), {}, Compression::kGzip);
  TfRecordReader packed(folder.path("x"));
  EXPECT_EQ(all_records(packed), Records{});
}

TEST(TfRecordReader, DoesNotMistakeALengthForGzip) {
  TempFolder folder;
  const Records records = {std::string(0x088b1f, 'x'), std::string(0x9c78, 'y')};
  write_records(folder.path("x"), records);
  ASSERT_EQ(read_file(folder.path("x")).substr(0, 3), "\x1f\x8b\x08");
  TfRecordReader reader(folder.path("x"));
  EXPECT_EQ(all_records(reader), records);
}

TEST(TfRecordReader, SeeksBackToAPosition) {
  TempFolder folder;
  const Records records = sample_records();
  for (const Compression kind : kRecordKinds) {
    write_records(folder.path("x"), records, kind);
    TfRecordReader reader(folder.path("x"), {.compression = kind, .buffer_size = 512});
    std::vector<uint64_t> positions;
    std::string_view record;
    do {
      positions.push_back(reader.position());
    } while (reader.next(record));
    ASSERT_EQ(positions.size(), records.size() + 1);
    for (size_t i = records.size() + 1; i-- > 0;) {
      TfRecordReader other(folder.path("x"), {.compression = kind});
      other.seek(positions[i]);
      EXPECT_EQ(all_records(other), Records(records.begin() + static_cast<long>(i), records.end()));
      reader.seek(positions[i]);
      EXPECT_EQ(reader.next(record), i < records.size());
      if (i < records.size()) {
        EXPECT_EQ(record, records[i]);
      }
    }
  }
}

TEST(TfRecordReader, StopsAtADamagedLength) {
  std::string bytes = from_hex(kEmpty) + from_hex(kHello);
  bytes[16] = 4;
  for (const TfRecordReaderOptions& options :
       {TfRecordReaderOptions{}, {.skip_corrupt = true}, {.check_data = false}}) {
    TfRecordReader reader = over(bytes, options);
    std::string record;
    EXPECT_TRUE(reader.next(record));
    EXPECT_TUTTI_ERROR(reader.next(record), ErrorCode::kDataLoss,
                       "TfRecordReader: memory.tfrecord: at byte 16: the length of a record",
                       "expected e4094dc0", ", not a TFRecord file");
  }
}

TEST(TfRecordReader, ReportsOrSkipsDamagedData) {
  std::string bytes = from_hex(kHello) + from_hex(kHello) + from_hex(kEmpty);
  bytes[21 + 13] = 'a';
  std::string record;
  TfRecordReader strict = over(bytes);
  EXPECT_TRUE(strict.next(record));
  EXPECT_TUTTI_ERROR(strict.next(record), ErrorCode::kDataLoss, "at byte 21: the record of 5 bytes",
                     "its checksum is e1538abf, expected 9a71bb4c", "Set skip_corrupt");
  TfRecordReader lenient = over(bytes, {.skip_corrupt = true});
  EXPECT_EQ(all_records(lenient), (Records{"hello", ""}));
  EXPECT_EQ(lenient.skipped(), 1u);
  TfRecordReader blind = over(bytes, {.check_data = false});
  EXPECT_EQ(all_records(blind), (Records{"hello", "hallo", ""}));
}

TEST(TfRecordReader, DoesNotTrustAHugeLength) {
  TempFolder folder;
  // This record claims 2^62 bytes, with the right checksum of its length.
  write_file(folder.path("x"), from_hex("0000000000000040 7f85f000") + "data");
  std::string record;
  TfRecordReader reader(folder.path("x"));
  EXPECT_TUTTI_ERROR(reader.next(record), ErrorCode::kDataLoss, "at byte 0",
                     "4611686018427387904 bytes, more than max_record_size");
  write_records(folder.path("y"), {std::string(100, 'x')});
  TfRecordReader limited(folder.path("y"), {.max_record_size = 99});
  EXPECT_TUTTI_ERROR(limited.next(record), ErrorCode::kDataLoss, "a record has 100 bytes",
                     "max_record_size, 99");
  TfRecordReader enough(folder.path("y"), {.max_record_size = 100, .buffer_size = 8});
  EXPECT_TRUE(enough.next(record));
  // This length overflows when the size of the checksum is added.
  const std::string largest = from_hex("ffffffffffffffff a67b113a") + "data";
  TfRecordReader unlimited = over(largest, {.max_record_size = UINT64_MAX});
  EXPECT_TUTTI_ERROR(unlimited.next(record), ErrorCode::kDataLoss, "18446744073709551615 bytes");
}

TEST(TfRecordReader, DetectsTruncationExceptBetweenRecords) {
  const std::string bytes = from_hex(kHello) + from_hex(kEmpty) + from_hex(kHello);
  const size_t errors = test::truncate_everywhere(bytes, [](const std::string& part) {
    TfRecordReader reader = over(part);
    all_records(reader);
  });
  EXPECT_EQ(errors, bytes.size() - 3) << "at 0, 21 and 37 it ends between records";
}

TEST(TfRecordReader, DetectsAllDamage) {
  TempFolder folder;
  const Records records = {"hello", "", "a somewhat longer record, with text"};
  for (const Compression kind : kRecordKinds) {
    write_records(folder.path("x"), records, kind);
    const std::string bytes = read_file(folder.path("x"));
    test::damage_at_random(bytes, 3000, [&](const std::string& damaged) {
      TfRecordReader reader(InputFile::from_memory(damaged, "x", {.compression = kind}));
      const Records found = all_records(reader);
      // Only whole records may be lost or duplicated without an error.
      for (const std::string& record : found) {
        EXPECT_TRUE(std::find(records.begin(), records.end(), record) != records.end()) << record;
      }
    });
  }
}

TEST(TfRecordReader, NamesAMissingFile) {
  EXPECT_TUTTI_ERROR(TfRecordReader("/nowhere/x.tfrecord"), ErrorCode::kNotFound,
                     "TfRecordReader: cannot open \"/nowhere/x.tfrecord\": No such file");
}

TEST(TfRecordWriter, ReportsAFullDisk) {
  TfRecordWriter writer("/dev/full");
  writer.write("hello");
  EXPECT_TUTTI_ERROR(writer.close(), ErrorCode::kFailedPrecondition, "TfRecordWriter: cannot write",
                     "No space left on device");
}

}  // namespace
}  // namespace tutti::data
