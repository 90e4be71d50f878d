// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/communication_options.h"

#include "tutti/base/error.h"

namespace tutti {

const char* to_string(CommunicationImplementation implementation) {
  switch (implementation) {
    case CommunicationImplementation::kAuto:
      return "kAuto";
    case CommunicationImplementation::kHost:
      return "kHost";
    case CommunicationImplementation::kGrpc:
      return "kGrpc";
    case CommunicationImplementation::kFast:
      return "kFast";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, CommunicationImplementation implementation) {
  return out << to_string(implementation);
}

void CommunicationOptions::validate() const {
  if (bytes_per_pack < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("CommunicationOptions: bytes_per_pack is ", bytes_per_pack,
                        "; it must be 0 (one pack) or more."));
  }
  if (timeout && timeout->count() <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("CommunicationOptions: timeout is ", timeout->count(),
                        " ms; it must be positive. Leave it unset for the strategy's limit."));
  }
}

CommunicationOptions CommunicationOptions::merged_with(const CommunicationOptions& other) const {
  CommunicationOptions result = *this;
  if (other.bytes_per_pack != 0) result.bytes_per_pack = other.bytes_per_pack;
  if (other.timeout) result.timeout = other.timeout;
  if (other.implementation != CommunicationImplementation::kAuto) {
    result.implementation = other.implementation;
  }
  return result;
}

}  // namespace tutti
