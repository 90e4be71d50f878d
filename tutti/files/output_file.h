// SPDX-License-Identifier: Apache-2.0
//
// Writes a file sequentially: plain, gzip or zlib. Every failed system call throws an error with
// the system's message; call close() to get the last one.

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
  std::string writer = "OutputFile";  ///< The name that error messages begin with.
};

/// Not thread-safe.
class OutputFile {
 public:
  /// Creates the file, or truncates an existing one.
  explicit OutputFile(const std::string& path, OutputFileOptions options = {});

  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;
  /// Closes the file. An error at this point can only be logged.
  ~OutputFile();

  void write(std::string_view bytes);

  /// Passes everything written so far to the system, so that other processes see it.
  void flush();

  /// Writes the rest and closes. Later calls throw kFailedPrecondition, except close().
  void close();

  /// The number of bytes written so far, before compression.
  uint64_t offset() const;
  const std::string& path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::data
