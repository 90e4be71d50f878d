// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/internal/work_request.h"

#include "tutti/base/error.h"

namespace tutti::internal {

std::string WorkRequest::describe() const {
  return message(name(), " of the object at ", owner_, ", arguments ", argument_);
}

}  // namespace tutti::internal
