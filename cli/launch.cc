// SPDX-License-Identifier: Apache-2.0
//
// One thread and one poll(2) for everything: ends of processes (pidfd), their output (pipes), our
// own output (so that a reader who pauses does not delay signals), and signals (signalfd).

#include "cli/launch.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>

namespace tutti::cli {
namespace {

constexpr size_t kLongestLine = 64 << 10;    // Longer lines are divided.
constexpr size_t kEnoughWaiting = 64 << 10;  // While so much waits to be written, nothing is read.
constexpr std::chrono::milliseconds kShortestGrace(1000);  // after SIGKILL, and for the last lines

// Text on its way to a descriptor of this process.
class Sink {
 public:
  explicit Sink(int descriptor) : descriptor_(descriptor) {}

  int descriptor() const { return descriptor_; }
  bool is_empty() const { return written_ == waiting_.size(); }
  bool is_full() const { return waiting_.size() - written_ > kEnoughWaiting; }
  void add(std::string_view text) {
    if (!is_gone_) waiting_ += text;
  }

  // Call it when poll says that the descriptor can take bytes: a pipe can then take PIPE_BUF.
  void write_some() {
    const size_t size = std::min<size_t>(waiting_.size() - written_, PIPE_BUF);
    const ssize_t n = write(descriptor_, waiting_.data() + written_, size);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return give_up();
    written_ += static_cast<size_t>(std::max<ssize_t>(n, 0));
    if (!is_empty() && written_ < kEnoughWaiting) return;
    waiting_.erase(0, written_);
    written_ = 0;
  }

  void give_up() {
    is_gone_ = true;
    waiting_.clear();
    written_ = 0;
  }

 private:
  const int descriptor_;
  std::string waiting_;
  size_t written_ = 0;
  bool is_gone_ = false;
};

// What a program writes to one descriptor.
class Stream {
 public:
  Stream(std::string prefix, Sink& sink) : prefix_(std::move(prefix)), sink_(&sink) {
    fcntl(pipe_.read_end.get(), F_SETFL, O_NONBLOCK);
  }

  int write_end() const { return pipe_.write_end.get(); }
  void close_write_end() { pipe_.write_end.reset(); }

  int descriptor() const { return pipe_.read_end.get(); }
  bool is_open() const { return pipe_.read_end.is_open(); }
  bool can_be_passed_on() const { return !sink_->is_full(); }

  // Returns the number of bytes, 0 if there are none at the moment.
  ssize_t read_some() {
    std::array<char, 16 << 10> bytes = {};
    const ssize_t n = read(pipe_.read_end.get(), bytes.data(), bytes.size());
    if (n == 0) finish();
    if (n <= 0) return 0;
    add({bytes.data(), static_cast<size_t>(n)});
    return n;
  }
  // At most a full pipe: what the program has started may write without end.
  void read_what_is_there() {
    ssize_t n = 1;
    for (ssize_t left = fcntl(pipe_.read_end.get(), F_GETPIPE_SZ); n > 0 && left > 0; left -= n) {
      n = is_open() ? read_some() : 0;
    }
  }
  void finish() {
    pipe_.read_end.reset();
    if (!line_.empty()) pass_on("");
  }

 private:
  void add(std::string_view text) {
    for (size_t end = 0; !text.empty(); text.remove_prefix(end)) {
      const size_t newline = text.find('\n');
      const size_t room = kLongestLine - line_.size();
      if (newline < room) {
        pass_on(text.substr(0, newline));
        end = newline + 1;
      } else {
        end = std::min(text.size(), room);
        line_ += text.substr(0, end);
        if (end == room) pass_on("");
      }
    }
  }

  void pass_on(std::string_view rest) {
    line_.insert(0, prefix_);
    line_ += rest;
    line_ += '\n';
    sink_->add(line_);
    line_.clear();
  }

  const std::string prefix_;
  Sink* const sink_;  // The job has both.
  Pipe pipe_;
  std::string line_;
};

struct Member {
  std::string name;
  Stream output;
  Stream errors;
  std::unique_ptr<Process> process = nullptr;
  bool has_ended = false;
};

// Blocks signals and reads them from a descriptor instead.
class Signals {
 public:
  explicit Signals(bool wanted) {
    if (!wanted) return;
    sigset_t taken;
    sigemptyset(&taken);
    for (const int each : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
      struct sigaction action = {};
      sigaction(each, nullptr, &action);
      // nohup, and shells for what they start in the background, ignore signals on purpose.
      if (action.sa_handler != SIG_IGN) sigaddset(&taken, each);
    }
    pthread_sigmask(SIG_BLOCK, &taken, &before_);
    descriptor_ = Descriptor(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() {
    if (!descriptor_.is_open()) return;
    while (next() != 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int descriptor() const { return descriptor_.get(); }
  // 0 if there is none.
  int next() const {
    signalfd_siginfo info = {};
    return read(descriptor_.get(), &info, sizeof info) == sizeof info
               ? static_cast<int>(info.ssi_signo)
               : 0;
  }

 private:
  sigset_t before_ = {};
  Descriptor descriptor_;
};

class Job {
 public:
  Job(const std::vector<LaunchedProgram>& programs, const LaunchOptions& options)
      : options_(options),
        deadline_(Deadline::after(options.timeout)),
        signals_(options.forward_signals),
        output_(options.output),
        errors_(options.errors) {
    for (const LaunchedProgram& program : programs) start(program);
    result_.programs.resize(members_.size());
  }

  LaunchResult run() {
    while (running_ > 0 || has_output()) {
      poll_once();
      if (running_ > 0 && deadline_.passed()) on_timeout();
      if (kill_at_.passed()) running_ > 0 ? kill_all() : give_up_output();
    }
    return std::move(result_);
  }

 private:
  void start(const LaunchedProgram& program) {
    const std::string prefix = "[" + program.name + "] ";
    auto member = std::make_unique<Member>(
        Member{program.name, Stream(prefix, output_), Stream(prefix, errors_)});
    ProcessOptions options = program.options;
    options.descriptors[STDOUT_FILENO] = member->output.write_end();
    options.descriptors[STDERR_FILENO] = member->errors.write_end();
    member->process = std::make_unique<Process>(options, guard_);
    member->output.close_write_end();
    member->errors.close_write_end();
    members_.push_back(std::move(member));
    ++running_;
  }

  bool has_output() const { return !output_.is_empty() || !errors_.is_empty(); }

  // ---- waiting

  void poll_once() {
    polled_.clear();
    add_polled(signals_.descriptor(), POLLIN);
    for (const Sink* sink : {&output_, &errors_}) {
      add_polled(sink->is_empty() ? -1 : sink->descriptor(), POLLOUT);
    }
    for (const auto& member : members_) {
      add_polled(member->has_ended ? -1 : member->process->end_descriptor(), POLLIN);
      for (const Stream* stream : {&member->output, &member->errors}) {
        add_polled(stream->can_be_passed_on() ? stream->descriptor() : -1, POLLIN);
      }
    }
    const Deadline until =
        running_ > 0 && deadline_.when() < kill_at_.when() ? deadline_ : kill_at_;
    if (poll(polled_.data(), polled_.size(), poll_timeout(until)) <= 0) return;

    auto each = polled_.begin();
    const auto is_ready = [&each] { return (each++)->revents != 0; };
    if (is_ready()) take_signals();
    for (Sink* sink : {&output_, &errors_}) {
      if (is_ready()) sink->write_some();
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& member = *members_[i];
      const bool ended = is_ready();
      for (Stream* stream : {&member.output, &member.errors}) {
        if (is_ready() && stream->is_open()) stream->read_some();
      }
      if (ended) on_end(i);
    }
  }

  // poll ignores negative descriptors.
  void add_polled(int descriptor, short events) { polled_.push_back({descriptor, events, 0}); }

  // ---- what happens

  void on_end(size_t i) {
    Member& member = *members_[i];
    member.output.read_what_is_there();  // What it has written comes before what is said about it.
    member.errors.read_what_is_there();
    const ExitStatus status = *member.process->wait(Deadline::forever());
    result_.programs[i] = status;
    member.has_ended = true;
    --running_;
    const bool by_us = is_stopping_ && (status.signal == SIGKILL || status.signal == stop_signal_);
    if (!status.success() && !by_us) on_failure(i, status);
    if (running_ == 0) on_last_end();
  }

  void on_failure(size_t i, const ExitStatus& status) {
    const bool stops = options_.stop_on_failure && !is_stopping_ && running_ > 0;
    if (!is_stopping_ && !result_.first_failure) result_.first_failure = i;
    say(members_[i]->name, " (process ", members_[i]->process->id(), ") ", status.to_string(),
        stops ? message("; stopping ", names_of_running()) : "", ".");
    if (stops) stop(SIGTERM);
  }

  // What the programs have left behind ends here; its output no longer matters.
  void on_last_end() {
    guard_.signal(SIGKILL);
    if (is_stopping_) kill_at_ = Deadline::after(std::max(options_.grace, kShortestGrace));
    for (const auto& member : members_) {
      for (Stream* stream : {&member->output, &member->errors}) {
        if (!stream->is_open()) continue;
        stream->read_what_is_there();
        if (stream->is_open()) stream->finish();
      }
    }
  }

  void on_timeout() {
    deadline_ = Deadline::forever();
    if (is_stopping_) return;
    result_.timed_out = true;
    say("not done after ", seconds(options_.timeout), " s; stopping ", names_of_running(), ".");
    stop(SIGTERM);
  }

  void take_signals() {
    for (int number = signals_.next(); number != 0; number = signals_.next()) {
      if (number == SIGUSR1 || number == SIGUSR2) {
        for (const auto& member : members_) member->process->signal(number);
      } else if (running_ == 0) {
        give_up_output();
      } else if (is_stopping_ && number == SIGINT) {
        kill_all();
      } else if (is_stopping_) {
        guard_.signal(number);
      } else {
        result_.signal = number;
        say("got ", signal_name(number), "; passing it to ", names_of_running(), ".");
        stop(number);
      }
    }
  }

  void stop(int number) {
    is_stopping_ = true;
    stop_signal_ = number;
    kill_at_ = Deadline::after(options_.grace);
    guard_.signal(number);
  }

  // One may have left the group, so each gets the signal by itself too.
  void kill_all() {
    say("killing ", names_of_running(), ".");
    kill_at_ = Deadline::after(std::max(options_.grace, kShortestGrace));
    guard_.signal(SIGKILL);
    for (const auto& member : members_) member->process->signal(SIGKILL);
  }

  void give_up_output() {
    output_.give_up();
    errors_.give_up();
  }

  // ---- words

  template <class... Parts>
  void say(const Parts&... parts) {
    errors_.add(message(options_.who, ": ", parts..., "\n"));
  }

  static double seconds(std::chrono::milliseconds time) {
    return std::chrono::duration<double>(time).count();
  }

  std::string names_of_running() const {
    std::string names;
    for (const auto& member : members_) {
      if (!member->has_ended) names += (names.empty() ? "" : ", ") + member->name;
    }
    return names;
  }

  const LaunchOptions options_;
  Deadline deadline_;
  Deadline kill_at_ = Deadline::forever();
  const Signals signals_;  // blocked before the first program starts
  Sink output_;
  Sink errors_;
  const ProcessGuard guard_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<pollfd> polled_;
  size_t running_ = 0;
  bool is_stopping_ = false;
  int stop_signal_ = 0;
  LaunchResult result_;
};

}  // namespace

int LaunchResult::exit_status() const {
  if (signal != 0) return 128 + signal;
  if (timed_out) return 124;
  return first_failure ? programs[*first_failure].shell_status() : 0;
}

LaunchResult launch(const std::vector<LaunchedProgram>& programs, const LaunchOptions& options) {
  return Job(programs, options).run();
}

}  // namespace tutti::cli
