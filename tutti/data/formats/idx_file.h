// SPDX-License-Identifier: Apache-2.0
//
// IDX files, the format of MNIST and its relatives: one array of numbers, big endian, often
// compressed with gzip.

#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "tutti/files/input_file.h"

namespace tutti::data {

/// The array of a file: uint8, int8, int16, int32, float32 or float64, of any number of dimensions.
/// Throws kNotFound if there is no such file, kDataLoss if it is truncated, has trailing bytes or
/// is not an IDX file.
at::Tensor read_idx(const std::string& path, Compression compression = Compression::kAuto);

/// The same from an open file, which must end with the array.
at::Tensor read_idx(InputFile& file);

}  // namespace tutti::data
