// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/variables.h"

#include <charconv>

#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti::internal {
namespace {

std::string shown(const char* name) { return message(name, '=', in_quotes(*read_env(name))); }

}  // namespace

std::string describe_variables(const std::vector<const char*>& names) {
  std::vector<std::string> set;
  std::vector<std::string> missing;
  for (const char* name : names) {
    if (read_env(name)) {
      set.push_back(shown(name));
    } else {
      missing.emplace_back(name);
    }
  }
  std::string out =
      set.empty() ? "" : joined_with_and(set) + (set.size() == 1 ? " is set" : " are set");
  if (missing.empty()) return out;
  if (!out.empty()) out += ", but ";
  return out + joined_with_and(missing) + (missing.size() == 1 ? " is not" : " are not") +
         (set.empty() ? " set" : "");
}

bool any_is_set(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (read_env(name)) return true;
  }
  return false;
}

int read_number(std::string_view who, const char* name, int least, int most) {
  const std::string text = read_env(name).value_or("");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": ", name, '=', in_quotes(text), " is not an integer from ", least,
                        " to ", most, ". Correct or unset ", name, "."));
  }
  return value;
}

std::string rendezvous_variable() {
  const std::string text = read_env("TUTTI_RENDEZVOUS").value_or("");
  try {
    return parse_address(text).to_string();
  } catch (const Error& error) {
    throw Error(error.code(),
                message("TUTTI_RENDEZVOUS=", in_quotes(text), " is not host:port: ", error.what()));
  }
}

Address master_variables(std::string_view who, const std::string& advice) {
  const auto host = read_env("MASTER_ADDR");
  if (!host || !read_env("MASTER_PORT")) {
    refuse_environment(who, describe_variables({"MASTER_ADDR", "MASTER_PORT"}), advice);
  }
  const Address address{*host, read_number(who, "MASTER_PORT", 1, 65535)};
  try {
    return parse_address(address.to_string());
  } catch (const Error& error) {
    throw Error(error.code(), message(who, ": MASTER_ADDR=", in_quotes(*host),
                                      " is not a host name or IP address: ", error.what()));
  }
}

void refuse_environment(std::string_view who, const std::string& what, const std::string& advice) {
  throw Error(ErrorCode::kFailedPrecondition, message(who, ": ", what, ". ", advice));
}

}  // namespace tutti::internal
