// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/checked_json.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <vector>

#include "tutti/cluster/cluster_spec.h"

namespace tutti::internal {

void JsonOrigin::refuse(const std::string& what) const {
  throw Error(code, message(who, ": ", what, '.', example.empty() ? "" : " Example: ", example));
}

void JsonOrigin::refuse_at(const std::string& pointer, const std::string& what) const {
  refuse(message("at ", in_quotes(pointer.empty() ? "/" : pointer), ": ", what));
}

void JsonOrigin::refuse_value(const std::string& pointer, const Json& value,
                              const char* wanted) const {
  std::string shown = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (value.is_string()) {
    shown = in_quotes(value.get_ref<const std::string&>());
  } else if (shown.size() > 40) {
    shown = message("a value of type ", value.type_name());
  }
  refuse_at(pointer, message("expected ", wanted, ", got ", shown));
}

std::string append_to_pointer(const std::string& pointer, const std::string& key) {
  return (Json::json_pointer(pointer) / key).to_string();
}

namespace {

// Detects what the parser accepts silently: unbounded nesting and duplicate keys.
class JsonWatch {
 public:
  explicit JsonWatch(const JsonOrigin& origin) : origin_(origin) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= origin_.deepest) {
          origin_.refuse(message("the JSON is nested more than ", origin_.deepest, " levels deep"));
        }
        levels_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        levels_.pop_back();
        break;
      case Json::parse_event_t::key:
        levels_.back().current = parsed.get<std::string>();
        if (!levels_.back().keys.insert(levels_.back().current).second) {
          origin_.refuse_at(pointer(), "duplicate key");
        }
        break;
      default:
        break;
    }
    return true;
  }

 private:
  struct Level {
    std::set<std::string> keys;
    std::string current;
  };

  std::string pointer() const {
    std::string out;
    for (const Level& level : levels_) out = append_to_pointer(out, level.current);
    return out;
  }

  const JsonOrigin& origin_;
  std::vector<Level> levels_;
};

// "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing
// value - ..." is reduced to the part after the position.
std::string parser_reason(const std::string& text) {
  const size_t position = text.find("parse error");
  const size_t colon = text.find(": ", position == std::string::npos ? 0 : position);
  std::string reason = colon == std::string::npos ? text : text.substr(colon + 2);
  for (char& c : reason) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  constexpr size_t kLongest = 200;
  if (reason.size() > kLongest) reason = reason.substr(0, kLongest) + "...";
  return reason;
}

// The usual mistakes of people and shells with JSON.
const char* usual_cause(std::string_view text) {
  if (text.find('"') != std::string_view::npos) return "";
  if (text.find('\'') != std::string_view::npos) {
    return "; JSON requires double quotes, but this text has only single ones";
  }
  if (text.find('{') != std::string_view::npos) {
    return "; it has no double quotes, perhaps because the shell removed them: put the whole text "
           "in single quotes";
  }
  return "";
}

std::optional<int> index_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < 0 || value > ClusterSpec::kLastIndex) return std::nullopt;
  return value;
}

}  // namespace

Json parse_json(std::string_view text, const JsonOrigin& origin) {
  if (text.size() > origin.longest) {
    origin.refuse(message("the text has ", text.size(), " bytes; the limit is ", origin.longest));
  }
  try {
    JsonWatch watch(origin);
    return Json::parse(text.begin(), text.end(),
                       [&](int depth, Json::parse_event_t event, const Json& parsed) {
                         return watch(depth, event, parsed);
                       });
  } catch (const Json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(
                                        std::min(text.size(), std::max<size_t>(error.byte, 1) - 1));
    const auto line = 1 + std::count(text.begin(), end, '\n');
    const auto last_break = std::find(std::make_reverse_iterator(end), text.rend(), '\n').base();
    origin.refuse(message("invalid JSON at line ", line, ", column ", end - last_break + 1, ": ",
                          parser_reason(error.what()), usual_cause(text)));
  } catch (const Json::exception& error) {  // A number is out of range.
    origin.refuse(message("invalid JSON: ", parser_reason(error.what()), usual_cause(text)));
  }
}

Json parse_json_object(std::string_view text, const JsonOrigin& origin) {
  Json json = parse_json(text, origin);
  if (!json.is_object()) origin.refuse_value("", json, "an object {...}");
  return json;
}

std::string read_string(const JsonOrigin& origin, const std::string& pointer, const Json& value) {
  if (!value.is_string()) origin.refuse_value(pointer, value, "a string");
  return value.get<std::string>();
}

int read_index(const JsonOrigin& origin, const std::string& pointer, const Json& value) {
  std::optional<int> index;
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= uint64_t{ClusterSpec::kLastIndex}) index = static_cast<int>(number);
  } else if (value.is_string()) {
    index = index_of(value.get_ref<const std::string&>());
  }
  if (!index) origin.refuse_value(pointer, value, "an index from 0 to 999999");
  return *index;
}

int read_index_key(const JsonOrigin& origin, const std::string& pointer, const std::string& key) {
  const std::optional<int> index = index_of(key);
  if (!index) {
    origin.refuse_at(
        pointer, message(in_quotes(key), " is not an index from 0 to ", ClusterSpec::kLastIndex));
  }
  return *index;
}

std::string json_text(const std::string& value) {
  return Json(value).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tutti::internal
