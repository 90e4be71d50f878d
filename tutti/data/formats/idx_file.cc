// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/idx_file.h"

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ops/empty.h>

#include "tutti/data/formats/internal/array_bytes.h"
#include "tutti/files/byte_order.h"
#include "tutti/nest/print.h"

namespace tutti::data {

namespace {

std::optional<at::ScalarType> idx_dtype(uint8_t code) {
  switch (code) {
    case 0x08:
      return at::kByte;
    case 0x09:
      return at::kChar;
    case 0x0b:
      return at::kShort;
    case 0x0c:
      return at::kInt;
    case 0x0d:
      return at::kFloat;
    case 0x0e:
      return at::kDouble;
    default:
      return std::nullopt;
  }
}

template <class Word>
void from_big_endian(void* data, int64_t count) {
  auto* const words = static_cast<Word*>(data);
  for (int64_t i = 0; i < count; ++i) words[i] = load_big<Word>(words + i);
}

}  // namespace

at::Tensor read_idx(const std::string& path, Compression compression) {
  InputFile file(path, {.compression = compression, .reader = "read_idx"});
  return read_idx(file);
}

at::Tensor read_idx(InputFile& file) {
  const uint64_t start = file.offset();
  const std::string_view magic = file.read_exactly(4, "an IDX header");
  const auto code = static_cast<uint8_t>(magic[2]);
  const auto dimensions = static_cast<uint8_t>(magic[3]);
  const std::optional<at::ScalarType> dtype = idx_dtype(code);
  if (magic[0] != 0 || magic[1] != 0 || !dtype) {
    throw file.data_loss(
        start,
        message("this is not an IDX file; expected the bytes 0, 0, a type (8, "
                "9, 11 to 14) and a number of dimensions, found ",
                int{static_cast<uint8_t>(magic[0])}, ", ", int{static_cast<uint8_t>(magic[1])},
                ", ", int{code}, ", ", int{dimensions}, "."));
  }
  const std::string_view lengths = file.read_exactly(size_t{4} * dimensions, "dimensions");
  std::vector<int64_t> shape;
  for (size_t i = 0; i < dimensions; ++i) {
    shape.push_back(load_big<uint32_t>(lengths.data() + 4 * i));
  }
  const std::optional<int64_t> bytes = array_bytes(shape, c10::elementSize(*dtype));
  const uint64_t most = file.remaining_at_most();
  if (!bytes || static_cast<uint64_t>(*bytes) > most) {
    throw file.data_loss(file.offset(),
                         message("the file is truncated or damaged; an array of shape ",
                                 shape_text(shape), " and dtype ", dtype_name(*dtype),
                                 " does not fit in the ", most, " bytes that may follow."));
  }
  at::Tensor result = at::empty(shape, at::TensorOptions().dtype(*dtype));
  file.read_exactly(result.data_ptr(), static_cast<uint64_t>(*bytes), "the array");
  if (!file.at_end()) {
    throw file.data_loss(file.offset(),
                         "expected the end of the file after the array, found more bytes.");
  }
  const int64_t count = result.numel();
  if (result.element_size() == 2) from_big_endian<uint16_t>(result.data_ptr(), count);
  if (result.element_size() == 4) from_big_endian<uint32_t>(result.data_ptr(), count);
  if (result.element_size() == 8) from_big_endian<uint64_t>(result.data_ptr(), count);
  return result;
}

}  // namespace tutti::data
