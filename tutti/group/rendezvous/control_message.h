// SPDX-License-Identifier: Apache-2.0
//
// Reads small JSON objects from peers: their size is limited before they are parsed, and members
// are checked when they are read.

#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tutti::internal {

inline constexpr size_t kControlBytes = 64 << 10;
inline constexpr int kControlDepth = 8;

/// Parses an object of at most `max_bytes` and kControlDepth levels; otherwise throws
/// kInvalidArgument.
nlohmann::json parse_control(std::string_view text, size_t max_bytes = kControlBytes);

/// Return a member; throw kInvalidArgument, naming it, if it is missing or of another type.
std::string text_member(const nlohmann::json& object, const char* name);
int64_t int_member(const nlohmann::json& object, const char* name);
/// The object may have at most 64 entries, all strings.
std::map<std::string, std::string> map_member(const nlohmann::json& object, const char* name);

/// The object as text; bytes that are not UTF-8 are replaced.
std::string print_control(const nlohmann::json& object);

}  // namespace tutti::internal
