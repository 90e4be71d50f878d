// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/rendezvous/control_message.h"

#include "tutti/base/error.h"

namespace tutti::internal {
namespace {

constexpr size_t kMapEntries = 64;

[[noreturn]] void fail_control(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, message("rpc: a control message ", what, "."));
}

/// How deeply the brackets outside of strings nest.
int nesting(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (quoted) {
      if (letter == '\\') ++i;
      if (letter == '"') quoted = false;
    } else if (letter == '"') {
      quoted = true;
    } else if (letter == '{' || letter == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (letter == '}' || letter == ']') {
      --depth;
    }
  }
  return deepest;
}

const nlohmann::json& member(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) fail_control(message("lacks \"", name, "\""));
  return *found;
}

}  // namespace

nlohmann::json parse_control(std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    fail_control(message("has ", text.size(), " bytes, more than ", max_bytes));
  }
  if (nesting(text) > kControlDepth) fail_control("is nested too deeply");
  auto object =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) fail_control("is not a JSON object");
  return object;
}

std::string text_member(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = member(object, name);
  if (!value.is_string()) fail_control(message("has a \"", name, "\" that is not a string"));
  return value.get<std::string>();
}

int64_t int_member(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = member(object, name);
  if (!value.is_number_integer())
    fail_control(message("has a \"", name, "\" that is not an integer"));
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) {
    fail_control(message("has a \"", name, "\" that is too large"));
  }
  return value.get<int64_t>();
}

std::map<std::string, std::string> map_member(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = member(object, name);
  if (!value.is_object() || value.size() > kMapEntries) {
    fail_control(message("has a \"", name, "\" that is not an object with at most ", kMapEntries,
                         " entries"));
  }
  std::map<std::string, std::string> map;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      fail_control(message("has a \"", name, "\" with \"", printable(key, 100),
                           "\", which is not a string"));
    }
    map[key] = text.get<std::string>();
  }
  return map;
}

std::string print_control(const nlohmann::json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tutti::internal
