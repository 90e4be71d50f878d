// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr size_t kLongestName = 253;  // DNS allows no more.
constexpr int kLastPort = 65535;

[[noreturn]] void refuse_address(std::string_view text, const std::string& reason) {
  throw Error(
      ErrorCode::kInvalidArgument,
      message("address ", in_quotes(text), ": ", reason,
              ". Write, for example, \"hostA:4321\", \"10.0.0.7:4321\" or \"[::1]:4321\"."));
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_digit_or_dot(char c) { return (c >= '0' && c <= '9') || c == '.'; }

void check_ipv6(std::string_view text, const std::string& host) {
  const size_t percent = host.find('%');
  const std::string number = host.substr(0, percent);
  in6_addr unused;
  if (inet_pton(AF_INET6, number.c_str(), &unused) != 1) {
    refuse_address(text, message(in_quotes(host), " in brackets is not an IPv6 address"));
  }
  if (percent == std::string::npos) return;
  const std::string zone = host.substr(percent + 1);
  const bool good = !zone.empty() && std::all_of(zone.begin(), zone.end(), [](char c) {
    return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-';
  });
  if (!good) refuse_address(text, message(in_quotes(zone), " after '%' is not an interface name"));
}

void check_name(std::string_view text, const std::string& host) {
  if (host.empty()) refuse_address(text, "it has no host before the port");
  if (host.size() > kLongestName) refuse_address(text, "its host exceeds 253 characters");
  if (host.find('/') != std::string::npos) {
    refuse_address(text, "it is a URL or a path; give only host and port");
  }
  for (const char c : host) {
    if (!is_letter_or_digit(c) && c != '.' && c != '-' && c != '_') {
      refuse_address(
          text, message("its host ", in_quotes(host), " contains ", in_quotes(std::string(1, c)),
                        "; a name may contain letters, digits, '-', '_' and '.'"));
    }
  }
  if (host.front() == '.' || host.find("..") != std::string::npos || host.front() == '-') {
    refuse_address(text, message("its host ", in_quotes(host), " is not a valid name"));
  }
  in_addr unused;
  if (std::all_of(host.begin(), host.end(), is_digit_or_dot) &&
      inet_pton(AF_INET, host.c_str(), &unused) != 1) {
    refuse_address(text, message("its host ", in_quotes(host), " is not an IPv4 address"));
  }
}

int read_port(std::string_view text, std::string_view digits, PortZero zero) {
  int port = -1;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, port);
  if (error != std::errc() || stop != end || port < 0 || port > kLastPort) {
    refuse_address(
        text, message("its port ", in_quotes(digits), " is not a number from 1 to ", kLastPort));
  }
  if (port == 0 && zero == PortZero::kRefused) {
    refuse_address(text, "port 0 means any free port, which its peers could not find");
  }
  return port;
}

}  // namespace

std::string Address::to_string() const {
  const bool brackets = host.find(':') != std::string::npos;
  return message(brackets ? "[" : "", host, brackets ? "]" : "", ':', port);
}

std::ostream& operator<<(std::ostream& out, const Address& address) {
  return out << address.to_string();
}

Address parse_address(std::string_view text, PortZero zero) {
  if (text.empty()) refuse_address(text, "it is empty");
  if (text.find("://") != std::string_view::npos) {
    refuse_address(text, "it is a URL; give only host and port");
  }
  if (text.front() == '[') {
    const size_t close = text.find("]:");
    if (close == std::string_view::npos) refuse_address(text, "\"]:port\" is missing after '['");
    const std::string host(text.substr(1, close - 1));
    check_ipv6(text, host);
    return {host, read_port(text, text.substr(close + 2), zero)};
  }
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) refuse_address(text, "it has no port");
  if (text.find(':', colon + 1) != std::string_view::npos) {
    refuse_address(text, "it has more than one ':'; put an IPv6 address in brackets");
  }
  const std::string host(text.substr(0, colon));
  check_name(text, host);
  return {host, read_port(text, text.substr(colon + 1), zero)};
}

}  // namespace tutti
