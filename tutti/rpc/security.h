// SPDX-License-Identifier: Apache-2.0
//
// Who may talk to whom. All processes of a job share a secret; with certificates the connections
// are encrypted too (mutual TLS). docs/guide/security.md says which to choose.

#pragma once

#include <string>

namespace tutti::rpc {

/// The certificates are PEM files: all three or none. Plain data.
struct SecurityOptions {
  std::string job_secret = {};        ///< at least 16 bytes; empty: see find_job_secret
  std::string ca_file = {};           ///< whose signature a peer's certificate must have
  std::string certificate_file = {};  ///< this process's own certificate
  std::string key_file = {};          ///< and its private key

  bool has_certificates() const {
    return !ca_file.empty() || !certificate_file.empty() || !key_file.empty();
  }
};

/// options.job_secret, else TUTTI_JOB_SECRET, else the content of the file named by
/// TUTTI_JOB_SECRET_FILE (without white space at the end), which must belong to this user or root;
/// no others may read it, and nobody else change it. Else, only if `loopback_only`, a secret
/// of this user that is made on first use in $XDG_RUNTIME_DIR/tutti or ~/.local/state/tutti,
/// readable by the user alone. Else, or if the secret found is too short or unreadable,
/// kFailedPrecondition. Thread-safe; several processes may make the file at once.
std::string find_job_secret(const SecurityOptions& options, bool loopback_only);

/// The options, with the files of TUTTI_TLS_CA_FILE, TUTTI_TLS_CERTIFICATE_FILE and
/// TUTTI_TLS_KEY_FILE if they have no certificates themselves.
SecurityOptions with_environment(SecurityOptions options);

/// Is the host of "host:port" this machine itself (localhost, 127.x.y.z, ::1)? Asks no name server.
bool is_loopback(const std::string& address);

}  // namespace tutti::rpc
