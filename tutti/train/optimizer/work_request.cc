// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/work_request.h"

#include "tutti/base/error.h"

namespace tutti::internal {

std::string WorkRequest::describe() const {
  std::string text = message(name(), " of the object at ", owner_);
  if (argument_.name == nullptr) return text;
  text += message(" (", argument_.name, " ", argument_.value);
  for (size_t g = 0; g < argument_.rules.size(); ++g) {
    text += message(g == 0 ? ", learning rate " : " and ", learning_rate(argument_.rules[g]));
  }
  if (!argument_.rules.empty()) text += "; options may change between runs only";
  return text + ")";
}

}  // namespace tutti::internal
