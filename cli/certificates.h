// SPDX-License-Identifier: Apache-2.0
//
// Certificates for one job: a certificate authority that exists only to sign them, and whose key
// nobody keeps. The command tutti-certs does the same from a shell.

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tutti/rpc/security.h"

namespace tutti::cli {

/// One process, or one machine, of a job.
struct TaskCertificate {
  std::string name;                ///< of its files: letters, digits and . - _
  std::vector<std::string> hosts;  ///< names and IP addresses under which others reach it
};

/// Writes ca.pem, and <name>.pem and <name>.key for each task, into `folder`, which is made if
/// needed. Keys are readable by the user alone; the key of the authority is not written, so that
/// no further certificates can be made. ECDSA P-256. kInvalidArgument for bad names,
/// kFailedPrecondition if a file is there already or cannot be written.
void make_throwaway_ca(const std::string& folder, const std::vector<TaskCertificate>& tasks,
                       std::chrono::hours validity = std::chrono::hours(24 * 30));

/// The files of one task in such a folder, as SecurityOptions.
rpc::SecurityOptions certificates_in(const std::string& folder, const std::string& name);

}  // namespace tutti::cli
