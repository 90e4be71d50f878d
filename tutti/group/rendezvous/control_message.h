// SPDX-License-Identifier: Apache-2.0
//
// Small JSON objects from peers: bounded before they are parsed, checked when they are read.

#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tutti::internal {

inline constexpr size_t kControlBytes = 64 << 10;
inline constexpr int kControlDepth = 8;

/// An object of at most `max_bytes` and kControlDepth levels; else kInvalidArgument.
nlohmann::json parse_control(std::string_view text, size_t max_bytes = kControlBytes);

/// A member of the right type; else kInvalidArgument, naming it.
std::string text_member(const nlohmann::json& object, const char* name);
int64_t int_member(const nlohmann::json& object, const char* name);
/// At most 64 entries of text.
std::map<std::string, std::string> map_member(const nlohmann::json& object, const char* name);

/// As text; bytes that are no UTF-8 are replaced.
std::string print_control(const nlohmann::json& object);

}  // namespace tutti::internal
