// SPDX-License-Identifier: Apache-2.0
//
// Reads a file, or bytes in memory, sequentially: plain, gzip or zlib. The readers of the
// formats are built on it; it returns views of its buffer. It never allocates memory because
// a length field claims so: memory grows with the bytes that are actually present.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/base/error.h"

namespace tutti::data {

enum class Compression {
  /// gzip if the file begins with gzip's magic bytes, otherwise none. A file without them
  /// whose name ends in .gz is probably damaged and throws kDataLoss.
  kAuto,
  kNone,
  kGzip,  ///< One or several members, as gzip(1) and cat write them.
  kZlib,
};

const char* to_string(Compression compression);

struct InputFileOptions {
  Compression compression = Compression::kAuto;
  size_t buffer_size = size_t{1} << 18;
  /// The longest line, or single read_exactly(), that is accepted.
  uint64_t max_read_size = uint64_t{1} << 31;
  std::string reader = "InputFile";  ///< The name that error messages begin with.
};

/// Not thread-safe.
///
/// Throws kNotFound if there is no such file; kDataLoss, with the file and the offset, if
/// it is truncated or its compressed bytes are damaged; kFailedPrecondition, with the
/// system's message, for any other failed system call.
class InputFile {
 public:
  explicit InputFile(const std::string& path, InputFileOptions options = {});
  /// Reads `bytes`, which must outlive it; messages show `name` as the path.
  static InputFile from_memory(std::string_view bytes, std::string name = "memory",
                               InputFileOptions options = {});

  InputFile(InputFile&&) noexcept;
  InputFile& operator=(InputFile&&) noexcept;
  ~InputFile();

  /// The next `size` bytes, or the rest of the file. Views stay valid until the next call.
  /// peek() does not advance.
  std::string_view peek(size_t size);
  std::string_view read(size_t size);

  /// Exactly `size` bytes, which the message calls `what`; throws kDataLoss if there are
  /// fewer.
  std::string_view read_exactly(uint64_t size, std::string_view what);
  /// The same, into the caller's memory.
  void read_exactly(void* to, uint64_t size, std::string_view what);

  /// The next line without its line feed, which the last line may lack; false at the end.
  /// A carriage return before the line feed is left to the caller.
  bool read_line(std::string_view& line);

  bool at_end() { return peek(1).empty(); }

  /// The number of bytes read so far, after decompression.
  uint64_t offset() const;

  /// Moves to an offset; throws kDataLoss if it is beyond the end. A compressed file is
  /// decompressed up to there, from the start if necessary. Throws kFailedPrecondition for a
  /// backward seek in a pipe.
  void seek(uint64_t offset);

  /// An upper bound on the bytes that follow: exact for plain files and memory, the most
  /// that deflate can produce for compressed ones, the largest number for pipes.
  uint64_t remaining_at_most() const;

  /// Decompresses from here on. For formats that detect compression from their first bytes;
  /// the file must have been opened with kNone, and nothing read yet.
  void decompress(Compression compression);

  const std::string& path() const;

  /// "Reader: path: at byte 12: text"
  Error data_loss(uint64_t offset, std::string_view text) const;
  Error error(ErrorCode code, std::string_view text) const;

 private:
  struct Impl;
  explicit InputFile(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

namespace internal {

/// The error for a failed system call: kNotFound if the file is missing, kDataLoss for an
/// input/output error, otherwise kFailedPrecondition. "who: cannot open "path": text."
Error system_error(std::string_view who, std::string_view action, std::string_view path,
                   int error_number);

}  // namespace internal

}  // namespace tutti::data
