// SPDX-License-Identifier: Apache-2.0
//
// The position of an iterator as bytes. Every node writes a tag, then its own part, then that of
// its inputs; a reader checks each tag, so that a position of a different pipeline is rejected
// instead of misread. Numbers have the byte order of the machine. Nothing is executable. Nodes that
// pass their input through write nothing; docs/formats/position.md has the whole format.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/nest/element.h"

namespace tutti::data {

/// Appends the parts of a position. Not thread-safe.
class StateWriter {
 public:
  void tag(std::string_view name) { text(name); }
  void number(int64_t value);
  void text(std::string_view value);
  void element(const Element& element);

  std::string take() { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

/// Throws kDataLoss when bytes are missing, out of range or from a different pipeline. Not
/// thread-safe.
class StateReader {
 public:
  explicit StateReader(std::string_view bytes) : bytes_(bytes) {}

  void tag(std::string_view name);
  int64_t number();
  /// Reads a number between 0 and `limit`.
  int64_t count(int64_t limit);
  std::string text();
  Element element();

  /// Throws unless everything was read.
  void finish() const;

 private:
  std::string_view take(size_t size);

  std::string_view bytes_;
};

}  // namespace tutti::data
