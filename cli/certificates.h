// SPDX-License-Identifier: Apache-2.0
//
// Certificates for one job: a certificate authority that exists only to sign them, and whose key is
// discarded. The command tutti-certs does the same from a shell.

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tutti/rpc/security.h"

namespace tutti::cli {

/// One process, or one machine, of a job. A plain value.
struct TaskCertificate {
  std::string name;                ///< stem of its file names: letters, digits and . - _
  std::vector<std::string> hosts;  ///< names and IP addresses at which others reach it
};

/// Writes ca.pem, and <name>.pem and <name>.key for each task, into `folder`, which is created if
/// needed. The keys are ECDSA P-256, readable only by the user; the key of the authority is not
/// written, so that it cannot sign further certificates. Throws kInvalidArgument for bad names,
/// kFailedPrecondition if a file already exists or cannot be written.
void make_throwaway_ca(const std::string& folder, const std::vector<TaskCertificate>& tasks,
                       std::chrono::hours validity = std::chrono::hours(24 * 30));

/// SecurityOptions that name the files of one task in such a folder.
rpc::SecurityOptions certificates_in(const std::string& folder, const std::string& name);

}  // namespace tutti::cli
