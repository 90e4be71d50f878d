// SPDX-License-Identifier: Apache-2.0
//
// Reads the JSON of clusters: that of ClusterSpec::from_json() and the variable TF_CONFIG. The text
// comes from outside, so its size and depth are bounded, and errors say where they are.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/cluster/cluster_spec.h"

namespace tutti::internal {

constexpr size_t kLongestJson = size_t{1} << 20;
constexpr int kDeepestJson = 16;

/// A TF_CONFIG that is right, for messages.
extern const char* const kTfConfigExample;

/// What TF_CONFIG holds; keys that are not here are ignored.
struct TfConfig {
  bool has_anything = false;  ///< Not just {}.
  bool has_cluster = false;   ///< The key is there, perhaps with no job.
  ClusterSpec cluster;
  std::optional<std::string> task_type;
  std::optional<int> task_id;
  std::string rpc_layer;
  std::optional<std::string> session_master;
  std::string environment;
};

/// Both throw kInvalidArgument with the line and column, or the JSON pointer, of what is wrong.
TfConfig parse_tf_config(std::string_view text);
ClusterSpec parse_cluster_json(std::string_view text);

}  // namespace tutti::internal
