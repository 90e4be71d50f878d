// SPDX-License-Identifier: Apache-2.0

#include "cli/launch.h"

#include <signal.h>

#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/cli/shell.h"
#include "tests/support/expect_error.h"

namespace tutti::cli::test::launching {
namespace {

using std::chrono::milliseconds;

struct Outcome {
  LaunchResult result;
  std::string output;
  std::string errors;
};

Outcome run(const std::vector<LaunchedProgram>& programs, LaunchOptions options = {}) {
  const OutputFile output;
  const OutputFile errors;
  options.output = output.descriptor();
  options.errors = errors.descriptor();
  const LaunchResult result = launch(programs, options);
  return {result, output.text(), errors.text()};
}

LaunchedProgram program(const std::string& name, const std::string& script) {
  return {.name = name, .options = {.command = shell(script)}};
}

// Descriptor 3 of the first program reads what the second writes to its own.
std::vector<LaunchedProgram> connected(const Pipe& pipe, const std::string& reads,
                                       const std::string& writes) {
  std::vector<LaunchedProgram> programs = {program("a", reads), program("b", writes)};
  programs[0].options.descriptors[3] = pipe.read_end.get();
  programs[1].options.descriptors[3] = pipe.write_end.get();
  return programs;
}

TEST(Launch, PutsTheNameBeforeEachLineOfBothStreams) {
  const Outcome outcome = run({program("a", "echo one; echo; echo bad >&2; printf end")});
  EXPECT_EQ(outcome.result.exit_status(), 0);
  EXPECT_EQ(outcome.output, "[a] one\n[a] \n[a] end\n");
  EXPECT_EQ(outcome.errors, "[a] bad\n");
}

TEST(Launch, GivesEachProgramItsEnvironment) {
  std::vector<LaunchedProgram> programs = {program("a", "echo $OWN"), program("b", "echo $OWN")};
  programs[0].options.environment = {{"OWN", "first"}};
  programs[1].options.environment = {{"OWN", "second"}};
  const std::string output = run(programs).output;
  EXPECT_NE(output.find("[a] first\n"), std::string::npos) << output;
  EXPECT_NE(output.find("[b] second\n"), std::string::npos) << output;
}

TEST(Launch, KeepsLinesOfManyProgramsWholeAndInOrder) {
  std::vector<LaunchedProgram> programs;
  for (int i = 0; i < 64; ++i) {
    programs.push_back(program(std::to_string(i),
                               "i=0; while [ $i -lt 200 ]; do echo $i of the lines; i=$((i+1)); "
                               "done; exit $((" +
                                   std::to_string(i) + " == 40 ? 9 : 0))"));
  }
  const Outcome outcome = run(programs, {.stop_on_failure = false});
  std::map<std::string, int> next;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(1, line.find(']') - 1);
    EXPECT_EQ(line, "[" + name + "] " + std::to_string(next[name]++) + " of the lines");
  }
  EXPECT_EQ(next.size(), 64U);
  for (const auto& [name, count] : next) EXPECT_EQ(count, 200) << name;
  EXPECT_EQ(outcome.result.first_failure, 40U);
  EXPECT_EQ(outcome.result.exit_status(), 9);
}

TEST(Launch, DividesEndlessLines) {
  const Outcome outcome = run({program("a", "head -c 200000 /dev/zero | tr '\\0' x")});
  std::istringstream lines(outcome.output);
  size_t letters = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_EQ(line.substr(0, 4), "[a] ");
    EXPECT_LE(line.size(), 4 + (64U << 10));
    letters += line.size() - 4;
  }
  EXPECT_EQ(letters, 200000U);
}

TEST(Launch, StopsTheOthersWhenOneFails) {
  const Pipe pipe;
  std::vector<LaunchedProgram> programs =
      connected(pipe, "read line <&3; echo why >&2; exit 3",
                "trap 'echo stopping; exit 0' TERM; sleep 1000 & echo ready >&3; wait");
  programs.push_back(program("c", "exec sleep 1000"));
  const Outcome outcome = run(programs);
  EXPECT_EQ(outcome.result.first_failure, 0U);
  EXPECT_EQ(outcome.result.exit_status(), 3);
  EXPECT_EQ(outcome.output, "[b] stopping\n");
  EXPECT_TRUE(outcome.result.programs[1].success());
  EXPECT_EQ(outcome.result.programs[2].signal, SIGTERM);
  EXPECT_EQ(outcome.errors.substr(0, 27), "[a] why\nlaunch: a (process ");
  EXPECT_NE(outcome.errors.find(") exited with status 3; stopping b, c.\n"), std::string::npos)
      << outcome.errors;
}

TEST(Launch, KillsThoseThatDoNotEndWithinTheGracePeriod) {
  const Pipe pipe;
  const Outcome outcome = run(
      connected(pipe, "read line <&3; kill -s ABRT $$", "trap '' TERM; echo ready >&3; sleep 1000"),
      {.grace = milliseconds(50)});
  EXPECT_EQ(outcome.result.programs[1].signal, SIGKILL);
  EXPECT_EQ(outcome.result.exit_status(), 128 + SIGABRT);
  EXPECT_NE(outcome.errors.find("was killed by SIGABRT"), std::string::npos) << outcome.errors;
  EXPECT_NE(outcome.errors.find("launch: killing b.\n"), std::string::npos) << outcome.errors;
}

TEST(Launch, LetsTheOthersGoOnIfAsked) {
  const Pipe pipe;
  const Outcome outcome = run(connected(pipe, "read line <&3; echo $line", "echo x >&3; exit 3"),
                              {.stop_on_failure = false});
  EXPECT_EQ(outcome.output, "[a] x\n");
  EXPECT_TRUE(outcome.result.programs[0].success());
  EXPECT_EQ(outcome.result.exit_status(), 3);
  EXPECT_EQ(outcome.errors.find("stopping"), std::string::npos) << outcome.errors;
}

TEST(Launch, EndsAJobThatTakesTooLong) {
  const Outcome outcome = run({program("a", "exit 0"), program("b", "exec sleep 1000")},
                              {.timeout = milliseconds(200)});
  EXPECT_TRUE(outcome.result.timed_out);
  EXPECT_EQ(outcome.result.exit_status(), 124);
  EXPECT_FALSE(outcome.result.first_failure.has_value());
  EXPECT_EQ(outcome.result.programs[1].signal, SIGTERM);
  EXPECT_EQ(outcome.errors, "launch: not done after 0.2 s; stopping b.\n");
}

TEST(Launch, LeavesNothingBehindThatItsProgramsHaveStarted) {
  const Outcome outcome = run({program("a", "sleep 1000 & echo child $!")});
  EXPECT_EQ(outcome.result.exit_status(), 0);
  const pid_t child = number_after(outcome.output, "child ");
  EXPECT_GT(child, 0) << outcome.output;
  EXPECT_TRUE(eventually([&] { return !is_running(child); }));
}

TEST(Launch, EndsThoughALeftoverWritesWithoutEnd) {
  const Outcome outcome = run({program("a", "yes & exit 0"), program("b", "yes >&2 & exit 0")});
  EXPECT_EQ(outcome.result.exit_status(), 0);
}

TEST(Launch, EndsThoseAlreadyStartedWhenOneCannotBe) {
  Pipe pipe;
  LaunchedProgram holder = program("a", "exec sleep 1000");
  holder.options.descriptors[3] = pipe.write_end.get();
  const LaunchedProgram missing = {.name = "b", .options = {.command = {"no-such-program"}}};
  EXPECT_TUTTI_ERROR(launch({holder, missing}), ErrorCode::kNotFound, "\"no-such-program\"");
  pipe.write_end.reset();
  EXPECT_EQ(read_until(pipe.read_end, "never"), "");  // Returns when the last writer has ended.
}

}  // namespace
}  // namespace tutti::cli::test::launching
