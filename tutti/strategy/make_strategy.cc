// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/make_strategy.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/default_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

namespace tutti {
namespace {

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
    refuse(message(flag, " is \"", text, "\"; it must be a number from 0 (automatic) up."));
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
  if (!fits) refuse_value(key, value, "a whole number from 0 (automatic) up");
  return value.get<int>();
}

// The flags found, by name; takes them out of argv.
std::map<std::string, std::string> take_flags(int& argc, char** argv) {
  static const char* const kNames[] = {"--strategy",
                                       "--devices",
                                       "--parameter-device",
                                       "--threads-per-replica",
                                       "--concurrent-replicas",
                                       "--strategy-config"};
  std::map<std::string, std::string> found;
  int kept = argc > 0 ? 1 : 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    bool ours = false;
    for (const char* known : kNames) ours = ours || name == known;
    if (!ours) {
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

}  // namespace

StrategyConfig StrategyConfig::from_json(std::string_view text) {
  StrategyConfig config;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (!json.is_object()) refuse("the configuration is no JSON object {...}.");
    for (const auto& [key, value] : json.items()) {
      if (key == "strategy") {
        if (!value.is_string()) refuse_value(key, value, "a string");
        config.strategy = value.get<std::string>();
      } else if (key == "devices") {
        config.devices = read_devices(value);
      } else if (key == "parameter_device") {
        if (!value.is_string()) refuse_value(key, value, "a string");
        config.parameter_device = value.get<std::string>();
      } else if (key == "threads_per_replica") {
        config.threads_per_replica = read_count(key, value);
      } else if (key == "concurrent_replicas") {
        config.concurrent_replicas = read_count(key, value);
      } else {
        refuse(message("unknown key \"", key,
                       "\"; known are strategy, devices, parameter_device, "
                       "threads_per_replica, concurrent_replicas."));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(message("the configuration is not as expected: ", error.what()));
  }
  return config;
}

StrategyConfig parse_strategy_flags(int& argc, char** argv) {
  const auto flags = take_flags(argc, argv);
  const auto flag = [&flags](const char* name) -> std::optional<std::string> {
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
  if (const auto name = flag("--strategy")) config.strategy = *name;
  if (const auto devices = flag("--devices")) config.devices = split_devices(*devices);
  if (const auto device = flag("--parameter-device")) config.parameter_device = *device;
  if (const auto count = flag("--threads-per-replica")) {
    config.threads_per_replica = parse_count("--threads-per-replica", *count);
  }
  if (const auto count = flag("--concurrent-replicas")) {
    config.concurrent_replicas = parse_count("--concurrent-replicas", *count);
  }
  return config;
}

Strategy make_strategy(const StrategyConfig& config) {
  if (!config.parameter_device.empty() && config.strategy != "central_storage") {
    refuse(message("parameter_device is \"", config.parameter_device, "\", but ", config.strategy,
                   " has none; only central_storage has."));
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
    return MultiWorkerMirroredStrategy(
        nullptr, {.devices = config.devices,
                  .runner = {.threads_per_replica = config.threads_per_replica,
                             .concurrent_replicas = config.concurrent_replicas}});
  }
  if (config.strategy == "one_device") {
    if (config.devices.size() > 1) {
      refuse(message("one_device takes one device, not ", config.devices.size(),
                     "; use mirrored for several."));
    }
    return OneDeviceStrategy(config.devices.empty() ? "CPU:0" : config.devices[0],
                             {.threads_per_replica = config.threads_per_replica});
  }
  if (config.strategy == "default") {
    if (!config.devices.empty()) refuse("the default strategy takes no devices.");
    return Strategy(default_strategy_extended());
  }
  refuse(message("unknown strategy \"", config.strategy,
                 "\"; known are mirrored, multi_worker_mirrored, central_storage, one_device, "
                 "default."));
}

Strategy make_strategy(int& argc, char** argv) {
  return make_strategy(parse_strategy_flags(argc, argv));
}

const char* strategy_flags_help() {
  return "  --strategy=NAME           mirrored (default), multi_worker_mirrored (the cluster\n"
         "                            is found in the environment), central_storage,\n"
         "                            one_device or default\n"
         "  --devices=LIST            e.g. CPU:0,CPU:1 or GPU:0; empty: all GPUs, else all CPUs\n"
         "  --parameter-device=NAME   of central_storage, e.g. CPU:0\n"
         "  --threads-per-replica=N   0: usable cores divided by replicas\n"
         "  --concurrent-replicas=N   0: all at once; 1: one after the other\n"
         "  --strategy-config=FILE    the same settings as JSON; flags win over it\n";
}

}  // namespace tutti
