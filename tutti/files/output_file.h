// SPDX-License-Identifier: Apache-2.0
//
// Writes a file from front to back: plain, gzip or zlib. Every failure of the system is an
// error with its words; call close() to hear of the last one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/files/input_file.h"

namespace tutti::data {

struct OutputFileOptions {
  Compression compression = Compression::kNone;  ///< kAuto means kNone.
  int compression_level = -1;                    ///< 0 to 9, or -1 for zlib's default
  size_t buffer_size = size_t{1} << 18;
  std::string writer = "OutputFile";  ///< Who speaks in error messages.
};

/// Not thread-safe.
class OutputFile {
 public:
  /// Makes the file, or empties the one that is there.
  explicit OutputFile(const std::string& path, OutputFileOptions options = {});

  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;
  /// Closes the file. An error at this point can only be logged.
  ~OutputFile();

  void write(std::string_view bytes);

  /// Hands everything to the system, so that other processes see it.
  void flush();

  /// Writes the rest and closes. Later calls throw kFailedPrecondition, except close().
  void close();

  /// How many bytes were written, before compression.
  uint64_t offset() const;
  const std::string& path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::data
