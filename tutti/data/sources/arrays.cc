// SPDX-License-Identifier: Apache-2.0
//
// The rows of arrays that come from files.

#include "tutti/base/error.h"
#include "tutti/data/file_sources.h"
#include "tutti/data/sources.h"
#include "tutti/nest/print.h"

namespace tutti::data {

NodePtr make_array_rows(std::string_view who, const std::vector<std::string>& names,
                        const std::vector<at::Tensor>& arrays) {
  TUTTI_CHECK(!arrays.empty() && names.size() == arrays.size());
  Element rows;
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].dim() == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  message(who, ": ", names[i], " is a scalar, so it has no rows."));
    }
    if (arrays[i].size(0) != arrays[0].size(0)) {
      throw Error(ErrorCode::kInvalidArgument,
                  message(who, ": the arrays differ in their number of rows: ", names[0], " is ",
                          describe(arrays[0]), ", ", names[i], " is ", describe(arrays[i]), "."));
    }
    rows.values.emplace_back(arrays[i]);
  }
  return make_tensor_slices(std::move(rows));
}

}  // namespace tutti::data
