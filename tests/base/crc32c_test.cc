// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/crc32c.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tutti {
namespace {

// Works bit by bit, as the polynomial is defined.
uint32_t plain_crc(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

struct KnownCrc {
  std::string bytes;
  uint32_t crc;
  uint32_t masked;
};

TEST(Crc32c, MatchesKnownValues) {
  const KnownCrc known[] = {{"", 0x00000000, 0xa282ead8},
                            {"a", 0xc1d04330, 0x28e46e78},
                            {"123456789", 0xe3069283, 0xc78ab0e5},
                            {std::string(32, '\0'), 0x8a9136aa, 0x0fd7fffa},
                            {std::string(32, '\xff'), 0x62a8ab43, 0xf909b029}};
  for (const KnownCrc& each : known) {
    EXPECT_EQ(crc32c(each.bytes.data(), each.bytes.size()), each.crc);
    EXPECT_EQ(internal::crc32c_by_table(each.bytes.data(), each.bytes.size(), 0), each.crc);
    EXPECT_EQ(mask_crc32c(each.crc), each.masked);
    EXPECT_EQ(unmask_crc32c(each.masked), each.crc);
  }
}

TEST(Crc32c, AllImplementationsAgreeForEveryLengthAndAlignment) {
  std::mt19937_64 random(7);
  std::string bytes(40000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  std::vector<size_t> lengths;
  for (size_t length = 0; length < 70; ++length) lengths.push_back(length);
  // These lengths surround those at which the three streams set in.
  for (const size_t near : {size_t{768}, size_t{1536}, size_t{12288}, size_t{24576}}) {
    for (size_t length = near - 9; length <= near + 9; ++length) lengths.push_back(length);
  }
  for (const size_t length : lengths) {
    const size_t offset = length % 11;
    const std::string part = bytes.substr(offset, length);
    const uint32_t expected = plain_crc(part);
    ASSERT_EQ(crc32c(bytes.data() + offset, length), expected) << length;
    ASSERT_EQ(internal::crc32c_by_table(bytes.data() + offset, length, 0), expected) << length;
  }
}

TEST(Crc32c, ContinuesFromASeed) {
  std::string bytes(20000, 'x');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 3);
  const uint32_t whole = crc32c(bytes.data(), bytes.size());
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{799}, size_t{12289}, bytes.size()}) {
    const uint32_t first = crc32c(bytes.data(), cut);
    EXPECT_EQ(crc32c(bytes.data() + cut, bytes.size() - cut, first), whole);
    EXPECT_EQ(internal::crc32c_by_table(bytes.data() + cut, bytes.size() - cut, first), whole);
  }
}

}  // namespace
}  // namespace tutti
