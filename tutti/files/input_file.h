// SPDX-License-Identifier: Apache-2.0
//
// Reads a file, or bytes in memory, from front to back: plain, gzip or zlib. The readers of
// the formats stand on it; what it hands out are views of its buffer. Nothing is allocated
// on the word of a length field: memory grows with the bytes that are really there.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/base/error.h"

namespace tutti::data {

enum class Compression {
  /// gzip if the file begins as gzip files do, otherwise none.
  /// A file whose name ends in .gz but that does not begin so is kDataLoss: it is probably
  /// damaged.
  kAuto,
  kNone,
  kGzip,  ///< One member or several, as gzip(1) and cat make them.
  kZlib,
};

const char* to_string(Compression compression);

struct InputFileOptions {
  Compression compression = Compression::kAuto;
  size_t buffer_size = size_t{1} << 18;
  /// The longest line, or run of bytes at once, that is accepted.
  uint64_t max_read_size = uint64_t{1} << 31;
  std::string reader = "InputFile";  ///< Who speaks in error messages.
};

/// Not thread-safe.
///
/// Errors: kNotFound if there is no such file; kDataLoss, with the file and the offset, if
/// it ends too early or its compressed bytes are damaged; kFailedPrecondition for anything
/// else the system refuses, with its words.
class InputFile {
 public:
  explicit InputFile(const std::string& path, InputFileOptions options = {});
  /// Reads `bytes`, which must outlive it; `name` stands for the path in messages.
  static InputFile from_memory(std::string_view bytes, std::string name = "memory",
                               InputFileOptions options = {});

  InputFile(InputFile&&) noexcept;
  InputFile& operator=(InputFile&&) noexcept;
  ~InputFile();

  /// The next bytes: `size` of them, or what is left of the file. Views stay valid until
  /// the next call. peek() does not move.
  std::string_view peek(size_t size);
  std::string_view read(size_t size);

  /// Exactly `size` bytes, which the message calls `what`; throws kDataLoss if there are
  /// fewer.
  std::string_view read_exactly(uint64_t size, std::string_view what);
  /// The same, into the caller's memory.
  void read_exactly(void* to, uint64_t size, std::string_view what);

  /// The next line without its line feed; false at the end. The last line need not have
  /// one. A carriage return before it is left to the caller.
  bool read_line(std::string_view& line);

  bool at_end() { return peek(1).empty(); }

  /// How many bytes were read, after decompression.
  uint64_t offset() const;

  /// Goes to an offset; beyond the end is kDataLoss. A compressed file is decompressed up
  /// to there, from the start if need be. Going back is kFailedPrecondition for pipes.
  void seek(uint64_t offset);

  /// No more than this many bytes follow: exact for plain files and memory, for compressed
  /// ones the most that deflate can make of the rest, for pipes the largest number.
  uint64_t remaining_at_most() const;

  /// Decompresses what follows. For formats that find out by a look at their first bytes;
  /// the file must be opened with kNone and nothing read yet.
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
