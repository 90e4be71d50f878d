// SPDX-License-Identifier: Apache-2.0
//
// Reads untrusted JSON: a variable, a file, the answer of a server. Size and depth are bounded,
// duplicate keys are refused, and every error says where the mistake is.

#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"

namespace tutti::internal {

using Json = nlohmann::json;

/// Who reads, what is allowed, and a valid example: the beginning and the end of each message. A
/// plain value.
struct JsonOrigin {
  std::string who;
  std::string example = "";  ///< May be empty.
  size_t longest = size_t{1} << 20;
  int deepest = 16;
  ErrorCode code = ErrorCode::kInvalidArgument;

  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void refuse_at(const std::string& pointer, const std::string& what) const;

  /// `wanted` describes the expected value: "a list of addresses".
  [[noreturn]] void refuse_value(const std::string& pointer, const Json& value,
                                 const char* wanted) const;
};

/// The JSON pointer of a member of what `pointer` points to.
std::string append_to_pointer(const std::string& pointer, const std::string& key);

/// The text as JSON, or as a JSON object. Throws the origin's code with line and column, or a JSON
/// pointer.
Json parse_json(std::string_view text, const JsonOrigin& origin);
Json parse_json_object(std::string_view text, const JsonOrigin& origin);

std::string read_string(const JsonOrigin& origin, const std::string& pointer, const Json& value);

/// An index of a task, as a number or as a string of digits.
int read_index(const JsonOrigin& origin, const std::string& pointer, const Json& value);

/// As read_index(), for the keys of an object of tasks.
int read_index_key(const JsonOrigin& origin, const std::string& pointer, const std::string& key);

/// The JSON text of a string; bytes that are not UTF-8 are replaced.
std::string json_text(const std::string& value);

}  // namespace tutti::internal
