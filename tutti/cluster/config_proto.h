// SPDX-License-Identifier: Apache-2.0
//
// The part of TensorFlow's session configuration that strategies set. Tutti has no sessions;
// programs written for them keep their calls (compat/tf_v1.h).

#pragma once

#include <string>
#include <vector>

namespace tutti {

/// A plain value.
struct ConfigProto {
  /// The tasks and devices that a task may talk to, "/job:ps" or "/job:worker/task:1". Empty: all.
  std::vector<std::string> device_filters = {};

  bool isolate_session_state = false;

  struct Experimental {
    /// The task that leads the collective calls of a job, "/job:worker/replica:0/task:0".
    std::string collective_group_leader = "";

    bool operator==(const Experimental&) const = default;
  };
  Experimental experimental = {};

  bool operator==(const ConfigProto&) const = default;
};

}  // namespace tutti
