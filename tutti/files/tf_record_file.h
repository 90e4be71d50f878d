// SPDX-License-Identifier: Apache-2.0
//
// TFRecord files: records of arbitrary bytes, each with checksums of its length and its data.
//
//   u64 length | u32 masked crc32c of the length | data | u32 masked crc32c of the data
//
// Numbers are little endian; there is no header and no index. Compression applies to the whole
// file.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/files/input_file.h"
#include "tutti/files/output_file.h"

namespace tutti::data {

struct TfRecordReaderOptions {
  /// kAuto distinguishes plain, gzip and zlib files by their first bytes.
  Compression compression = Compression::kAuto;
  bool check_data = true;  ///< Verify the checksum of the data, not only that of the length.
  /// Records whose data do not match their checksum are skipped and counted. A damaged
  /// length is always an error: the next record cannot be found.
  bool skip_corrupt = false;
  uint64_t max_record_size = uint64_t{1} << 31;
  size_t buffer_size = size_t{1} << 18;
};

/// Reads one file sequentially. Not thread-safe.
///
/// Throws kNotFound for a missing file, and kDataLoss for a truncated or damaged one, with the
/// file, the offset, and both checksums.
class TfRecordReader {
 public:
  explicit TfRecordReader(const std::string& path, TfRecordReaderOptions options = {});
  /// Reads from `file`, which determines the compression; options.compression is ignored.
  explicit TfRecordReader(InputFile file, TfRecordReaderOptions options = {});

  /// The next record, false at the end. The view is valid until the next call.
  bool next(std::string_view& record);
  bool next(std::string& record);

  /// The offset of the next record, for seek(). Offsets count bytes after decompression, so
  /// seek() decompresses a compressed file up to the offset.
  uint64_t position() const { return file_.offset(); }
  void seek(uint64_t position) { file_.seek(position); }

  /// The number of records skipped because of skip_corrupt.
  uint64_t skipped() const { return skipped_; }

 private:
  InputFile file_;
  TfRecordReaderOptions options_;
  uint64_t skipped_ = 0;
};

struct TfRecordWriterOptions {
  Compression compression = Compression::kNone;
  int compression_level = -1;
};

/// Writes one file. Not thread-safe. A failed system call throws an error with the system's
/// message; call close() to get the last one.
class TfRecordWriter {
 public:
  explicit TfRecordWriter(const std::string& path, TfRecordWriterOptions options = {});

  void write(std::string_view record);
  void flush() { file_.flush(); }
  void close() { file_.close(); }

 private:
  OutputFile file_;
};

}  // namespace tutti::data
