// SPDX-License-Identifier: Apache-2.0
//
// The job secret and its source. Errors may show the source, but never the secret.

#pragma once

#include <string>

#include "tutti/rpc/security.h"

namespace tutti::rpc::internal {

struct JobSecret {
  std::string value;   ///< empty: there is none
  std::string source;  ///< "TUTTI_JOB_SECRET", a path, ...
};

/// The secret given by options or environment, if any.
JobSecret given_job_secret(const SecurityOptions& options);
/// Behaves like find_job_secret().
JobSecret locate_job_secret(const SecurityOptions& options, bool loopback_only);

}  // namespace tutti::rpc::internal
