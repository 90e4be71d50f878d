// SPDX-License-Identifier: Apache-2.0
//
// "host:port", as cluster specs write the addresses of their tasks: a name, an IPv4 address or an
// IPv6 address in brackets, and a port. Names are not resolved here.

#pragma once

#include <ostream>
#include <string>
#include <string_view>

namespace tutti {

/// A host and a port. A plain value.
struct Address {
  std::string host;  ///< Without brackets.
  int port = 0;

  /// "hostA:4321", "[::1]:4321"
  std::string to_string() const;

  bool operator==(const Address&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Address& address);

/// Port 0 means "any free port". Only a process that is about to listen may use it: its peers
/// could not find it.
enum class PortZero { kRefused, kAllowed };

/// Reads "host:port". The host is a name (letters, digits, '-', '_', '.'), an IPv4 address or an
/// IPv6 address in brackets, "[fe80::1%eth0]:80"; the port is 1 to 65535. Throws a
/// kInvalidArgument that quotes the text and says what is wrong with it.
Address parse_address(std::string_view text, PortZero zero = PortZero::kRefused);

}  // namespace tutti
