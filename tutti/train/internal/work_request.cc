// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/internal/work_request.h"

#include "tutti/base/error.h"

namespace tutti::internal {

std::string WorkRequest::describe() const {
  std::string text = message(name(), " of the object at ", owner_);
  if (argument_.name != nullptr) text += message(" (", argument_.name, " ", argument_.value, ")");
  return text;
}

}  // namespace tutti::internal
