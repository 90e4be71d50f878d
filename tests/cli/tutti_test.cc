// SPDX-License-Identifier: Apache-2.0
//
// The command `tutti`, as a process.

#include <signal.h>
#include <sys/ioctl.h>

#include <gtest/gtest.h>

#include "tutti/version.h"

#include "tests/cli/shell.h"

namespace tutti::cli::test::command {
namespace {

std::vector<std::string> tutti_run(std::vector<std::string> options, const std::string& script) {
  options.insert(options.begin(), {TUTTI_COMMAND, "run", "--workers", "2"});
  for (const std::string& word : shell(script)) options.push_back(word);
  return options;
}

// The command while it runs.
class Running {
 public:
  explicit Running(const std::vector<std::string>& command)
      : process_({.command = command,
                  .descriptors = {{STDOUT_FILENO, output_.write_end.get()},
                                  {STDERR_FILENO, errors_.write_end.get()}}},
                 guard_) {
    output_.write_end.reset();
    errors_.write_end.reset();
  }

  Process& process() { return process_; }
  std::string output_until(const std::string& text) { return read_until(output_.read_end, text); }
  std::string errors_until(const std::string& text) { return read_until(errors_.read_end, text); }
  std::string rest_of_output() { return output_until("\1"); }
  std::string rest_of_errors() { return errors_until("\1"); }
  int unread_output() const {
    int bytes = 0;
    ioctl(output_.read_end.get(), FIONREAD, &bytes);
    return bytes;
  }
  void close_output() { output_.read_end.reset(); }
  int status() { return process_.wait(soon()).value_or(ExitStatus{.code = -1}).shell_status(); }

 private:
  Pipe output_;
  Pipe errors_;
  const ProcessGuard guard_;
  Process process_;
};

// Both workers print a line that ends with "ready", and wait. A script's own children are in the
// group, too.
std::string until_both_are_ready(Running& running) {
  std::string text = running.output_until("ready\n");
  if (text.find("ready\n") == text.rfind("ready\n")) text += running.output_until("ready\n");
  return text;
}

TEST(TuttiRun, TellsEachWorkerItsPlace) {
  Running running(tutti_run({}, "echo \"$TF_CONFIG\""));
  const std::string output = running.rest_of_output();
  EXPECT_EQ(running.status(), 0);
  const size_t config = output.find('{');
  const std::string cluster = output.substr(config, output.find("]}") - config);
  for (const std::string index : {"0", "1"}) {
    const std::string line = "[worker " + index + "] " + cluster +
                             R"(]}, "task": {"type": "worker", "index": )" + index + "}}\n";
    EXPECT_NE(output.find(line), std::string::npos) << output;
  }
}

TEST(TuttiRun, ReturnsTheStatusOfTheFirstFailure) {
  Running fails(tutti_run({}, "case $TF_CONFIG in *'index\": 1'*) exit 3;; esac; sleep 1000"));
  EXPECT_NE(fails.rest_of_errors().find("tutti run: worker 1 (process "), std::string::npos);
  EXPECT_EQ(fails.status(), 3);
  Running ended(
      tutti_run({}, "case $TF_CONFIG in *'index\": 1'*) kill -s KILL $$;; esac; sleep 1000"));
  EXPECT_EQ(ended.status(), 128 + SIGKILL);
  Running late(tutti_run({"--timeout", "0.1"}, "sleep 1000"));
  EXPECT_EQ(late.status(), 124);
  Running both(tutti_run({"--keep-going"}, "echo failing; exit 4"));
  const std::string output = both.rest_of_output();
  EXPECT_NE(output.find("[worker 0] failing\n"), std::string::npos) << output;
  EXPECT_NE(output.find("[worker 1] failing\n"), std::string::npos) << output;
  EXPECT_EQ(both.status(), 4);
}

TEST(TuttiRun, ExplainsWrongUsage) {
  const auto fails = [](std::vector<std::string> words, const std::string& why) {
    words.insert(words.begin(), TUTTI_COMMAND);
    Running running(words);
    const std::string errors = running.rest_of_errors();
    EXPECT_EQ(running.status(), 2);
    EXPECT_EQ(errors.substr(0, errors.find('\n')), "tutti: " + why + ".");
    EXPECT_NE(errors.find("Usage: tutti run"), std::string::npos);
  };
  fails({}, "the subcommand is missing; there is one, run");
  fails({"go"}, "there is no subcommand \"go\"; there is one, run");
  fails({"run", "x"}, "--workers is required");
  fails({"run", "-n"}, "-n needs a value");
  fails({"run", "-n", "0", "x"}, "-n is \"0\"; it must be a number, at least 1");
  fails({"run", "--grace", "1s", "x"}, "--grace is \"1s\"; it must be a number, at least 0");
  fails({"run", "--grace", "nan", "x"}, "--grace is \"nan\"; it must be a number, at least 0");
  fails({"run", "--wrokers", "2"}, "there is no option \"--wrokers\"");
  fails({"run", "-n", "2", "--"}, "the program is missing");
}

TEST(TuttiRun, NamesAProgramThatDoesNotExist) {
  Running running({TUTTI_COMMAND, "run", "-n", "2", "--", "--no-such-program"});
  const std::string errors = running.rest_of_errors();
  EXPECT_NE(errors.find("tutti run: cannot start \"--no-such-program\": No such file"),
            std::string::npos)
      << errors;
  EXPECT_EQ(running.status(), 127);
}

TEST(TuttiRun, PrintsHelpAndVersion) {
  for (const std::string word : {"--help", "-h"}) {
    Running help({TUTTI_COMMAND, "run", word});
    EXPECT_NE(help.rest_of_output().find("--grace SECONDS"), std::string::npos);
    EXPECT_EQ(help.status(), 0);
    Running short_help({TUTTI_COMMAND, word});
    EXPECT_NE(short_help.rest_of_output().find("Usage: tutti run"), std::string::npos);
    EXPECT_EQ(short_help.status(), 0);
  }
  Running version({TUTTI_COMMAND, "--version"});
  EXPECT_EQ(version.rest_of_output(), "tutti " TUTTI_VERSION_STRING "\n");
}

TEST(TuttiRun, PassesTheSignalsThatEndIt) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const std::string name = signal_name(number).substr(3);
    Running running(tutti_run(
        {}, "trap 'echo got " + name + "; exit 0' " + name + "; sleep 1000 & echo ready; wait"));
    until_both_are_ready(running);
    running.process().signal(number);
    const std::string output = running.rest_of_output();
    EXPECT_NE(output.find("[worker 0] got " + name), std::string::npos) << output;
    EXPECT_NE(output.find("[worker 1] got " + name), std::string::npos) << output;
    EXPECT_EQ(running.status(), 128 + number);
    EXPECT_EQ(running.rest_of_errors(),
              "tutti run: got SIG" + name + "; passing it to worker 0, worker 1.\n");
  }
}

TEST(TuttiRun, PassesUserSignalsAndGoesOn) {
  Running running(tutti_run({}, "trap 'echo got it; exit 0' USR1; sleep 1000 & echo ready; wait"));
  until_both_are_ready(running);
  running.process().signal(SIGUSR1);
  EXPECT_EQ(running.status(), 0);
  EXPECT_EQ(running.rest_of_errors(), "");
}

TEST(TuttiRun, IgnoresSignalsThatItWasToldToIgnore) {
  std::vector<std::string> command = {"sh", "-c", "trap '' HUP; exec \"$@\"", "sh"};
  for (const std::string& word :
       tutti_run({}, "trap 'exit 0' USR1; sleep 1000 & echo ready; wait")) {
    command.push_back(word);
  }
  Running running(command);
  until_both_are_ready(running);
  running.process().signal(SIGHUP);
  running.process().signal(SIGUSR1);
  EXPECT_EQ(running.status(), 0);
}

TEST(TuttiRun, KillsWorkersAtTheSecondInterrupt) {
  Running running(tutti_run({"--grace", "1000"}, "trap '' INT; echo ready; sleep 1000"));
  until_both_are_ready(running);
  running.process().signal(SIGINT);
  EXPECT_NE(running.errors_until("worker 1.\n"), "");
  running.process().signal(SIGINT);
  EXPECT_EQ(running.status(), 128 + SIGINT);
  EXPECT_EQ(running.rest_of_errors(), "tutti run: killing worker 0, worker 1.\n");
}

TEST(TuttiRun, LeavesNoWorkerWhenItIsEndedOrKilled) {
  for (const int number : {SIGTERM, SIGKILL}) {
    Running running(tutti_run({}, "sleep 1000 & echo self $$ child $! ready; wait"));
    std::string output = until_both_are_ready(running);
    running.process().signal(number);
    EXPECT_EQ(running.status(), 128 + number);
    for (int i = 0; i < 2; ++i) {
      for (const std::string label : {"self ", "child "}) {
        const pid_t process = number_after(output, label);
        EXPECT_GT(process, 0) << output;
        EXPECT_TRUE(eventually([&] { return !is_running(process); })) << label << process;
      }
      output = output.substr(output.find("ready\n") + 6);
    }
  }
}

TEST(TuttiRun, LeavesNoWorkerWhenNobodyReadsItsOutputAnyLonger) {
  Running running(tutti_run({}, "echo self $$ ready; while :; do echo more; done"));
  const pid_t worker = number_after(running.output_until("ready\n"), "self ");
  EXPECT_TRUE(is_running(worker));
  running.close_output();
  EXPECT_EQ(running.status(), 128 + SIGPIPE);
  EXPECT_TRUE(eventually([&] { return !is_running(worker); }));
}

TEST(TuttiRun, TakesSignalsWhileAReaderPauses) {
  Running running(tutti_run({"--grace", "0.1"}, "while :; do echo more; done"));
  EXPECT_TRUE(eventually([&] { return running.unread_output() > 60'000; }));
  running.process().signal(SIGTERM);
  EXPECT_EQ(running.status(), 128 + SIGTERM);
}

}  // namespace
}  // namespace tutti::cli::test::command
