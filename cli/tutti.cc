// SPDX-License-Identifier: Apache-2.0
//
// The command `tutti`, which has one subcommand: `tutti run` starts the workers of a job.

#include <signal.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>
#include <vector>

#include "tutti/version.h"

#include "cli/launch.h"
#include "cli/local_cluster.h"

namespace {

namespace cli = tutti::cli;

constexpr const char* kHelp = R"(Usage: tutti run --workers N [OPTION...] PROGRAM [ARGUMENT...]
       tutti --version

Runs PROGRAM as a job of N workers on this machine: once for each worker, with TF_CONFIG set as a
cluster manager sets it.

Each line that a worker prints appears with its name, as in "[worker 1] epoch 1: loss 2.3"; standard
output and standard error stay apart. The standard input of workers is empty. When a worker fails,
the others get SIGTERM. SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are passed on to the workers
and end the job, SIGUSR1 and SIGUSR2 are only passed on. Workers that take longer than --grace to
end are killed, and so are all workers if this command is killed.

  -n, --workers N     number of workers
  --timeout SECONDS   end the job after this time; by default there is no limit
  --grace SECONDS     time for workers to end before they are killed, 10 by default; a second Ctrl-C
                      kills them immediately
  --keep-going        let the other workers go on when one fails
  -h, --help          print this text

The exit status is that of the first worker that failed (128 + n for signal n), 128 + n after a
signal, 124 after the timeout, 127 if PROGRAM cannot be started, 2 for wrong usage.
)";

struct Arguments {
  bool help = false;
  int workers = 0;
  cli::LaunchOptions launch = {.forward_signals = true, .who = "tutti run"};
  std::vector<std::string> command = {};
};

// Wrong usage; the text says why.
struct WrongUsage {
  std::string text;
};

template <class Number>
Number number(const std::string& name, const std::string& text, Number least) {
  Number value = {};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || !(value >= least)) {
    throw WrongUsage{tutti::message(name, " is ", tutti::in_quotes(text),
                                    "; it must be a number, at least ", least)};
  }
  return value;
}

std::chrono::milliseconds seconds(const std::string& name, const std::string& text) {
  const double most = 10.0 * 365 * 24 * 3600;  // which means forever
  return std::chrono::milliseconds(
      static_cast<int64_t>(std::min(number(name, text, 0.0), most) * 1000));
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  size_t at = 0;
  const auto value = [&] {
    if (at + 1 == words.size()) throw WrongUsage{words[at] + " needs a value"};
    return words[++at];
  };
  for (; at < words.size() && words[at].starts_with('-'); ++at) {
    const std::string name = words[at];
    if (name == "--") {
      ++at;
      break;
    }
    if (name == "-h" || name == "--help") return {.help = true};
    if (name == "-n" || name == "--workers") {
      arguments.workers = number(name, value(), 1);
    } else if (name == "--timeout") {
      arguments.launch.timeout = seconds(name, value());
    } else if (name == "--grace") {
      arguments.launch.grace = seconds(name, value());
    } else if (name == "--keep-going") {
      arguments.launch.stop_on_failure = false;
    } else {
      throw WrongUsage{"there is no option " + tutti::in_quotes(name)};
    }
  }
  arguments.command.assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  if (arguments.workers == 0) throw WrongUsage{"--workers is required"};
  if (arguments.command.empty()) throw WrongUsage{"the program is missing"};
  return arguments;
}

int run(const Arguments& arguments) {
  const std::vector<std::string> addresses = cli::free_addresses(arguments.workers);
  std::vector<cli::LaunchedProgram> programs;
  for (int i = 0; i < arguments.workers; ++i) {
    programs.push_back({.name = "worker " + std::to_string(i),
                        .options = {.command = arguments.command,
                                    .environment = cli::worker_environment(addresses, i)}});
  }
  return cli::launch(programs, arguments.launch).exit_status();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  signal(SIGCHLD, SIG_DFL);  // If it is ignored, which a program inherits, statuses are lost.
  try {
    if (words == std::vector<std::string>{"--version"}) {
      std::printf("tutti %s\n", TUTTI_VERSION_STRING);
      return 0;
    }
    if (words.empty()) throw WrongUsage{"the subcommand is missing; there is one, run"};
    const bool runs = words[0] == "run";
    if (!runs && words[0] != "-h" && words[0] != "--help") {
      throw WrongUsage{tutti::message("there is no subcommand ", tutti::in_quotes(words[0]),
                                      "; there is one, run")};
    }
    const Arguments arguments = parse({words.begin() + (runs ? 1 : 0), words.end()});
    if (!arguments.help) return run(arguments);
    std::fputs(kHelp, stdout);
    return 0;
  } catch (const WrongUsage& wrong) {
    std::fprintf(stderr, "tutti: %s.\n%s", wrong.text.c_str(), kHelp);
    return 2;
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "tutti run: %s\n", error.what());
    return error.code() == tutti::ErrorCode::kNotFound ? 127 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti run: %s\n", error.what());
    return 1;
  }
}
