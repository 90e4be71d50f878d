// SPDX-License-Identifier: Apache-2.0
//
// Authentication between processes. All processes of a job share a secret; with certificates the
// connections are encrypted too (mutual TLS). docs/guide/security.md says which to choose.

#pragma once

#include <string>

namespace tutti::rpc {

/// The certificates are PEM files: give all three or none. A plain value.
struct SecurityOptions {
  std::string job_secret = {};        ///< at least 16 bytes; empty: see find_job_secret
  std::string ca_file = {};           ///< the CA that must have signed a peer's certificate
  std::string certificate_file = {};  ///< this process's own certificate
  std::string key_file = {};          ///< and its private key

  bool has_certificates() const {
    return !ca_file.empty() || !certificate_file.empty() || !key_file.empty();
  }
};

/// Returns options.job_secret, else TUTTI_JOB_SECRET, else the content of the file named by
/// TUTTI_JOB_SECRET_FILE (without trailing white space), which must belong to this user or root, be
/// writable only by its owner and not readable by others. Else, only if `loopback_only`, a secret
/// of this user, created on first use in $XDG_RUNTIME_DIR/tutti or ~/.local/state/tutti and
/// readable only by the user. Throws kFailedPrecondition if there is none, or if it is too short or
/// unreadable. Thread-safe; several processes may create the file concurrently.
std::string find_job_secret(const SecurityOptions& options, bool loopback_only);

/// The options, with the files of TUTTI_TLS_CA_FILE, TUTTI_TLS_CERTIFICATE_FILE and
/// TUTTI_TLS_KEY_FILE if the options name no certificates.
SecurityOptions with_environment(SecurityOptions options);

/// Whether the host of "host:port" is this machine itself (localhost, 127.x.y.z, ::1). Does not
/// resolve names.
bool is_loopback(const std::string& address);

}  // namespace tutti::rpc
