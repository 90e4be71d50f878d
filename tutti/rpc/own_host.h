// SPDX-License-Identifier: Apache-2.0
//
// Under which address other machines see this one.

#pragma once

#include <string>

#include "tutti/base/deadline.h"

namespace tutti::rpc {

/// The host of this machine that a process at `address` ("host:port") would see, from the routing
/// table: nothing is sent. Empty if the name does not resolve by the deadline, or if there is no
/// route.
std::string own_host_towards(const std::string& address, const Deadline& deadline);

}  // namespace tutti::rpc
