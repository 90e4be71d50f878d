// SPDX-License-Identifier: Apache-2.0
//
// The header of a .npy file: magic, version, length, and a Python dictionary as text.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tutti::data {

struct NpyHeader {
  at::ScalarType dtype = at::kFloat;
  bool fortran_order = false;
  std::vector<int64_t> shape;
  size_t data_offset = 0;
};

/// Reads the header at the start of `bytes`; messages call the file `name`.
NpyHeader parse_npy_header(std::string_view bytes, std::string_view name);

/// The text before the data of an array in C order.
std::string npy_header(at::ScalarType dtype, at::IntArrayRef shape);

/// The array whose file is `bytes`. With an owner, the tensor aliases the bytes and keeps the owner
/// alive, unless they are misaligned; without one it is a copy.
at::Tensor npy_tensor(std::string_view bytes, std::string_view name, std::shared_ptr<void> owner);

}  // namespace tutti::data
