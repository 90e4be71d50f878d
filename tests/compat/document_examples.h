// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the old documents' examples share.

#pragma once

#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/values/per_replica.h"

#include "tests/support/temp_folder.h"

// These tests are about names that warn; compile_warn/ tests the warnings.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace tutti::compat_test {

template <class T>
std::string printed(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

/// Four files of two records each: the numbers 0 to 7 as text.
inline std::vector<std::string> record_files(const test::TempFolder& folder) {
  std::vector<std::string> names;
  for (int file = 0; file < 4; ++file) {
    names.push_back(folder.path(std::to_string(file + 1) + ".tfr"));
    data::TfRecordWriter writer(names.back());
    writer.write(std::to_string(2 * file));
    writer.write(std::to_string(2 * file + 1));
    writer.close();
  }
  return names;
}

inline at::Tensor parse(const std::string& record) {
  return at::tensor(std::stof(record), at::kFloat);
}

/// The values of one component, for comparisons.
inline std::vector<float> floats(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

}  // namespace tutti::compat_test
