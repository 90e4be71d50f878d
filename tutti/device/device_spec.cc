// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/device_spec.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

[[noreturn]] void fail(std::string_view text, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument,
              message("DeviceSpec: cannot read \"", text, "\": ", reason,
                      ". Write for example \"CPU:0\", \"/gpu:1\" or "
                      "\"/job:worker/replica:0/task:1/device:CPU:0\"."));
}

// One name being read; each setter rejects a field that was given before.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  DeviceSpec read() {
    for (std::string_view part : split(text_, '/')) {
      if (!part.empty()) read_part(part);
    }
    return spec_;
  }

 private:
  void read_part(std::string_view part) {
    const auto words = split(part, ':');
    const std::string key = upper(words[0]);
    if (key == "JOB") {
      read_job(part, words);
    } else if (key == "REPLICA") {
      read_number(part, words, spec_.replica);
    } else if (key == "TASK") {
      read_number(part, words, spec_.task);
    } else if (key == "DEVICE") {
      if (words.size() != 3) fail(text_, message("\"", part, "\" is not device:TYPE:INDEX"));
      read_device(part, words[1], words[2]);
    } else if (key == "CPU" || key == "GPU" || key == "TPU") {
      if (words.size() > 2) fail(text_, message("\"", part, "\" is not TYPE:INDEX"));
      read_device(part, words[0], words.size() == 2 ? words[1] : std::string_view("*"));
    } else {
      fail(text_,
           message("\"", part, "\" is not one of job, replica, task, device, CPU, GPU, TPU"));
    }
  }

  void read_job(std::string_view part, const std::vector<std::string_view>& words) {
    const auto is_name_char = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
    if (words.size() != 2 || words[1].empty() ||
        (words[1] != "*" && !std::all_of(words[1].begin(), words[1].end(), is_name_char))) {
      fail(text_, message("\"", part, "\" is not job:NAME with letters, digits and _"));
    }
    if (spec_.job) fail(text_, "the job is given twice");
    if (words[1] == "*") return;
    spec_.job = std::string(words[1]);
  }

  void read_number(std::string_view part, const std::vector<std::string_view>& words,
                   std::optional<int>& field) {
    if (words.size() != 2) fail(text_, message("\"", part, "\" is not ", words[0], ":NUMBER"));
    if (words[1] == "*") return;
    if (field) fail(text_, message("the ", words[0], " is given twice"));
    field = number(part, words[1]);
  }

  void read_device(std::string_view part, std::string_view type, std::string_view index) {
    if (device_given_) fail(text_, "the device is given twice");
    device_given_ = true;
    if (type.empty()) fail(text_, message("\"", part, "\" has no device type"));
    if (type != "*") spec_.type = upper(type);
    if (index != "*") spec_.index = number(part, index);
  }

  int number(std::string_view part, std::string_view digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() ||
        value < 0) {
      fail(text_, message("\"", digits, "\" in \"", part, "\" is not a non-negative integer"));
    }
    return value;
  }

  std::string_view text_;
  DeviceSpec spec_;
  bool device_given_ = false;
};

template <class Field>
void override_with(Field& field, const Field& other) {
  if (other) field = other;
}

template <class Field>
bool allows(const Field& pattern, const Field& value) {
  return !pattern || pattern == value;
}

}  // namespace

DeviceSpec DeviceSpec::parse(std::string_view text) { return Reader(text).read(); }

DeviceSpec DeviceSpec::canonical(std::string_view text) {
  const DeviceSpec defaults{"localhost", 0, 0, "CPU", 0};
  return defaults.merged_with(parse(text));
}

DeviceSpec DeviceSpec::merged_with(const DeviceSpec& other) const {
  DeviceSpec result = *this;
  override_with(result.job, other.job);
  override_with(result.replica, other.replica);
  override_with(result.task, other.task);
  override_with(result.type, other.type);
  override_with(result.index, other.index);
  return result;
}

bool DeviceSpec::matches(const DeviceSpec& pattern) const {
  return allows(pattern.job, job) && allows(pattern.replica, replica) &&
         allows(pattern.task, task) && allows(pattern.type, type) && allows(pattern.index, index);
}

std::string DeviceSpec::to_string() const {
  std::string text;
  if (job) text += message("/job:", *job);
  if (replica) text += message("/replica:", *replica);
  if (task) text += message("/task:", *task);
  if (type || index) text += message("/device:", short_name());
  return text;
}

std::string DeviceSpec::short_name() const {
  return message(type.value_or("*"), ":", index ? std::to_string(*index) : "*");
}

std::ostream& operator<<(std::ostream& out, const DeviceSpec& spec) {
  return out << spec.to_string();
}

}  // namespace tutti
