// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/cluster_json.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/variables.h"

namespace tutti::internal {

const char* const kTfConfigExample =
    "TF_CONFIG='{\"cluster\": {\"worker\": [\"hostA:4321\", \"hostB:4321\"]}, "
    "\"task\": {\"type\": \"worker\", \"index\": 0}}'";

namespace {

using Json = nlohmann::json;

// Who reads, and a valid example: the beginning and the end of each message.
struct JsonOrigin {
  const char* who;
  std::string example;

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, message(who, ": ", what, ". Example: ", example));
  }

  [[noreturn]] void refuse_at(const std::string& pointer, const std::string& what) const {
    refuse(message("at ", in_quotes(pointer.empty() ? "/" : pointer), ": ", what));
  }

  // `wanted` describes the expected value: "a list of addresses".
  [[noreturn]] void refuse_value(const std::string& pointer, const Json& value,
                                 const char* wanted) const {
    std::string shown = value.dump();
    if (value.is_string()) {
      shown = in_quotes(value.get_ref<const std::string&>());
    } else if (shown.size() > 40) {
      shown = message("a value of type ", value.type_name());
    }
    refuse_at(pointer, message("expected ", wanted, ", got ", shown));
  }
};

std::string append_to_pointer(const std::string& pointer, const std::string& key) {
  return (Json::json_pointer(pointer) / key).to_string();
}

// Detects what the parser accepts silently: unbounded nesting and duplicate keys.
class JsonWatch {
 public:
  explicit JsonWatch(const JsonOrigin& origin) : origin_(origin) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kDeepestJson) {
          origin_.refuse(message("the JSON is nested more than ", kDeepestJson, " levels deep"));
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

Json parse_json(std::string_view text, const JsonOrigin& origin) {
  if (text.size() > kLongestJson) {
    origin.refuse(message("the text has ", text.size(), " bytes; the limit is ", kLongestJson));
  }
  try {
    JsonWatch watch(origin);
    Json json = Json::parse(text.begin(), text.end(),
                            [&](int depth, Json::parse_event_t event, const Json& parsed) {
                              return watch(depth, event, parsed);
                            });
    if (!json.is_object()) origin.refuse_value("", json, "an object {...}");
    return json;
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

std::optional<int> number_of(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_index(std::optional<int> value) {
  return value && *value >= 0 && *value <= ClusterSpec::kLastIndex;
}

std::string read_task_address(const JsonOrigin& origin, const std::string& pointer,
                              const Json& value) {
  if (!value.is_string()) origin.refuse_value(pointer, value, "an address \"host:port\"");
  const auto& text = value.get_ref<const std::string&>();
  try {
    parse_address(text);
  } catch (const Error& error) {
    throw Error(error.code(), message(origin.who, ": at ", in_quotes(pointer), ": ", error.what()));
  }
  return text;
}

std::map<int, std::string> read_tasks(const JsonOrigin& origin, const std::string& pointer,
                                      const Json& value) {
  std::map<int, std::string> tasks;
  if (value.is_array()) {
    if (value.size() > size_t{ClusterSpec::kLastIndex}) {
      origin.refuse_at(pointer, message("the list has ", value.size(), " tasks"));
    }
    for (const Json& address : value) {
      const int index = static_cast<int>(tasks.size());
      tasks[index] =
          read_task_address(origin, append_to_pointer(pointer, std::to_string(index)), address);
    }
  } else if (value.is_object()) {
    for (const auto& [key, address] : value.items()) {
      const std::string here = append_to_pointer(pointer, key);
      const auto index = number_of(key);
      if (!is_index(index)) {
        origin.refuse_at(
            here, message(in_quotes(key), " is not an index from 0 to ", ClusterSpec::kLastIndex));
      }
      if (tasks.count(*index) != 0) origin.refuse_at(here, "duplicate index");
      tasks[*index] = read_task_address(origin, here, address);
    }
  } else {
    origin.refuse_value(pointer, value, "a list of addresses or an object of index and address");
  }
  return tasks;
}

ClusterSpec read_cluster(const JsonOrigin& origin, const std::string& pointer, const Json& value) {
  if (!value.is_object()) origin.refuse_value(pointer, value, "an object of jobs");
  ClusterSpec::Jobs jobs;
  for (const auto& [job, tasks] : value.items()) {
    if (job.empty()) origin.refuse_at(pointer, "a job has an empty name");
    jobs[job] = read_tasks(origin, append_to_pointer(pointer, job), tasks);
  }
  return ClusterSpec::sparse(std::move(jobs));
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
    index = number_of(value.get_ref<const std::string&>());
  }
  if (!is_index(index)) origin.refuse_value(pointer, value, "an index from 0 to 999999");
  return *index;
}

void read_task(const JsonOrigin& origin, const Json& task, TfConfig& config) {
  if (!task.is_object())
    origin.refuse_value("/task", task, "an object with \"type\" and \"index\"");
  if (const auto type = task.find("type"); type != task.end()) {
    // A job may have a number as its name, which some programs write without quotes.
    config.task_type =
        type->is_number_integer() ? type->dump() : read_string(origin, "/task/type", *type);
  }
  if (const auto index = task.find("index"); index != task.end()) {
    config.task_id = read_index(origin, "/task/index", *index);
  }
}

}  // namespace

TfConfig parse_tf_config(std::string_view text) {
  const JsonOrigin origin{"TF_CONFIG", kTfConfigExample};
  const Json json = parse_json(text, origin);
  TfConfig config;
  config.has_anything = !json.empty();
  if (const auto cluster = json.find("cluster"); cluster != json.end()) {
    config.has_cluster = true;
    config.cluster = read_cluster(origin, "/cluster", *cluster);
  }
  if (const auto task = json.find("task"); task != json.end()) read_task(origin, *task, config);
  if (const auto layer = json.find("rpc_layer"); layer != json.end()) {
    config.rpc_layer = read_string(origin, "/rpc_layer", *layer);
  }
  if (const auto master = json.find("session_master"); master != json.end()) {
    config.session_master = read_string(origin, "/session_master", *master);
  }
  if (const auto environment = json.find("environment"); environment != json.end()) {
    config.environment = read_string(origin, "/environment", *environment);
  }
  return config;
}

ClusterSpec parse_cluster_json(std::string_view text) {
  const JsonOrigin origin{"ClusterSpec", "{\"worker\": [\"hostA:4321\", \"hostB:4321\"]}"};
  return read_cluster(origin, "", parse_json(text, origin));
}

}  // namespace tutti::internal
