// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/security.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/rpc/file_descriptor.h"
#include "tutti/rpc/internal/job_secret.h"
#include "tutti/rpc/internal/random.h"
#include "tutti/rpc/internal/sockets.h"

namespace tutti::rpc {
namespace {

constexpr size_t kShortestSecret = 16;
constexpr size_t kLongestSecret = 4096;
constexpr const char* kAdvice =
    "Set TUTTI_JOB_SECRET, or TUTTI_JOB_SECRET_FILE to the path of a file, to the same random text "
    "for all processes of the job (for example from: openssl rand -hex 32).";

[[noreturn]] void fail_secret(const std::string& what) {
  throw Error(ErrorCode::kFailedPrecondition, message("rpc: ", what, " ", kAdvice));
}

internal::JobSecret checked(std::string value, std::string source) {
  if (value.size() < kShortestSecret || value.size() > kLongestSecret) {
    fail_secret(message("the job secret from ", source, " has ", value.size(),
                        " bytes; it must have ", kShortestSecret, " to ", kLongestSecret, "."));
  }
  return {std::move(value), std::move(source)};
}

/// Returns nothing if the file does not exist.
std::optional<std::string> read_secret_file(const std::string& path, bool own) {
  const int flags = O_RDONLY | O_CLOEXEC | (own ? O_NOFOLLOW : 0);
  const FileDescriptor fd(open(path.c_str(), flags));
  if (!fd.is_open() && errno == ENOENT) return {};
  struct stat info = {};
  if (!fd.is_open() || fstat(fd.get(), &info) != 0) {
    fail_secret(message("cannot read the job secret in the file ", path, ": ",
                        std::generic_category().message(errno), "."));
  }
  const auto refuse = [&](const char* why, const char* remedy) {
    fail_secret(
        message("the job secret file ", path, " ", why, ". ", own ? "Delete it" : remedy, ". Or:"));
  };
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    refuse("belongs to another user", "Change its owner (chown)");
  }
  if ((info.st_mode & (S_IWGRP | S_IRWXO)) != 0) {
    refuse("can be read or changed by other users", "Restrict its permissions (chmod 600)");
  }
  if (own && !S_ISREG(info.st_mode)) refuse("is not a regular file", "");
  std::array<char, kLongestSecret + 2> bytes;
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t count = read(fd.get(), bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    size += static_cast<size_t>(count);
  }
  std::string text(bytes.data(), size);
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

std::filesystem::path user_folder() {
  if (const auto runtime = read_env("XDG_RUNTIME_DIR"))
    return std::filesystem::path(*runtime) / "tutti";
  std::string home = read_env("HOME").value_or("");
  if (home.empty()) {
    passwd entry = {};
    passwd* found = nullptr;
    std::array<char, 4096> buffer;
    getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found);
    if (found == nullptr || found->pw_dir == nullptr)
      fail_secret("this user has no home directory.");
    home = found->pw_dir;
  }
  return std::filesystem::path(home) / ".local" / "state" / "tutti";
}

/// Writes a new secret under a unique name and links it to `path`: the first process to link wins,
/// and none reads half a file.
void make_secret_file(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::array<std::byte, 32> random;
  internal::fill_random(random);
  const std::string text = internal::to_hex(random) + "\n";
  internal::fill_random(random);
  const std::string draft = path.string() + "." + internal::to_hex(std::span(random).first(8));
  FileDescriptor fd(
      open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written = fd.is_open() && write(fd.get(), text.data(), text.size()) ==
                                           static_cast<ssize_t>(text.size());
  int code = written ? 0 : errno;
  if (written && link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST) code = errno;
  if (fd.is_open()) unlink(draft.c_str());
  if (code != 0) {
    fail_secret(message("no job secret was given, and none can be stored in ", path.string(), ": ",
                        std::generic_category().message(code), "."));
  }
}

}  // namespace

namespace internal {

JobSecret given_job_secret(const SecurityOptions& options) {
  if (!options.job_secret.empty())
    return checked(options.job_secret, "SecurityOptions::job_secret");
  if (auto value = read_env("TUTTI_JOB_SECRET")) {
    return checked(std::move(*value), "TUTTI_JOB_SECRET");
  }
  if (const auto path = read_env("TUTTI_JOB_SECRET_FILE")) {
    auto value = read_secret_file(*path, false);
    if (!value)
      fail_secret(message("the file ", *path, " named by TUTTI_JOB_SECRET_FILE does not exist."));
    return checked(std::move(*value), *path);
  }
  return {};
}

JobSecret locate_job_secret(const SecurityOptions& options, bool loopback_only) {
  JobSecret given = given_job_secret(options);
  if (!given.value.empty()) return given;
  if (!loopback_only) {
    fail_secret("processes on different machines need a job secret, and none was given.");
  }
  const std::filesystem::path path = user_folder() / "job_secret";
  auto value = read_secret_file(path.string(), true);
  if (!value) {
    make_secret_file(path);
    value = read_secret_file(path.string(), true);
  }
  return checked(value.value_or(""), path.string());
}

}  // namespace internal

std::string find_job_secret(const SecurityOptions& options, bool loopback_only) {
  return internal::locate_job_secret(options, loopback_only).value;
}

SecurityOptions with_environment(SecurityOptions options) {
  if (options.has_certificates()) return options;
  options.ca_file = read_env("TUTTI_TLS_CA_FILE").value_or("");
  options.certificate_file = read_env("TUTTI_TLS_CERTIFICATE_FILE").value_or("");
  options.key_file = read_env("TUTTI_TLS_KEY_FILE").value_or("");
  return options;
}

bool is_loopback(const std::string& address) {
  const std::string host = internal::split_address("rpc::is_loopback", address).host;
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace tutti::rpc
