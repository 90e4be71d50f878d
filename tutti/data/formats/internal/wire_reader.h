// SPDX-License-Identifier: Apache-2.0
//
// The wire format of protocol buffers: fields with a number and a wire type. Every read is checked
// against the end; malformed bytes are reported by `false` or by failed().

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::data {

enum class WireType : uint8_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

/// Iterates over the fields of one message:
///
///   WireReader reader(message);
///   while (reader.next()) {
///     if (reader.is(1, WireType::kBytes)) use(reader.bytes());
///   }
///   if (reader.failed()) ...
///
/// After next() the whole field has been read; views point into the message. Not thread-safe.
class WireReader {
 public:
  explicit WireReader(std::string_view message)
      : at_(message.data()), end_(message.data() + message.size()) {}

  /// The next field; false at the end and when the bytes are malformed.
  bool next() {
    if (at_ == end_ || failed_) return false;
    uint64_t tag = 0;
    if (!varint(tag) || tag > UINT32_MAX || tag < 8) return fail();
    number_ = static_cast<uint32_t>(tag >> 3);
    type_ = static_cast<WireType>(tag & 7);
    return value(0) || fail();
  }

  bool failed() const { return failed_; }
  uint32_t number() const { return number_; }
  bool is(uint32_t number, WireType type) const { return number_ == number && type_ == type; }

  /// The value of the field: one of these, by its wire type.
  uint64_t varint() const { return varint_; }
  std::string_view bytes() const { return bytes_; }  ///< also the bytes of the fixed types

  /// Where the next field begins.
  const char* position() const { return at_; }

  /// Reads a varint of at most ten bytes; moves `at` past it.
  static bool read_varint(const char*& at, const char* end, uint64_t& value) {
    if (at != end && static_cast<uint8_t>(*at) < 0x80) {
      value = static_cast<uint8_t>(*at++);
      return true;
    }
    uint64_t sum = 0;
    for (int shift = 0; shift < 70 && at != end; shift += 7) {
      const auto byte = static_cast<uint8_t>(*at++);
      sum |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        value = sum;
        return true;
      }
    }
    return false;
  }

 private:
  static constexpr int kMaxGroupDepth = 100;

  bool fail() {
    failed_ = true;
    return false;
  }

  bool varint(uint64_t& value) { return read_varint(at_, end_, value); }

  bool take(uint64_t size) {
    if (size > static_cast<uint64_t>(end_ - at_)) return false;
    bytes_ = std::string_view(at_, size);
    at_ += size;
    return true;
  }

  bool value(int depth) {
    uint64_t size = 0;
    switch (type_) {
      case WireType::kVarint:
        return varint(varint_);
      case WireType::kFixed64:
        return take(8);
      case WireType::kFixed32:
        return take(4);
      case WireType::kBytes:
        return varint(size) && take(size);
      case WireType::kStartGroup:
        return depth < kMaxGroupDepth && skip_group(depth);
      default:
        return false;
    }
  }

  // Groups are obsolete, but may occur as unknown fields.
  bool skip_group(int depth) {
    const uint32_t group = number_;
    uint64_t tag = 0;
    while (varint(tag) && tag <= UINT32_MAX && tag >= 8) {
      number_ = static_cast<uint32_t>(tag >> 3);
      type_ = static_cast<WireType>(tag & 7);
      if (type_ == WireType::kEndGroup) {
        const bool matches = number_ == group;
        type_ = WireType::kStartGroup;
        return matches;
      }
      if (!value(depth + 1)) return false;
    }
    return false;
  }

  const char* at_;
  const char* end_;
  uint32_t number_ = 0;
  WireType type_ = WireType::kVarint;
  uint64_t varint_ = 0;
  std::string_view bytes_;
  bool failed_ = false;
};

inline void append_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>((value & 0x7f) | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

/// Appends a field of bytes: a string or a nested message.
inline void append_field(std::string& out, uint32_t number, std::string_view bytes) {
  append_varint(out, (uint64_t{number} << 3) | static_cast<uint64_t>(WireType::kBytes));
  append_varint(out, bytes.size());
  out += bytes;
}

}  // namespace tutti::data
