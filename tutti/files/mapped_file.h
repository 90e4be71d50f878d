// SPDX-License-Identifier: Apache-2.0
//
// Maps a whole file into memory. Writes change this process's memory, never the file.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tutti::data {

/// Immutable itself; threads that write to the memory must not overlap.
class MappedFile {
 public:
  /// Throws the errors of InputFile; their messages begin with `who`.
  MappedFile(const std::string& path, std::string_view who);
  ~MappedFile();

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tutti::data
