// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/rendezvous/meeting_place.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/base/log.h"
#include "tutti/group/epoch.h"
#include "tutti/group/rendezvous/control_message.h"

namespace tutti::internal {
namespace {

constexpr size_t kAnswerBytes = 4 << 20;
constexpr int kMaxWorld = 10000;
/// How long rank 0 stays after a failure, for the ranks that do not know of it yet.
constexpr std::chrono::seconds kLinger(3);
constexpr std::chrono::seconds kBackBy(2);

std::string print_result(const Membership& result) {
  return print_control({{"state", "done"},
                        {"epoch", std::to_string(result.epoch)},
                        {"addresses", result.addresses},
                        {"info", result.info}});
}

using Facts = std::map<std::string, std::string>;

std::optional<std::string> fact(const Facts& facts, const std::string& name) {
  const auto found = facts.find(name);
  if (found == facts.end()) return {};
  return found->second;
}

std::string print_fact(const std::optional<std::string>& value) {
  return value ? "\"" + printable(*value) + "\"" : "not set";
}

}  // namespace

std::string print_member(const Member& member) {
  return print_control({{"rank", member.rank},
                        {"world", member.world},
                        {"job", member.job},
                        {"instance", member.instance},
                        {"address", member.address},
                        {"facts", member.facts},
                        {"info", member.info}});
}

Member parse_member(std::string_view text) {
  const nlohmann::json object = parse_control(text);
  const int64_t rank = int_member(object, "rank");
  const int64_t world = int_member(object, "world");
  if (world < 1 || world > kMaxWorld || rank < 0 || rank >= world) {
    throw Error(ErrorCode::kInvalidArgument,
                message("rpc: there is no rank ", rank, " in a job of ", world, "."));
  }
  return {.rank = static_cast<int>(rank),
          .world = static_cast<int>(world),
          .job = text_member(object, "job"),
          .instance = text_member(object, "instance"),
          .address = text_member(object, "address"),
          .facts = map_member(object, "facts"),
          .info = map_member(object, "info")};
}

std::optional<Membership> parse_answer(std::string_view text, std::string& waiting_for) {
  const nlohmann::json object = parse_control(text, kAnswerBytes);
  if (text_member(object, "state") == "waiting") {
    waiting_for = printable(text_member(object, "missing"));
    return {};
  }
  const auto fail = [] {
    throw Error(ErrorCode::kInvalidArgument, "rpc: malformed response from rank 0.");
  };
  Membership result;
  const std::string epoch = text_member(object, "epoch");
  const auto [end, code] = std::from_chars(epoch.data(), epoch.data() + epoch.size(), result.epoch);
  const auto addresses = object.find("addresses");
  const auto info = object.find("info");
  if (code != std::errc() || end != epoch.data() + epoch.size() || addresses == object.end() ||
      info == object.end() || !addresses->is_array() || !info->is_array() ||
      addresses->size() != info->size()) {
    fail();
  }
  for (size_t i = 0; i < addresses->size(); ++i) {
    if (!addresses->at(i).is_string()) fail();
    result.addresses.push_back(addresses->at(i).get<std::string>());
    result.info.push_back(map_member({{"info", info->at(i)}}, "info"));
  }
  return result;
}

std::string describe(const std::string& noun, int rank, int world, const std::string& address) {
  const std::string where = address.empty() ? "" : " (" + printable(address) + ")";
  return message(noun, " ", rank, " of ", world, where);
}

void check_reachable(const std::string& who, const std::string& address,
                     const std::vector<std::string>& others) {
  if (!rpc::is_loopback(address)) return;
  for (const std::string& other : others) {
    if (other.empty() || rpc::is_loopback(other)) continue;
    throw Error(ErrorCode::kFailedPrecondition,
                message(who, " has the address ", printable(address),
                        ", which only its own machine can reach, but others run elsewhere (",
                        printable(other), "). Give it an address that the others can reach."));
  }
}

MeetingPlace::MeetingPlace(const RendezvousOptions& options, Member own)
    : job_(options.job),
      noun_(options.noun),
      known_(options.addresses),
      report_interval_(options.report_interval),
      timeout_(options.timeout),
      world_(own.world) {
  seats_[0] = {.member = std::move(own), .reply = {}, .told = true};
  MutexLock lock(mutex_);
  conclude();
}

void MeetingPlace::join(const std::string& request, const rpc::Reply& reply) {
  const Member member = parse_member(request);
  check_member(member);
  MutexLock lock(mutex_);
  forget_the_gone();
  if (!failure_) seat(member, reply);
  if (failure_) {
    reply.fail(*failure_);
    seats_[member.rank] = {.member = member, .told = true};
  }
  answer_all();
  changed_.bump();
}

/// Checks what concerns only the joining process.
void MeetingPlace::check_member(const Member& member) {
  const std::string who = describe(noun_, member.rank, member.world, member.address);
  const auto refuse = [&](const std::string& why) {
    log(LogLevel::kWarning, message("rendezvous of job ", job_, ": refused ", who, ": ", why));
    {
      MutexLock lock(mutex_);
      last_refusal_ = message(who, ": ", why);
    }
    throw Error(ErrorCode::kFailedPrecondition,
                message("rendezvous: ", who, " was refused by rank 0 (", known_[0], "): ", why));
  };
  if (member.job != job_) {
    refuse(message("it belongs to job \"", printable(member.job, 100), "\", but this is job \"",
                   job_, "\"."));
  }
  if (member.rank == 0) refuse("rank 0 has already joined.");
  try {
    std::vector<std::string> others = known_;
    if (static_cast<size_t>(member.rank) < others.size())
      others[static_cast<size_t>(member.rank)] = "";
    check_reachable(who, member.address, others);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

void MeetingPlace::seat(const Member& member, const rpc::Reply& reply) {
  const auto found = seats_.find(member.rank);
  if (found != seats_.end() && found->second.member.instance != member.instance) {
    const Seat& other = found->second;
    const std::string who = describe(noun_, member.rank, world_, member.address);
    log(LogLevel::kWarning, message("rendezvous of job ", job_, ": ", who, " joined twice."));
    last_refusal_ = message(who, ": another process with this rank is at ",
                            printable(other.member.address), ".");
    reply.fail(
        Error(ErrorCode::kFailedPrecondition,
              message("rendezvous: ", who, " joined job \"", job_,
                      "\" twice: another process with this rank is at ",
                      printable(other.member.address), ". Give each process its own rank.")));
    return;
  }
  if (found == seats_.end()) compare_facts(member);
  Seat& seat = seats_[member.rank];
  seat.member = member;
  seat.reply = reply;
  seat.told = false;
  conclude();
}

/// Removes processes that disconnected while waiting, or did not ask again; another process may
/// take their rank.
void MeetingPlace::forget_the_gone() {
  if (failure_ || result_) return;
  std::erase_if(seats_, [&](const auto& entry) {
    const auto& [rank, seat] = entry;
    const bool gone = rank != 0 && (seat.reply ? seat.reply->is_over() : seat.back_by.passed());
    if (gone) {
      log(LogLevel::kWarning,
          message("job ", job_, ": ", describe(noun_, rank, world_, seat.member.address),
                  " left the rendezvous."));
    }
    return gone;
  });
}

void MeetingPlace::compare_facts(const Member& member) {
  auto theirs = member.facts;
  auto ours = seats_.at(0).member.facts;
  const std::string count = message("number of ", noun_, "s");
  theirs[count] = std::to_string(member.world);
  ours[count] = std::to_string(world_);
  std::set<std::string> names;
  for (const auto& [name, value] : ours) names.insert(name);
  for (const auto& [name, value] : theirs) names.insert(name);
  for (const std::string& name : names) {
    const auto here = fact(ours, name);
    const auto there = fact(theirs, name);
    if (here == there) continue;
    failure_ = Error(ErrorCode::kFailedPrecondition,
                     message("rendezvous of job \"", job_, "\": ", printable(name, 100), " is ",
                             print_fact(here), " at ", noun_, " 0 (", known_[0], ") but ",
                             print_fact(there), " at ", noun_, " ", member.rank, " (",
                             printable(member.address), "). It must be the same everywhere."));
    return;
  }
}

bool MeetingPlace::all_here() const { return seats_.size() == static_cast<size_t>(world_); }

bool MeetingPlace::all_told() const {
  return std::all_of(seats_.begin(), seats_.end(), [](const auto& entry) {
    return entry.second.told || (entry.second.reply && entry.second.reply->is_over());
  });
}

void MeetingPlace::conclude() {
  if (failure_ || result_ || !all_here()) return;
  result_.emplace();
  result_->epoch = random_epoch();
  for (const auto& [rank, seat] : seats_) {
    result_->addresses.push_back(seat.member.address);
    result_->info.push_back(seat.member.info);
  }
}

/// Sends the final response, if there is one, to all waiting ranks.
void MeetingPlace::answer_all() {
  if (!failure_ && !result_) return;
  for (auto& [rank, seat] : seats_) {
    if (!seat.reply || seat.told) continue;
    if (failure_) {
      seat.reply->fail(*failure_);
    } else {
      seat.reply->answer(print_result(*result_));
    }
    seat.told = true;
    seat.reply.reset();
  }
}

/// Tells the waiting ranks which ones are missing; they then ask again.
void MeetingPlace::answer_waiting() {
  const std::string text = print_control({{"state", "waiting"}, {"missing", missing()}});
  for (auto& [rank, seat] : seats_) {
    if (!seat.reply) continue;
    seat.reply->answer(text);
    seat.reply.reset();
    seat.back_by = Deadline::after(kBackBy);
  }
}

std::string MeetingPlace::missing() const {
  constexpr int kNamed = 4;
  std::vector<std::string> named;
  int count = 0;
  for (int rank = 0; rank < world_; ++rank) {
    if (seats_.count(rank) != 0) continue;
    if (++count > kNamed) continue;
    named.push_back(describe(noun_, rank, world_, known_[static_cast<size_t>(rank)]));
  }
  return count > kNamed ? message(joined(named), " and ", count - kNamed, " more") : joined(named);
}

Error MeetingPlace::too_late(const rpc::Listener& listener) const {
  const auto tenths = std::chrono::round<std::chrono::duration<int64_t, std::deci>>(timeout_);
  const std::string refusal = last_refusal_.empty() ? listener.last_refusal() : last_refusal_;
  return Error(
      ErrorCode::kDeadlineExceeded,
      message("rendezvous of job \"", job_, "\" at ", known_[0], ": ", missing(),
              " did not join within ", static_cast<double>(tenths.count()) / 10, " s. ",
              refusal.empty() ? "No process was refused" : message("Refused: ", refusal),
              refusal.empty() ? ": is it running, with the same cluster, and can it reach "
                                "this address?"
                              : " If that was the missing one, correct it and start it again.",
              " Raise the timeout if it only needs more time."));
}

Membership MeetingPlace::wait(const rpc::Listener& listener, Deadline deadline) {
  report_and_wait(deadline);
  {
    MutexLock lock(mutex_);
    if (!failure_ && !result_) failure_ = too_late(listener);
    answer_all();
  }
  linger(Deadline::after(kLinger));
  MutexLock lock(mutex_);
  if (failure_) throw Error(*failure_);
  return *result_;
}

void MeetingPlace::report_and_wait(Deadline deadline) {
  auto next_report = Deadline::after(report_interval_);
  while (true) {
    const uint32_t seen = changed_.load();
    {
      MutexLock lock(mutex_);
      if (failure_ || result_ || deadline.passed()) return;
      if (next_report.passed()) {
        forget_the_gone();
        log(LogLevel::kInfo, message("job ", job_, ": waiting for ", missing()));
        answer_waiting();
        next_report = Deadline::after(report_interval_);
      }
    }
    changed_.park(seen, earlier(deadline, next_report));
  }
}

/// Called after a failure, when rank 0 is about to leave: all known ranks get the reason, as do,
/// unless it was the timeout, those that still join.
void MeetingPlace::linger(Deadline deadline) {
  while (!deadline.passed()) {
    const uint32_t seen = changed_.load();
    {
      MutexLock lock(mutex_);
      const bool await_others = failure_ && failure_->code() == ErrorCode::kFailedPrecondition;
      if (all_told() && (!await_others || all_here())) return;
    }
    changed_.park(seen, deadline);
  }
}

}  // namespace tutti::internal
