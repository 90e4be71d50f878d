// SPDX-License-Identifier: Apache-2.0

#include "tutti/files/tf_record_file.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "tutti/base/crc32c.h"
#include "tutti/files/byte_order.h"

namespace tutti::data {

namespace {

constexpr size_t kRecordHeaderSize = 12;
constexpr size_t kRecordFooterSize = 4;
constexpr uint64_t kLargestRecord = uint64_t{1} << 62;  // A larger one would overflow.

std::string hex_crc(uint32_t crc) {
  std::array<char, 12> text = {};
  std::snprintf(text.data(), text.size(), "%08x", crc);
  return text.data();
}

bool is_record_header(std::string_view bytes) {
  return bytes.size() >= kRecordHeaderSize &&
         load_little<uint32_t>(bytes.data() + 8) == mask_crc32c(crc32c(bytes.data(), 8));
}

bool is_zlib_header(std::string_view bytes) {
  if (bytes.size() < 2 || (bytes[0] & 0x0f) != 8) return false;
  return load_big<uint16_t>(bytes.data()) % 31 == 0;
}

// A plain file may begin with gzip's magic bytes by chance, but then the checksum of its length
// matches.
Compression compression_of(std::string_view start) {
  if (start.empty() || is_record_header(start)) return Compression::kNone;
  if (start.substr(0, 3) == "\x1f\x8b\x08") return Compression::kGzip;
  return is_zlib_header(start) ? Compression::kZlib : Compression::kNone;
}

InputFile open_records(const std::string& path, const TfRecordReaderOptions& options) {
  const bool guess = options.compression == Compression::kAuto;
  InputFile file(
      path, {.compression = guess ? Compression::kNone : options.compression,
             .buffer_size = options.buffer_size,
             .max_read_size = std::min(options.max_record_size, kLargestRecord) + kRecordHeaderSize,
             .reader = "TfRecordReader"});
  if (guess) file.decompress(compression_of(file.peek(kRecordHeaderSize)));
  return file;
}

}  // namespace

TfRecordReader::TfRecordReader(const std::string& path, TfRecordReaderOptions options)
    : TfRecordReader(open_records(path, options), options) {}

TfRecordReader::TfRecordReader(InputFile file, TfRecordReaderOptions options)
    : file_(std::move(file)), options_(options) {
  options_.max_record_size = std::min(options_.max_record_size, kLargestRecord);
}

bool TfRecordReader::next(std::string_view& record) {
  while (true) {
    const uint64_t start = file_.offset();
    if (file_.peek(kRecordHeaderSize).empty()) return false;
    const std::string_view header = file_.read_exactly(kRecordHeaderSize, "a record's header");
    const auto length = load_little<uint64_t>(header.data());
    const auto length_crc = unmask_crc32c(load_little<uint32_t>(header.data() + 8));
    const uint32_t found_crc = crc32c(header.data(), 8);
    if (length_crc != found_crc) {
      throw file_.data_loss(
          start, message("the length of a record is damaged: its checksum is ", hex_crc(found_crc),
                         ", expected ", hex_crc(length_crc),
                         ". The file is corrupt, not a TFRecord file, or compressed in a different "
                         "format than requested."));
    }
    if (length > options_.max_record_size) {
      throw file_.data_loss(start, message("a record has ", length, " bytes, more than ",
                                           "max_record_size, ", options_.max_record_size, "."));
    }
    const std::string_view body = file_.read_exactly(length + kRecordFooterSize, "a record");
    record = body.substr(0, length);
    if (!options_.check_data) return true;
    const auto data_crc = unmask_crc32c(load_little<uint32_t>(body.data() + length));
    const uint32_t actual_crc = crc32c(record.data(), record.size());
    if (data_crc == actual_crc) return true;
    if (!options_.skip_corrupt) {
      throw file_.data_loss(start,
                            message("the record of ", length, " bytes is damaged: its checksum is ",
                                    hex_crc(actual_crc), ", expected ", hex_crc(data_crc),
                                    ". Set skip_corrupt to skip such records."));
    }
    ++skipped_;
  }
}

bool TfRecordReader::next(std::string& record) {
  std::string_view view;
  if (!next(view)) return false;
  record.assign(view);
  return true;
}

TfRecordWriter::TfRecordWriter(const std::string& path, TfRecordWriterOptions options)
    : file_(path, {.compression = options.compression,
                   .compression_level = options.compression_level,
                   .writer = "TfRecordWriter"}) {}

void TfRecordWriter::write(std::string_view record) {
  std::array<char, kRecordHeaderSize> header = {};
  store_little<uint64_t>(header.data(), record.size());
  store_little<uint32_t>(header.data() + 8, mask_crc32c(crc32c(header.data(), 8)));
  std::array<char, kRecordFooterSize> footer = {};
  store_little<uint32_t>(footer.data(), mask_crc32c(crc32c(record.data(), record.size())));
  file_.write({header.data(), header.size()});
  file_.write(record);
  file_.write({footer.data(), footer.size()});
}

}  // namespace tutti::data
