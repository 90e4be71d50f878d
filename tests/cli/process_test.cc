// SPDX-License-Identifier: Apache-2.0

#include "cli/process.h"

#include <signal.h>

#include <gtest/gtest.h>

#include "tests/cli/shell.h"
#include "tests/support/expect_error.h"

namespace tutti::cli::test::process {
namespace {

using std::chrono::milliseconds;

TEST(Process, ReportsStatusesAndSignals) {
  const ProcessGuard guard;
  Process fine({.command = shell("exit 0")}, guard);
  EXPECT_TRUE(fine.wait(soon()).value().success());
  Process fails({.command = shell("exit 3")}, guard);
  const ExitStatus status = fails.wait(soon()).value();
  EXPECT_EQ(status, (ExitStatus{.code = 3}));
  EXPECT_EQ(status.to_string(), "exited with status 3");
  EXPECT_EQ(fails.wait(soon()), status);
  Process ended({.command = shell("kill -s SEGV $$")}, guard);
  const ExitStatus end = ended.wait(soon()).value();
  EXPECT_EQ(end.shell_status(), 128 + SIGSEGV);
  EXPECT_EQ(end.to_string(), "was killed by SIGSEGV");
}

TEST(Process, ReturnsNothingAtTheDeadlineOfAWait) {
  const ProcessGuard guard;
  Process process({.command = {"sleep", "1000"}}, guard);
  EXPECT_FALSE(process.wait(Deadline::after(milliseconds(20))).has_value());
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(soon()).value().signal, SIGTERM);
  process.signal(SIGTERM);  // does nothing
}

TEST(Process, AddsAndReplacesVariables) {
  setenv("TUTTI_TEST_KEPT", "kept", 1);
  setenv("TUTTI_TEST_REPLACED", "old", 1);
  const OutputFile output;
  const ProcessGuard guard;
  Process process({.command = shell("echo $TUTTI_TEST_KEPT $TUTTI_TEST_REPLACED $TUTTI_TEST_ADDED;"
                                    "env | grep -c TUTTI_TEST_"),
                   .environment = {{"TUTTI_TEST_REPLACED", "new"}, {"TUTTI_TEST_ADDED", "a=b c"}},
                   .descriptors = {{STDOUT_FILENO, output.descriptor()}}},
                  guard);
  EXPECT_TRUE(process.wait(soon()).value().success());
  EXPECT_EQ(output.text(), "kept new a=b c\n3\n");
  unsetenv("TUTTI_TEST_KEPT");
  unsetenv("TUTTI_TEST_REPLACED");
}

TEST(Process, PassesDescriptorsOnUnderNumbersThatOthersHaveHere) {
  const Descriptor first(fcntl(OutputFile().descriptor(), F_DUPFD_CLOEXEC, 40));
  const Descriptor second(fcntl(OutputFile().descriptor(), F_DUPFD_CLOEXEC, first.get() + 1));
  const ProcessGuard guard;
  Process process({.command = shell("exec 1>/proc/self/fd/" + std::to_string(first.get()) +
                                    " 2>/proc/self/fd/" + std::to_string(second.get()) +
                                    "; echo to first; echo to second >&2"),
                   .descriptors = {{first.get(), second.get()}, {second.get(), first.get()}}},
                  guard);
  EXPECT_TRUE(process.wait(soon()).value().success());
  std::string text(32, '\0');
  text.resize(static_cast<size_t>(pread(second.get(), text.data(), text.size(), 0)));
  EXPECT_EQ(text, "to first\n");
}

TEST(Process, HasEmptyInputUnlessItIsGivenOne) {
  const ProcessGuard guard;
  Process without({.command = shell("read line || exit 7")}, guard);
  EXPECT_EQ(without.wait(soon()).value().code, 7);
  Pipe pipe;
  Process with({.command = shell("read line; exit $line"),
                .descriptors = {{STDIN_FILENO, pipe.read_end.get()}}},
               guard);
  EXPECT_EQ(write(pipe.write_end.get(), "5\n", 2), 2);
  EXPECT_EQ(with.wait(soon()).value().code, 5);
}

TEST(Process, NamesAProgramThatCannotBeStarted) {
  const ProcessGuard guard;
  EXPECT_TUTTI_ERROR(Process({.command = {"no-such-program", "x"}}, guard), ErrorCode::kNotFound,
                     "\"no-such-program\"", "No such file or directory");
  EXPECT_TUTTI_ERROR(Process({.command = {"/"}}, guard), ErrorCode::kNotFound, "\"/\"");
  EXPECT_TUTTI_ERROR(Process({.command = {}}, guard), ErrorCode::kInvalidArgument, "empty");
}

TEST(Process, IsKilledByItsDestructor) {
  const ProcessGuard guard;
  pid_t id = -1;
  {
    const Process process({.command = {"sleep", "1000"}}, guard);
    id = process.id();
    EXPECT_TRUE(is_running(id));
  }
  EXPECT_FALSE(is_running(id));
}

TEST(Process, StartsWithNoSignalBlockedAndSigpipeNotIgnored) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  const auto ignored = signal(SIGPIPE, SIG_IGN);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const OutputFile output;
  const ProcessGuard guard;
  Process process({.command = {"grep", "Sig[BI]", "/proc/self/status"},
                   .descriptors = {{STDOUT_FILENO, output.descriptor()}}},
                  guard);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  signal(SIGPIPE, ignored);
  EXPECT_TRUE(process.wait(soon()).value().success());
  const std::string text = output.text();
  EXPECT_EQ(text.substr(0, text.find('\n')), "SigBlk:\t0000000000000000");
  const uint64_t ignored_there = std::stoull(text.substr(text.rfind('\t') + 1), nullptr, 16);
  EXPECT_EQ(ignored_there >> (SIGPIPE - 1) & 1, 0U) << text;
}

TEST(ProcessGuard, KillsWhatItsMembersHaveStarted) {
  Pipe pipe;
  pid_t child = -1;
  pid_t grandchild = -1;
  {
    const ProcessGuard guard;
    Process process({.command = shell("sleep 1000 & echo $$ child $!; wait"),
                     .descriptors = {{STDOUT_FILENO, pipe.write_end.get()}}},
                    guard);
    const std::string text = read_until(pipe.read_end, "\n");
    child = process.id();
    grandchild = number_after(text, "child ");
    EXPECT_TRUE(is_running(grandchild)) << text;
    EXPECT_EQ(std::stoi(text), child);
  }
  EXPECT_FALSE(is_running(child));
  EXPECT_TRUE(eventually([&] { return !is_running(grandchild); }));
}

}  // namespace
}  // namespace tutti::cli::test::process
