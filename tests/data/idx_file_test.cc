// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/idx_file.h"

#include <string>

#include <gtest/gtest.h>

#include "tutti/files/output_file.h"

#include "tests/support/damage.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensors.h"

namespace tutti::data {
namespace {

using test::bit_equal;
using test::from_hex;
using test::scalar;
using test::TempFolder;
using test::tensor;

at::Tensor idx_of(const std::string& bytes) {
  InputFile file = InputFile::from_memory(bytes, "x.idx", {.reader = "read_idx"});
  return read_idx(file);
}

TEST(IdxFile, ReadsEveryDtype) {
  EXPECT_TRUE(
      bit_equal(idx_of(from_hex("00000801 00000003 00 7f ff")), tensor<uint8_t>({0, 127, 255})));
  EXPECT_TRUE(bit_equal(idx_of(from_hex("00000901 00000002 7f ff")), tensor<int8_t>({127, -1})));
  EXPECT_TRUE(
      bit_equal(idx_of(from_hex("00000b01 00000002 0102 fffe")), tensor<int16_t>({0x0102, -2})));
  EXPECT_TRUE(bit_equal(idx_of(from_hex("00000c01 00000002 01020304 fffffffe")),
                        tensor<int32_t>({0x01020304, -2})));
  EXPECT_TRUE(
      bit_equal(idx_of(from_hex("00000d01 00000002 3fc00000 c0000000")), tensor({1.5f, -2.0f})));
  EXPECT_TRUE(bit_equal(idx_of(from_hex("00000e01 00000001 3ff8000000000000")), tensor({1.5})));
}

TEST(IdxFile, ReadsEveryNumberOfDimensions) {
  EXPECT_TRUE(bit_equal(idx_of(from_hex("00000800 05")), scalar<uint8_t>(5)));
  EXPECT_TRUE(bit_equal(idx_of(from_hex("00000802 00000002 00000003 010203040506")),
                        tensor<uint8_t>({1, 2, 3, 4, 5, 6}).reshape({2, 3})));
  EXPECT_EQ(idx_of(from_hex("00000803 00000000 0000001c 0000001c")).sizes(),
            at::IntArrayRef({0, 28, 28}));
}

TEST(IdxFile, ReadsCompressedFiles) {
  TempFolder folder;
  const std::string bytes = from_hex("00000b02 00000001 00000002 0102 0304");
  const at::Tensor expected = tensor<int16_t>({0x0102, 0x0304}).reshape({1, 2});
  for (const Compression kind : {Compression::kNone, Compression::kGzip}) {
    OutputFile file(folder.path("x"), {.compression = kind});
    file.write(bytes);
    file.close();
    EXPECT_TRUE(bit_equal(read_idx(folder.path("x")), expected));
  }
}

TEST(IdxFile, RejectsOtherFiles) {
  EXPECT_TUTTI_ERROR(idx_of(from_hex("00000a01 00000001 00")), ErrorCode::kDataLoss,
                     "read_idx: x.idx: at byte 0: this is not an IDX file", "found 0, 0, 10, 1.");
  EXPECT_TUTTI_ERROR(idx_of("PNG, perhaps"), ErrorCode::kDataLoss, "not an IDX file");
  EXPECT_TUTTI_ERROR(idx_of(from_hex("00000801 00000001 0102")), ErrorCode::kDataLoss, "at byte 9",
                     "expected the end of the file after the array");
  EXPECT_TUTTI_ERROR(read_idx("/nowhere/x"), ErrorCode::kNotFound, "read_idx: cannot open");
}

TEST(IdxFile, DoesNotTrustAHugeShape) {
  EXPECT_TUTTI_ERROR(idx_of(from_hex("00000802 ffffffff ffffffff 00")), ErrorCode::kDataLoss,
                     "(4294967295, 4294967295)", "does not fit in the 1 bytes");
  EXPECT_TUTTI_ERROR(idx_of(from_hex("00000e03 ffffffff ffffffff ffffffff")), ErrorCode::kDataLoss,
                     "does not fit");
  EXPECT_TUTTI_ERROR(idx_of(from_hex("00000e04 ffffffff ffffffff ffffffff 00000000")),
                     ErrorCode::kDataLoss, "does not fit");
}

TEST(IdxFile, DetectsDamage) {
  const std::string bytes = from_hex("00000c02 00000002 00000002") + std::string(16, 'x');
  EXPECT_EQ(test::truncate_everywhere(bytes, [](const std::string& part) { idx_of(part); }),
            bytes.size());
  test::damage_at_random(bytes, 3000, [](const std::string& part) { idx_of(part); });
}

}  // namespace
}  // namespace tutti::data
