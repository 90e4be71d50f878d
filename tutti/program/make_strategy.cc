// SPDX-License-Identifier: Apache-2.0

#include "tutti/program/make_strategy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/default_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

namespace tutti {
namespace {

constexpr std::array<std::string_view, 5> kStrategies = {
    "mirrored", "multi_worker_mirrored", "central_storage", "one_device", "default"};

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, message("make_strategy: ", reason));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw Error(ErrorCode::kNotFound, message("make_strategy: cannot read the file \"", path,
                                              "\" given by "
                                              "--strategy-config."));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> split_devices(const std::string& text) {
  std::vector<std::string> devices;
  std::istringstream in(text);
  for (std::string device; std::getline(in, device, ',');) devices.push_back(device);
  return devices;
}

int parse_count(const std::string& flag, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    refuse(message(flag, " is \"", text, "\"; it must be 0 (automatic) or a positive number."));
  }
  return value;
}

[[noreturn]] void refuse_value(const std::string& key, const nlohmann::json& value,
                               const char* wanted) {
  refuse(message("\"", key, "\" is ", value.dump(), "; it must be ", wanted, "."));
}

std::vector<std::string> read_devices(const nlohmann::json& value) {
  const bool strings = value.is_array() && std::all_of(value.begin(), value.end(),
                                                       [](auto& each) { return each.is_string(); });
  if (!strings) refuse_value("devices", value, "a list of strings");
  return value.get<std::vector<std::string>>();
}

int read_count(const std::string& key, const nlohmann::json& value) {
  const bool fits =
      value.is_number_integer() && value >= 0 && value <= std::numeric_limits<int>::max();
  if (!fits) refuse_value(key, value, "0 (automatic) or a positive whole number");
  return value.get<int>();
}

// Fields of the configuration without special handling; "join_timeout" is also --join-timeout.
struct Count {
  const char* key;
  int StrategyConfig::*field;
};
struct Text {
  const char* key;
  std::string StrategyConfig::*field;
};
constexpr Count kCounts[] = {{"threads_per_replica", &StrategyConfig::threads_per_replica},
                             {"concurrent_replicas", &StrategyConfig::concurrent_replicas},
                             {"join_timeout", &StrategyConfig::join_timeout},
                             {"communication_timeout", &StrategyConfig::communication_timeout}};
constexpr Text kTexts[] = {{"strategy", &StrategyConfig::strategy},
                           {"parameter_device", &StrategyConfig::parameter_device},
                           {"tls_ca_file", &StrategyConfig::tls_ca_file},
                           {"tls_certificate_file", &StrategyConfig::tls_certificate_file},
                           {"tls_key_file", &StrategyConfig::tls_key_file}};

std::string flag_of(const char* key) {
  std::string flag = message("--", key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// Returns whether the key is one of these; if so, sets the field to the value.
bool read_count_or_text(StrategyConfig& config, const std::string& key,
                        const nlohmann::json& value) {
  for (const Count& count : kCounts) {
    if (key != count.key) continue;
    config.*count.field = read_count(key, value);
    return true;
  }
  for (const Text& text : kTexts) {
    if (key != text.key) continue;
    if (!value.is_string()) refuse_value(key, value, "a string");
    config.*text.field = value.get<std::string>();
    return true;
  }
  return false;
}

bool is_flag(const std::string& name) {
  const auto same = [&name](const auto& each) { return name == flag_of(each.key); };
  return name == "--devices" || name == "--strategy-config" ||
         std::any_of(std::begin(kCounts), std::end(kCounts), same) ||
         std::any_of(std::begin(kTexts), std::end(kTexts), same);
}

// Returns the flags found, by name, and removes them from argv.
std::map<std::string, std::string> take_flags(int& argc, char** argv) {
  std::map<std::string, std::string> found;
  int kept = argc > 0 ? 1 : 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (!is_flag(name)) {
      argv[kept++] = argv[i];
      continue;
    }
    if (found.count(name) != 0) refuse(message(name, " is given twice."));
    if (equals != std::string::npos) {
      found[name] = argument.substr(equals + 1);
    } else if (i + 1 < argc) {
      found[name] = argv[++i];
    } else {
      refuse(message(name, " needs a value, e.g. ", name, "=...\n", strategy_flags_help()));
    }
  }
  if (argc > 0) argv[kept] = nullptr;
  argc = kept;
  return found;
}

MultiWorkerMirroredStrategyOptions multi_worker_options(const StrategyConfig& config) {
  MultiWorkerMirroredStrategyOptions options;
  options.devices = config.devices;
  options.runner = {.threads_per_replica = config.threads_per_replica,
                    .concurrent_replicas = config.concurrent_replicas};
  options.security = {.ca_file = config.tls_ca_file,
                      .certificate_file = config.tls_certificate_file,
                      .key_file = config.tls_key_file};
  if (config.join_timeout > 0) options.join_timeout = std::chrono::seconds(config.join_timeout);
  if (config.communication_timeout > 0) {
    options.communication_options.timeout = std::chrono::seconds(config.communication_timeout);
  }
  return options;
}

}  // namespace

StrategyConfig StrategyConfig::from_json(std::string_view text) {
  StrategyConfig config;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (!json.is_object()) refuse("the configuration is not a JSON object {...}.");
    for (const auto& [key, value] : json.items()) {
      if (key == "devices") {
        config.devices = read_devices(value);
      } else if (!read_count_or_text(config, key, value)) {
        refuse(message("unknown key \"", key,
                       "\"; known are strategy, devices, parameter_device, "
                       "threads_per_replica, concurrent_replicas, join_timeout, "
                       "communication_timeout, tls_ca_file, tls_certificate_file, tls_key_file."));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(message("the configuration is not as expected: ", error.what()));
  }
  return config;
}

StrategyConfig parse_strategy_flags(int& argc, char** argv) {
  const auto flags = take_flags(argc, argv);
  const auto flag = [&flags](const std::string& name) -> std::optional<std::string> {
    const auto found = flags.find(name);
    if (found == flags.end()) return std::nullopt;
    return found->second;
  };
  StrategyConfig config;
  if (const auto path = flag("--strategy-config")) {
    try {
      config = StrategyConfig::from_json(read_file(*path));
    } catch (const Error& error) {
      throw Error(error.code(), message(error.what(), " (in the file \"", *path, "\")"));
    }
  }
  if (const auto devices = flag("--devices")) config.devices = split_devices(*devices);
  for (const Text& text : kTexts) {
    if (const auto value = flag(flag_of(text.key))) config.*text.field = *value;
  }
  for (const Count& count : kCounts) {
    const std::string name = flag_of(count.key);
    if (const auto value = flag(name)) config.*count.field = parse_count(name, *value);
  }
  return config;
}

Strategy make_strategy(const StrategyConfig& config) {
  if (std::find(kStrategies.begin(), kStrategies.end(), config.strategy) == kStrategies.end()) {
    refuse(message("unknown strategy \"", config.strategy,
                   "\"; known are mirrored, multi_worker_mirrored, central_storage, one_device, "
                   "default."));
  }
  if (!config.parameter_device.empty() && config.strategy != "central_storage") {
    refuse(message("parameter_device is \"", config.parameter_device, "\", but ", config.strategy,
                   " has no parameter device; only central_storage has one."));
  }
  const bool has_peers = config.join_timeout != 0 || config.communication_timeout != 0 ||
                         !config.tls_ca_file.empty() || !config.tls_certificate_file.empty() ||
                         !config.tls_key_file.empty();
  if (has_peers && config.strategy != "multi_worker_mirrored") {
    refuse(message("timeouts and TLS files are for multi_worker_mirrored, not for ",
                   config.strategy, "."));
  }
  if (config.strategy == "mirrored") {
    return MirroredStrategy(config.devices,
                            {.runner = {.threads_per_replica = config.threads_per_replica,
                                        .concurrent_replicas = config.concurrent_replicas}});
  }
  if (config.strategy == "central_storage") {
    return CentralStorageStrategy(config.devices, config.parameter_device,
                                  {.runner = {.threads_per_replica = config.threads_per_replica,
                                              .concurrent_replicas = config.concurrent_replicas}});
  }
  if (config.strategy == "multi_worker_mirrored") {
    return MultiWorkerMirroredStrategy(nullptr, multi_worker_options(config));
  }
  if (config.strategy == "one_device") {
    if (config.devices.size() > 1) {
      refuse(message("one_device takes one device, not ", config.devices.size(),
                     "; use mirrored for several."));
    }
    return OneDeviceStrategy(config.devices.empty() ? "CPU:0" : config.devices[0],
                             {.threads_per_replica = config.threads_per_replica});
  }
  if (!config.devices.empty()) refuse("the default strategy takes no devices.");
  return Strategy(default_strategy_extended());
}

Strategy make_strategy(int& argc, char** argv) {
  return make_strategy(parse_strategy_flags(argc, argv));
}

const char* strategy_flags_help() {
  return "  --strategy=NAME           mirrored (default), multi_worker_mirrored (the cluster\n"
         "                            is found in the environment), central_storage,\n"
         "                            one_device or default\n"
         "  --devices=LIST            e.g. CPU:0,CPU:1 or GPU:0; empty: all GPUs, else all CPUs\n"
         "  --parameter-device=NAME   for central_storage, e.g. CPU:0\n"
         "  --threads-per-replica=N   0: usable cores divided by replicas and workers\n"
         "  --concurrent-replicas=N   0: all at once; 1: one after the other\n"
         "  --join-timeout=SECONDS    how long to wait for all workers to join\n"
         "  --communication-timeout=SECONDS  limit of one call between workers\n"
         "  --tls-ca-file=FILE --tls-certificate-file=FILE --tls-key-file=FILE\n"
         "                            certificates of this worker (PEM)\n"
         "  --strategy-config=FILE    the same settings as JSON; flags take precedence\n";
}

}  // namespace tutti
