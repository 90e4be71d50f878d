// SPDX-License-Identifier: Apache-2.0
//
// Reads the JSON of clusters: for ClusterSpec::from_json() and for the variable TF_CONFIG. The text
// is untrusted, so its size and depth are bounded, and errors say where they are.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/cluster/cluster_spec.h"

namespace tutti::internal {

/// A valid TF_CONFIG, for messages.
extern const char* const kTfConfigExample;

/// The content of TF_CONFIG; other keys are ignored.
struct TfConfig {
  bool has_anything = false;  ///< False for {}.
  bool has_cluster = false;   ///< The key is present, perhaps without jobs.
  ClusterSpec cluster;
  std::optional<std::string> task_type;
  std::optional<int> task_id;
  std::string rpc_layer;
  std::optional<std::string> session_master;
  std::string environment;
};

/// Both throw kInvalidArgument with the line and column, or the JSON pointer, of the mistake.
TfConfig parse_tf_config(std::string_view text);
ClusterSpec parse_cluster_json(std::string_view text);

}  // namespace tutti::internal
