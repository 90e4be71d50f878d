// SPDX-License-Identifier: Apache-2.0
//
// A strategy chosen when the program starts: by flags, a JSON file, or a struct.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/strategy/strategy.h"

namespace tutti {

/// Which strategy to make. Keys of the JSON form have the same names. A plain value.
struct StrategyConfig {
  /// "mirrored", "multi_worker_mirrored", "central_storage", "one_device" or "default"
  std::string strategy = "mirrored";
  std::vector<std::string> devices = {};
  std::string parameter_device = {};  ///< for central_storage
  int threads_per_replica = 0;
  int concurrent_replicas = 0;

  // These are for multi_worker_mirrored. Times are in seconds; 0, and empty names, leave the choice
  // to the environment.
  int join_timeout = 0;
  int communication_timeout = 0;
  std::string tls_ca_file = {};
  std::string tls_certificate_file = {};
  std::string tls_key_file = {};

  /// Reads {"strategy": "mirrored", "devices": ["CPU:0", "CPU:1"], ...}. Throws
  /// kInvalidArgument, which names the offending key and lists the known ones.
  static StrategyConfig from_json(std::string_view text);

  bool operator==(const StrategyConfig&) const = default;
};

Strategy make_strategy(const StrategyConfig& config);

/// Removes these flags from argv and leaves all others:
///   --strategy=mirrored|multi_worker_mirrored|central_storage|one_device|default
///   --devices=CPU:0,CPU:1
///   --parameter-device=CPU:0   --threads-per-replica=N   --concurrent-replicas=N
///   --join-timeout=SECONDS   --communication-timeout=SECONDS
///   --tls-ca-file=FILE   --tls-certificate-file=FILE   --tls-key-file=FILE
///   --strategy-config=FILE
/// A flag takes precedence over the file. "--flag value" is accepted as well.
Strategy make_strategy(int& argc, char** argv);

/// Reads the same flags without making the strategy.
StrategyConfig parse_strategy_flags(int& argc, char** argv);

/// Describes the flags, for a program's own --help.
const char* strategy_flags_help();

}  // namespace tutti
