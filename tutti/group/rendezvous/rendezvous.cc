// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/rendezvous/rendezvous.h"

#include <memory>
#include <thread>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/group/epoch.h"
#include "tutti/group/rendezvous/meeting_place.h"

namespace tutti {
namespace {

/// The extra time in which rank 0 can tell the others why it gave up, which says more than their
/// own deadline.
constexpr std::chrono::seconds kAfterRankZero(5);
constexpr std::chrono::milliseconds kNotYet(50);

void check_rendezvous_options(const RendezvousOptions& options) {
  const size_t world = options.addresses.size();
  if (options.rank < 0 || static_cast<size_t>(options.rank) >= world) {
    throw Error(ErrorCode::kInvalidArgument,
                message("rendezvous: rank ", options.rank, " is not among ", world, " addresses."));
  }
  if (options.addresses[0].empty() && options.rank != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "rendezvous: the address of rank 0, where all ranks meet, must be given.");
  }
  if (options.facts.size() > 60 || options.info.size() > 60) {
    throw Error(ErrorCode::kInvalidArgument,
                "rendezvous: at most 60 facts and 60 info entries are allowed.");
  }
}

internal::Member own_member(const RendezvousOptions& options) {
  const std::string& given = options.addresses[static_cast<size_t>(options.rank)];
  return {.rank = options.rank,
          .world = static_cast<int>(options.addresses.size()),
          .job = options.job,
          .instance = message(random_epoch(), "-", random_epoch()),
          .address = given.empty() ? options.listener.address() : given,
          .facts = options.facts,
          .info = options.info};
}

Membership meet_as_rank_zero(const RendezvousOptions& options, internal::Member own,
                             Deadline deadline) {
  RendezvousOptions with_own_address = options;
  with_own_address.addresses[0] = own.address;
  const auto place = std::make_shared<internal::MeetingPlace>(with_own_address, std::move(own));
  options.listener.handle_deferred(
      internal::kJoinMethod,
      [place](const rpc::Caller&, std::string_view request, const rpc::Reply& reply) {
        place->join(std::string(request), reply);
      });
  return place->wait(options.listener, deadline);
}

/// Logs a line once per report interval.
class Reporter {
 public:
  explicit Reporter(const RendezvousOptions& options) : options_(options) {}

  void waiting(const std::string& for_whom) {
    if (!next_.passed()) return;
    next_ = Deadline::after(options_.report_interval);
    log(LogLevel::kInfo, message("job ", options_.job, ": waiting for ", for_whom));
  }

 private:
  const RendezvousOptions& options_;
  Deadline next_ = Deadline::after(options_.report_interval);
};

Membership meet_at_rank_zero(const RendezvousOptions& options, const internal::Member& own,
                             Deadline deadline) {
  const std::string zero = internal::describe(options.noun, 0, own.world, options.addresses[0]);
  const std::string me = internal::describe(options.noun, own.rank, own.world, own.address);
  Reporter reporter(options);
  rpc::ChannelOptions channel_options = options.channel;
  if (!channel_options.on_waiting) {
    channel_options.on_waiting = [&](const std::string& why) {
      reporter.waiting(message(zero, ": ", why));
    };
  }
  const auto channel = rpc::Channel::connect(options.addresses[0], channel_options, deadline);
  const std::string request = internal::print_member(own);
  const bool for_ever = deadline.when() == Deadline::Clock::time_point::max();
  const Deadline patience = for_ever ? deadline : Deadline::at(deadline.when() + kAfterRankZero);
  while (true) {
    try {
      std::string waiting_for;
      auto result = internal::parse_answer(channel->call(internal::kJoinMethod, request, patience),
                                           waiting_for);
      if (result) return std::move(*result);
      reporter.waiting(waiting_for);
    } catch (const Error& error) {
      const std::string where = message("rendezvous: ", me, " of job \"", options.job, "\": ");
      if (error.code() == ErrorCode::kUnavailable) {
        throw Error(error.code(), message(where, zero, " is gone: ", error.what()));
      }
      if (error.code() == ErrorCode::kCancelled)
        throw Error(ErrorCode::kUnavailable, where + error.what());
      // Its listener runs, but it has not reached the rendezvous yet.
      if (error.code() != ErrorCode::kUnimplemented) throw;
      if (deadline.passed()) {
        throw Error(ErrorCode::kDeadlineExceeded,
                    message(where, zero, " listens, but did not join the rendezvous."));
      }
      reporter.waiting(zero);
      std::this_thread::sleep_for(kNotYet);
    }
  }
}

}  // namespace

Membership rendezvous(const RendezvousOptions& options) {
  check_rendezvous_options(options);
  internal::Member own = own_member(options);
  const Deadline deadline = options.deadline.value_or(Deadline::after(options.timeout));
  std::vector<std::string> others = options.addresses;
  others[static_cast<size_t>(options.rank)].clear();
  internal::check_reachable(
      message("rendezvous: ", options.noun, " ", options.rank, " of job \"", options.job, "\""),
      own.address, others);
  if (options.rank == 0) return meet_as_rank_zero(options, std::move(own), deadline);
  return meet_at_rank_zero(options, own, deadline);
}

}  // namespace tutti
