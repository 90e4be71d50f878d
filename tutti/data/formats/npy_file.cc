// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/npy_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include "tutti/base/error.h"
#include "tutti/data/formats/internal/array_bytes.h"
#include "tutti/data/formats/internal/npy_header.h"
#include "tutti/files/mapped_file.h"
#include "tutti/files/output_file.h"
#include "tutti/nest/print.h"

namespace tutti::data {

namespace {

std::vector<int64_t> npy_strides(const NpyHeader& header) {
  const size_t dimensions = header.shape.size();
  std::vector<int64_t> strides(dimensions, 1);
  int64_t stride = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    const size_t dimension = header.fortran_order ? i : dimensions - 1 - i;
    strides[dimension] = stride;
    stride *= std::max<int64_t>(header.shape[dimension], 1);
  }
  return strides;
}

// Bytes other than 0 and 1 in a tensor of booleans would be undefined behaviour.
void check_booleans(std::string_view data, size_t offset, std::string_view name) {
  const auto bad = std::find_if(data.begin(), data.end(),
                                [](char byte) { return static_cast<uint8_t>(byte) > 1; });
  if (bad == data.end()) return;
  throw Error(
      ErrorCode::kDataLoss,
      message("read_npy: ", name, ": at byte ", offset + static_cast<size_t>(bad - data.begin()),
              ": expected a boolean, 0 or 1, found ", int{static_cast<uint8_t>(*bad)}, "."));
}

}  // namespace

at::Tensor npy_tensor(std::string_view bytes, std::string_view name, std::shared_ptr<void> owner) {
  const NpyHeader header = parse_npy_header(bytes, name);
  const size_t element = c10::elementSize(header.dtype);
  const size_t rest = bytes.size() - header.data_offset;
  const std::optional<int64_t> size = array_bytes(header.shape, element);
  if (!size || static_cast<uint64_t>(*size) > rest) {
    throw Error(ErrorCode::kDataLoss,
                message("read_npy: ", name, ": at byte ", header.data_offset,
                        ": the file is truncated or damaged; expected an array of shape ",
                        shape_text(header.shape), " and dtype ", dtype_name(header.dtype),
                        ", found ", rest, " bytes."));
  }
  const std::string_view data = bytes.substr(header.data_offset, static_cast<size_t>(*size));
  if (header.dtype == at::kBool) check_booleans(data, header.data_offset, name);
  const std::vector<int64_t> strides = npy_strides(header);
  const auto options = at::TensorOptions().dtype(header.dtype);
  const bool is_aligned = reinterpret_cast<uintptr_t>(data.data()) % element == 0;
  if (owner == nullptr || !is_aligned || data.empty()) {
    at::Tensor copy = at::empty_strided(header.shape, strides, options);
    if (!data.empty()) std::memcpy(copy.data_ptr(), data.data(), data.size());
    return copy;
  }
  return at::from_blob(
      const_cast<char*>(data.data()), header.shape, strides, [kept = std::move(owner)](void*) {},
      options);
}

at::Tensor read_npy(const std::string& path) {
  auto file = std::make_shared<MappedFile>(path, "read_npy");
  const std::string_view bytes(file->data(), file->size());
  return npy_tensor(bytes, path, std::move(file));
}

at::Tensor parse_npy(std::string_view bytes, std::string_view name) {
  return npy_tensor(bytes, name, nullptr);
}

void write_npy(const std::string& path, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) {
    throw Error(
        ErrorCode::kInvalidArgument,
        message("write_npy: ", path, ": expected a dense tensor, found ", describe(tensor), "."));
  }
  const std::string header = npy_header(tensor.scalar_type(), tensor.sizes());
  const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  OutputFile file(path, {.writer = "write_npy"});
  file.write(header);
  file.write({static_cast<const char*>(dense.data_ptr()), dense.nbytes()});
  file.close();
}

}  // namespace tutti::data
