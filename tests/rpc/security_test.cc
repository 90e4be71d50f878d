// SPDX-License-Identifier: Apache-2.0
//
// Secrets and certificates: which peers are admitted, and what the others are told.

#include "tutti/rpc/security.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/rpc/channel.h"
#include "tutti/rpc/internal/sockets.h"
#include "tutti/rpc/listener.h"

#include "cli/certificates.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"
#include "tests/support/temp_folder.h"

namespace tutti::rpc::security_test {

using namespace tutti::rpc::test;  // NOLINT
using cli::certificates_in;
using cli::make_throwaway_ca;
using tutti::test::TempFolder;

/// Sets an environment variable, and restores the old value.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const old = getenv(name)) old_ = old;
    value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
  }
  ~EnvironmentVariable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

void add_echo(Listener& listener) {
  listener.handle("echo", [](const Caller&, std::string_view text) { return std::string(text); });
}

TEST(JobSecret, PrefersOptionsToTheEnvironmentAndThatToFiles) {
  const TempFolder folder;
  tutti::test::write_file(folder.path("secret"), "from a file, long enough\n");
  chmod(folder.path("secret").c_str(), 0600);
  const EnvironmentVariable no_home("XDG_RUNTIME_DIR", folder.path("run"));
  const EnvironmentVariable variable("TUTTI_JOB_SECRET", "from the environment");
  const EnvironmentVariable file("TUTTI_JOB_SECRET_FILE", folder.path("secret"));
  EXPECT_EQ(find_job_secret(with_secret(), false), kSecret);
  EXPECT_EQ(find_job_secret({}, false), "from the environment");
  const EnvironmentVariable none("TUTTI_JOB_SECRET", "");
  EXPECT_EQ(find_job_secret({}, false), "from a file, long enough");
  const EnvironmentVariable no_file("TUTTI_JOB_SECRET_FILE", "");
  EXPECT_TUTTI_ERROR(find_job_secret({}, false), ErrorCode::kFailedPrecondition, "TUTTI_JOB_SECRET",
                     "openssl rand");
  EXPECT_FALSE(std::filesystem::exists(folder.path("run")));
}

TEST(JobSecret, CreatesThePrivateOneOfTheUserOnce) {
  const TempFolder folder;
  const EnvironmentVariable runtime("XDG_RUNTIME_DIR", folder.path(""));
  const EnvironmentVariable none("TUTTI_JOB_SECRET", "");
  const EnvironmentVariable no_file("TUTTI_JOB_SECRET_FILE", "");
  std::vector<std::string> found(8);
  std::vector<std::thread> threads;
  for (std::string& secret : found) {
    threads.emplace_back([&secret] { secret = find_job_secret({}, true); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(found.begin(), found.end()).size(), 1u);
  EXPECT_EQ(found[0].size(), 64u);
  struct stat info = {};
  const std::string path = folder.path("tutti/job_secret");
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  chmod(path.c_str(), 0644);
  EXPECT_TUTTI_ERROR(find_job_secret({}, true), ErrorCode::kFailedPrecondition, path);
}

TEST(JobSecret, RefusesAnyFileThatOthersCanReadOrChange) {
  const TempFolder folder;
  const std::string own = folder.path("tutti/job_secret");
  const std::string given = folder.path("secret");
  std::filesystem::create_directories(folder.path("tutti"));
  for (const std::string& path : {own, given}) {
    tutti::test::write_file(path, "from a file, long enough\n");
  }
  const EnvironmentVariable runtime("XDG_RUNTIME_DIR", folder.path(""));
  const EnvironmentVariable none("TUTTI_JOB_SECRET", "");
  for (const std::string& variable : {std::string(), given}) {
    const EnvironmentVariable file("TUTTI_JOB_SECRET_FILE", variable);
    const std::string& path = variable.empty() ? own : given;
    for (const mode_t mode : {0666, 0644, 0604, 0620, 0660}) {
      chmod(path.c_str(), mode);
      EXPECT_TUTTI_ERROR(find_job_secret({}, true), ErrorCode::kFailedPrecondition, path,
                         "other users");
    }
    for (const mode_t mode : {0600, 0400, 0640}) {
      chmod(path.c_str(), mode);
      EXPECT_EQ(find_job_secret({}, true), "from a file, long enough");
    }
  }
}

TEST(JobSecret, RefusesShortAndMissingOnesWithoutRevealingThem) {
  try {
    find_job_secret(with_secret("hunter2"), true);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("hunter2"), std::string::npos);
    EXPECT_NE(text.find("7 bytes"), std::string::npos);
  }
  const EnvironmentVariable none("TUTTI_JOB_SECRET", "");
  const EnvironmentVariable file("TUTTI_JOB_SECRET_FILE", "/nowhere/secret");
  EXPECT_TUTTI_ERROR(find_job_secret({}, true), ErrorCode::kFailedPrecondition, "/nowhere/secret");
}

TEST(SecurityOptions, TakeCertificatesFromTheEnvironmentUnlessTheyHaveSome) {
  const EnvironmentVariable ca("TUTTI_TLS_CA_FILE", "ca.pem");
  const EnvironmentVariable certificate("TUTTI_TLS_CERTIFICATE_FILE", "own.pem");
  const EnvironmentVariable key("TUTTI_TLS_KEY_FILE", "own.key");
  const SecurityOptions found = with_environment(with_secret());
  EXPECT_EQ(found.job_secret, kSecret);
  EXPECT_EQ(found.ca_file + found.certificate_file + found.key_file, "ca.pemown.pemown.key");
  const SecurityOptions given = with_environment({.ca_file = "other.pem"});
  EXPECT_EQ(given.ca_file + given.certificate_file + given.key_file, "other.pem");
}

TEST(IsLoopback, ConsidersOnlyTheHost) {
  for (const char* address : {"localhost:1", "127.0.0.1:0", "127.9.9.9:1", "[::1]:80"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
  }
  for (const char* address :
       {"hostA:1", "0.0.0.0:1", "[::]:1", "10.0.0.1:127", "localhost.org:1"}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
  for (const char* address :
       {"", "host", "host:", ":1", "host:70000", "host:1x", "::1:5", "h:-1"}) {
    EXPECT_TUTTI_ERROR(is_loopback(address), ErrorCode::kInvalidArgument, "hostA:4321");
  }
}

TEST(Security, ServesOnlyLoopbackWithoutASecret) {
  const EnvironmentVariable none("TUTTI_JOB_SECRET", "");
  const EnvironmentVariable no_file("TUTTI_JOB_SECRET_FILE", "");
  EXPECT_TUTTI_ERROR(Listener({.address = "0.0.0.0:0"}), ErrorCode::kFailedPrecondition,
                     "TUTTI_JOB_SECRET");
  Listener open({.address = "0.0.0.0:0", .security = with_secret()});
  EXPECT_GT(open.port(), 0);
}

TEST(Security, NamesAPortInUse) {
  const Listener listener(listener_options());
  EXPECT_TUTTI_ERROR(Listener({.address = listener.address(), .security = with_secret()}),
                     ErrorCode::kUnavailable, listener.address(), "Another process listens");
}

TEST(Security, RefusesADifferentSecretAndBothSidesSayWhy) {
  tutti::test::LogCapture log;
  Listener listener(listener_options());
  EXPECT_TUTTI_ERROR(connect(listener, {.security = with_secret(kOtherSecret)}),
                     ErrorCode::kFailedPrecondition, listener.address(), "job secrets differ",
                     "SecurityOptions::job_secret");
  EXPECT_TRUE(eventually([&] { return log.count("a different job secret") == 1; })) << log.text();
  EXPECT_EQ(log.count(kSecret) + log.count(kOtherSecret), 0);
}

/// The certificates of two jobs.
struct Certificates {
  Certificates() {
    make_throwaway_ca(folder.path("job"), {{"a", {"localhost", "127.0.0.1"}}, {"b", {"hostB"}}});
    make_throwaway_ca(folder.path("other"), {{"a", {"localhost", "127.0.0.1"}}});
  }
  SecurityOptions of(const char* job, const char* name, const std::string& secret = "") const {
    SecurityOptions options = certificates_in(folder.path(job), name);
    options.job_secret = secret;
    return options;
  }
  TempFolder folder;
};

ChannelOptions with(const SecurityOptions& security) { return {.security = security}; }

TEST(Tls, ConnectsMembersOfTheJob) {
  const Certificates files;
  Listener listener({.security = files.of("job", "a", kSecret)});
  add_echo(listener);
  const auto collector = std::make_shared<Collector>();
  listener.handle_stream("data", [&](const Caller&, std::string_view,
                                     std::shared_ptr<IncomingStream>) { return collector; });
  const auto channel = connect(listener, with(files.of("job", "b", kSecret)));
  EXPECT_EQ(channel->call("echo", "hidden", soon()), "hidden");
  auto stream = channel->open_stream("data", "", {});
  const std::string body(3 << 20, 'z');
  stream->send(bytes_of("head"), bytes_of(body), [](bool) {});
  stream->close();
  ASSERT_TRUE(eventually([&] { return collector->closed(); }));
  EXPECT_EQ(what_of(collector->why()), "");
  EXPECT_EQ(collector->messages().at(0).size(), body.size() + 4);
}

TEST(Tls, ASecretIsOptionalButMustAgree) {
  tutti::test::LogCapture log;
  const Certificates files;
  Listener without({.security = files.of("job", "a")});
  add_echo(without);
  EXPECT_EQ(connect(without, with(files.of("job", "b")))->call("echo", "x", soon()), "x");
  Listener listener({.security = files.of("job", "a", kSecret)});
  for (const std::string& secret : {std::string(), kOtherSecret}) {
    EXPECT_TUTTI_ERROR(connect(listener, with(files.of("job", "b", secret))),
                       ErrorCode::kFailedPrecondition, listener.address(), "job secrets differ");
  }
  EXPECT_GE(log.count("a different job secret, or none"), 2);
}

TEST(Tls, RefusesOthersWithAHint) {
  tutti::test::LogCapture log;
  const Certificates files;
  Listener listener({.security = files.of("job", "a", kSecret)});
  add_echo(listener);
  // This one has no certificates.
  EXPECT_TUTTI_ERROR(connect(listener, channel_options()), ErrorCode::kFailedPrecondition,
                     listener.address(), "requires TLS", "ca_file");
  // This one is signed by another CA, which it also trusts.
  EXPECT_TUTTI_ERROR(connect(listener, with(files.of("other", "a", kSecret))),
                     ErrorCode::kFailedPrecondition, listener.address(), "is each certificate");
  // This one is signed by another CA, but trusts the right one.
  SecurityOptions mixed = files.of("other", "a", kSecret);
  mixed.ca_file = files.of("job", "a").ca_file;
  EXPECT_TUTTI_ERROR(connect(listener, with(mixed)), ErrorCode::kFailedPrecondition,
                     listener.address(), "signed by the other's CA");
  EXPECT_TRUE(
      eventually([&] { return log.count("does not use TLS, which this listener requires") == 1; }));
  // The listener still serves its own job.
  EXPECT_EQ(connect(listener, with(files.of("job", "b", kSecret)))->call("echo", "x", soon()), "x");
}

TEST(Tls, TheListenersCertificateMustNameTheHost) {
  const Certificates files;
  Listener listener({.security = files.of("job", "b", kSecret)});  // Names hostB, not 127.0.0.1.
  EXPECT_TUTTI_ERROR(connect(listener, with(files.of("job", "a", kSecret))),
                     ErrorCode::kFailedPrecondition, listener.address(), "name this host");
}

TEST(Tls, TellsAClientWithTlsThatTheListenerIsPlain) {
  tutti::test::LogCapture log;
  const Certificates files;
  Listener listener(listener_options());
  EXPECT_TUTTI_ERROR(connect(listener, with(files.of("job", "a", kSecret))),
                     ErrorCode::kFailedPrecondition, listener.address(), "Does the peer use TLS");
  EXPECT_GE(log.count("it speaks TLS"), 1);
}

TEST(Tls, ChecksItsFiles) {
  const Certificates files;
  SecurityOptions options = files.of("job", "a");
  options.key_file.clear();
  EXPECT_TUTTI_ERROR(Listener({.security = options}), ErrorCode::kInvalidArgument,
                     "all of ca_file");
  options.key_file = files.folder.path("none");
  EXPECT_TUTTI_ERROR(Listener({.security = options}), ErrorCode::kNotFound, "key_file", "none");
  options.key_file = options.certificate_file;
  EXPECT_TUTTI_ERROR(Listener({.security = options}), ErrorCode::kInvalidArgument, "PRIVATE KEY");
  struct stat info = {};
  ASSERT_EQ(stat(files.of("job", "a").key_file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TUTTI_ERROR(make_throwaway_ca(files.folder.path("job"), {{"c", {"hostC"}}}),
                     ErrorCode::kFailedPrecondition, "ca.pem");
  EXPECT_TUTTI_ERROR(make_throwaway_ca(files.folder.path("x"), {{"../c", {"hostC"}}}),
                     ErrorCode::kInvalidArgument, "../c");
  EXPECT_TUTTI_ERROR(make_throwaway_ca(files.folder.path("x"), {{"c", {"a,DNS:evil"}}}),
                     ErrorCode::kInvalidArgument, "a,DNS:evil");
}

// Every peer that begins TLS counts: gRPC owns the socket from then on.
TEST(Tls, LimitsConnectionsAndFreesClosedOnes) {
  tutti::test::LogCapture log;
  const Certificates files;
  ListenerOptions options{.security = files.of("job", "a", kSecret)};
  options.max_connections = 4;
  options.handshake_timeout = std::chrono::minutes(10);
  Listener listener(options);
  add_echo(listener);
  const auto address = internal::split_address("test", listener.address());
  std::vector<FileDescriptor> begun;
  for (int i = 0; i < 5; ++i) {
    begun.push_back(internal::connect_to(internal::resolve(address, soon()).at(0), soon()));
    ASSERT_EQ(::send(begun.back().get(), "\x16", 1, MSG_NOSIGNAL), 1);
  }
  ASSERT_TRUE(eventually([&] { return log.count("there are too many connections") == 1; }))
      << log.text();
  EXPECT_TUTTI_ERROR(connect(listener, with(files.of("job", "b", kSecret))),
                     ErrorCode::kFailedPrecondition, listener.address());
  begun.clear();
  const auto served = [&] {
    try {
      return connect(listener, with(files.of("job", "b", kSecret)))->call("echo", "x", soon()) ==
             "x";
    } catch (const Error&) {
      return false;  // gRPC has not yet detected that they are gone.
    }
  };
  EXPECT_TRUE(eventually(served));
}

}  // namespace tutti::rpc::security_test
