// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/npy_file.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/damage.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensors.h"

namespace tutti::data {
namespace {

using test::bit_equal;
using test::random_tensor;
using test::read_file;
using test::TempFolder;
using test::tensor;
using test::write_file;

std::string npy_bytes(const std::string& dictionary, const std::string& data, int version = 1) {
  std::string bytes("\x93NUMPY", 6);
  bytes += static_cast<char>(version);
  bytes += '\0';
  bytes += static_cast<char>(dictionary.size() & 0xff);
  bytes += static_cast<char>(dictionary.size() >> 8);
  if (version > 1) bytes += std::string(2, '\0');
  return bytes + dictionary + data;
}

const std::string kSixBytes = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }";

TEST(NpyFile, ReadsWhatWasWritten) {
  TempFolder folder;
  const std::string path = folder.path("x.npy");
  for (const at::ScalarType dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble,
        at::kComplexFloat, at::kComplexDouble}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {1}, {5}, {0}, {2, 0, 3}, {3, 4, 5}}) {
      const at::Tensor written = random_tensor(shape, dtype, 1);
      write_npy(path, written);
      EXPECT_TRUE(bit_equal(read_npy(path), written)) << dtype;
      EXPECT_TRUE(bit_equal(parse_npy(read_file(path)), written)) << dtype;
    }
  }
  const at::Tensor truth = tensor({1, 0, 1}).gt(0);
  write_npy(path, truth);
  EXPECT_TRUE(bit_equal(read_npy(path), truth));
  const at::Tensor turned = random_tensor({3, 4}, at::kFloat, 2).t();
  write_npy(path, turned);
  EXPECT_TRUE(bit_equal(read_npy(path), turned));
}

TEST(NpyFile, WritesTheHeaderThatNumPyExpects) {
  TempFolder folder;
  write_npy(folder.path("x"), tensor({1.5f}));
  const std::string bytes = read_file(folder.path("x"));
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_EQ((bytes.size() - 4) % 64, 0u);
  EXPECT_NE(bytes.find("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"),
            std::string::npos);
  write_npy(folder.path("x"), tensor({1.5f}).reshape({}));
  EXPECT_NE(read_file(folder.path("x")).find("'shape': (), }"), std::string::npos);
}

TEST(NpyFile, TheTensorKeepsTheMappingAndDoesNotChangeTheFile) {
  TempFolder folder;
  const std::string path = folder.path("x.npy");
  write_npy(path, tensor({1.f, 2.f, 3.f}));
  const std::string before = read_file(path);
  at::Tensor read = read_npy(path);
  std::filesystem::remove(path);
  EXPECT_TRUE(bit_equal(read, tensor({1.f, 2.f, 3.f})));
  write_file(path, before);
  at::Tensor again = read_npy(path);
  again.fill_(7);
  EXPECT_TRUE(bit_equal(again, tensor({7.f, 7.f, 7.f})));
  EXPECT_EQ(read_file(path), before);
}

TEST(NpyFile, FortranOrderHasTheRightElements) {
  const at::Tensor read = parse_npy(
      npy_bytes("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", "\1\2\3\4\5\6"));
  EXPECT_TRUE(bit_equal(read, tensor<uint8_t>({1, 3, 5, 2, 4, 6}).reshape({2, 3})));
}

TEST(NpyFile, ReadsEveryVersionAndSpelling) {
  const at::Tensor expected = tensor<uint8_t>({1, 2, 3, 4, 5, 6}).reshape({2, 3});
  for (const int version : {1, 2, 3}) {
    EXPECT_TRUE(bit_equal(parse_npy(npy_bytes(kSixBytes, "\1\2\3\4\5\6", version)), expected));
  }
  for (const std::string text :
       {"{\"shape\":(2L,3L),\"fortran_order\":False,\"descr\":\"<u1\"}\n",
        "  { 'descr' : '|u1' , 'shape' : ( 2 , 3 , ) , 'fortran_order' : False }   \n"}) {
    EXPECT_TRUE(bit_equal(parse_npy(npy_bytes(text, "\1\2\3\4\5\6")), expected)) << text;
  }
}

TEST(NpyFile, ExplainsDtypesThatCannotBeRead) {
  const auto with = [](const std::string& descr) {
    return npy_bytes("{'descr': " + descr + ", 'fortran_order': False, 'shape': (1,), }",
                     std::string(16, '\0'));
  };
  EXPECT_TUTTI_ERROR(parse_npy(with("'>f4'"), "x.npy"), ErrorCode::kUnimplemented,
                     "read_npy: x.npy: the array has the dtype '>f4'", "big-endian",
                     "array.astype('<f4')");
  EXPECT_TUTTI_ERROR(parse_npy(with("'|O'")), ErrorCode::kUnimplemented, "Python objects");
  EXPECT_TUTTI_ERROR(parse_npy(with("'<u4'")), ErrorCode::kUnimplemented, "'<u4'",
                     "LibTorch has no such dtype");
  EXPECT_TUTTI_ERROR(parse_npy(with("'<U8'")), ErrorCode::kUnimplemented, "'<U8'");
  EXPECT_TUTTI_ERROR(parse_npy(with("[('a', '<f4')]")), ErrorCode::kUnimplemented, "structures");
  EXPECT_TUTTI_ERROR(write_npy("/nowhere/x", tensor({1.f}).to(at::kBFloat16)),
                     ErrorCode::kInvalidArgument, "NumPy has no dtype bfloat16");
  EXPECT_TUTTI_ERROR(write_npy("/nowhere/x", at::Tensor()), ErrorCode::kInvalidArgument,
                     "expected a dense tensor");
}

TEST(NpyFile, RejectsDamagedFiles) {
  EXPECT_TUTTI_ERROR(read_npy("/nowhere/x.npy"), ErrorCode::kNotFound, "read_npy: cannot open",
                     "No such file");
  EXPECT_TUTTI_ERROR(parse_npy("hello"), ErrorCode::kDataLoss, "this is not an .npy file");
  EXPECT_TUTTI_ERROR(parse_npy(npy_bytes(kSixBytes, "12345")), ErrorCode::kDataLoss,
                     "expected an array of shape (2, 3) and dtype uint8, found 5 bytes");
  EXPECT_TUTTI_ERROR(parse_npy(npy_bytes(kSixBytes, "123456", 4)), ErrorCode::kUnimplemented,
                     "version 4");
  for (const int byte : {2, 3, 127, 128, 254, 255}) {
    const std::string data = {'\1', static_cast<char>(byte)};
    EXPECT_TUTTI_ERROR(
        parse_npy(npy_bytes("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", data)),
        ErrorCode::kDataLoss, "expected a boolean", message("found ", byte, "."));
  }
  EXPECT_TUTTI_ERROR(
      parse_npy(npy_bytes("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, "
                          "4294967296, 4294967296)}",
                          "")),
      ErrorCode::kDataLoss, "found 0 bytes");
  for (const std::string text :
       {"{'descr': '<f4', 'shape': (1,)}", "{'descr': '<f4', 'fortran_order': Perhaps}", "{", "",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} 5",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}"}) {
    EXPECT_TUTTI_ERROR(parse_npy(npy_bytes(text, "1234")), ErrorCode::kDataLoss,
                       "the header is damaged");
  }
}

TEST(NpyFile, DetectsDamage) {
  const std::string bytes = npy_bytes(kSixBytes, "123456");
  const auto parse = [](const std::string& part) { parse_npy(part); };
  EXPECT_EQ(test::truncate_everywhere(bytes, parse), bytes.size());
  EXPECT_GT(test::damage_at_random(bytes, 5000, parse), 1000u);
}

// Builds a zip archive with one stored member.
std::string zip_of(const std::string& name, const std::string& content, uint32_t crc) {
  const auto little = [](uint32_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  const auto size = static_cast<uint32_t>(content.size());
  const std::string shared = little(0, 2) + little(0, 2) + little(0, 4) + little(crc, 4) +
                             little(size, 4) + little(size, 4) +
                             little(static_cast<uint32_t>(name.size()), 2);
  const std::string local = little(0x04034b50, 4) + little(20, 2) + shared + little(0, 2) + name;
  const std::string entry = little(0x02014b50, 4) + little(20, 2) + little(20, 2) + shared +
                            little(0, 2) + little(0, 2) + little(0, 2) + little(0, 2) +
                            little(0, 4) + little(0, 4) + name;
  const auto start = static_cast<uint32_t>(local.size() + content.size());
  return local + content + entry + little(0x06054b50, 4) + little(0, 4) + little(1, 2) +
         little(1, 2) + little(static_cast<uint32_t>(entry.size()), 4) + little(start, 4) +
         little(0, 2);
}

uint32_t zip_crc(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0xedb88320 : crc >> 1;
  }
  return ~crc;
}

TEST(NpzFile, ReadsAStoredMember) {
  TempFolder folder;
  const std::string content = npy_bytes(kSixBytes, "123456");
  write_file(folder.path("x.npz"), zip_of("grid.npy", content, zip_crc(content)));
  const NpzFile file(folder.path("x.npz"));
  EXPECT_EQ(file.names(), std::vector<std::string>{"grid"});
  EXPECT_TRUE(file.contains("grid"));
  EXPECT_FALSE(file.contains("grid.npy"));
  EXPECT_EQ(file.read("grid").sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(read_npz(folder.path("x.npz")).at("grid")[1][2].item<int>(), '6');
  EXPECT_TUTTI_ERROR(file.read("x"), ErrorCode::kNotFound, "no array \"x\"", "the file has: grid");
}

TEST(NpzFile, RejectsDamagedFiles) {
  const std::string content = npy_bytes(kSixBytes, "123456");
  const uint32_t crc = zip_crc(content);
  EXPECT_TUTTI_ERROR(NpzFile("/nowhere/x.npz"), ErrorCode::kNotFound, "NpzFile: cannot open");
  EXPECT_TUTTI_ERROR(NpzFile::from_memory("hello", "x.npz"), ErrorCode::kDataLoss,
                     "NpzFile: x.npz: this is not a zip archive");
  const std::string wrong = zip_of("x.npy", content, crc + 1);
  EXPECT_TUTTI_ERROR(NpzFile::from_memory(wrong).read("x"), ErrorCode::kDataLoss,
                     "its checksum does not match");
  std::string large = zip_of("x.npy", content, crc);
  large.replace(large.size() - 12, 2, "\xff\xff");
  EXPECT_TUTTI_ERROR(NpzFile::from_memory(large), ErrorCode::kUnimplemented, "zip64");
  const std::string whole = zip_of("x.npy", content, crc);
  const auto read = [](const std::string& part) {
    const NpzFile file = NpzFile::from_memory(part);
    for (const std::string& name : file.names()) file.read(name);
  };
  EXPECT_EQ(test::truncate_everywhere(whole, read), whole.size());
  EXPECT_GT(test::damage_at_random(whole, 5000, read), 3000u);
}

}  // namespace
}  // namespace tutti::data
