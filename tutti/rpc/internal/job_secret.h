// SPDX-License-Identifier: Apache-2.0
//
// The job secret together with where it was found, which errors may tell; the secret they never do.

#pragma once

#include <string>

#include "tutti/rpc/security.h"

namespace tutti::rpc::internal {

struct JobSecret {
  std::string value;   ///< empty: there is none
  std::string source;  ///< "TUTTI_JOB_SECRET", a path, ...
};

/// What was given by options or environment, if anything.
JobSecret given_job_secret(const SecurityOptions& options);
/// As find_job_secret().
JobSecret locate_job_secret(const SecurityOptions& options, bool loopback_only);

}  // namespace tutti::rpc::internal
