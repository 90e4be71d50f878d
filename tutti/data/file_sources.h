// SPDX-License-Identifier: Apache-2.0
//
// Factories of source nodes that read files, and their options. Programs call them through
// functions such as tf_record() in files.h. Each checks its arguments (kInvalidArgument).

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/data/formats/csv_file.h"
#include "tutti/data/node.h"
#include "tutti/files/input_file.h"
#include "tutti/files/tf_record_file.h"

namespace tutti::data {

struct TextLineOptions {
  Compression compression = Compression::kAuto;
  size_t buffer_size = size_t{1} << 18;
};

struct FixedLengthRecordOptions {
  int64_t header_bytes = 0;  ///< Skipped at the beginning of each file.
  int64_t footer_bytes = 0;  ///< Skipped at the end of each file.
  Compression compression = Compression::kAuto;
  size_t buffer_size = size_t{1} << 18;
};

struct ListFilesOptions {
  bool shuffle = true;  ///< A different order in each pass; false: sorted.
  /// Seed of the order; if not set, drawn once when the dataset is created.
  std::optional<uint64_t> seed = std::nullopt;
};

// These read files one after the other, each opened when it is reached. A position is the number
// and name of a file and the offset of the next element.
NodePtr make_text_line(std::vector<std::string> files, const TextLineOptions& options);
NodePtr make_tf_record(std::vector<std::string> files, const TfRecordReaderOptions& options);
NodePtr make_fixed_length_record(std::vector<std::string> files, int64_t record_bytes,
                                 const FixedLengthRecordOptions& options);
/// options.columns defines the leaves of an element; it must not be empty.
NodePtr make_csv(std::vector<std::string> files, const CsvOptions& options);

/// The rows of arrays, one leaf each; `names` are for messages.
NodePtr make_array_rows(std::string_view who, const std::vector<std::string>& names,
                        const std::vector<at::Tensor>& arrays);

NodePtr make_list_files(const std::vector<std::string>& patterns, const ListFilesOptions& options);

}  // namespace tutti::data
