// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/join.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/backoff.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/group/connect.h"
#include "tutti/group/grpc/factory.h"
#include "tutti/group/rendezvous/rendezvous.h"
#include "tutti/group/text_gather.h"
#include "tutti/rpc/own_host.h"

namespace tutti::internal {
namespace {

constexpr char kGatherMethod[] = "/tutti.Group/Gather";
constexpr std::chrono::milliseconds kFirstRetry{50};
constexpr std::chrono::milliseconds kLongestRetry{500};
// The least time for connections between workers once all have joined, however late the last was.
constexpr std::chrono::seconds kConnectTime{10};
constexpr int kTriesBetweenReports = 10;
constexpr int kRefusals = 3;

std::string print_texts(const TextGather::Texts& texts) {
  return nlohmann::json(texts).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> parse_texts(const std::string& answer, size_t ranks) {
  const nlohmann::json json = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.size() != ranks) {
    throw Error(ErrorCode::kUnavailable,
                message("MultiWorkerMirroredStrategy: worker 0 sent a malformed response instead "
                        "of ",
                        ranks, " texts. Do all workers run the same version?"));
  }
  std::vector<std::string> texts;
  for (const nlohmann::json& each : json)
    texts.push_back(each.is_string() ? each.get<std::string>() : "");
  return texts;
}

// The host of this machine that the worker would see. Retries, since its name may not be known yet.
std::string await_own_host(const std::string& worker, const std::string& address,
                           const Deadline& deadline) {
  Backoff backoff(kFirstRetry, kLongestRetry);
  for (int tries = 0;; ++tries) {
    std::string host = rpc::own_host_towards(address, deadline);
    if (!host.empty()) return host;
    if (!backoff.ends_before(deadline)) {
      throw Error(ErrorCode::kUnavailable,
                  message("MultiWorkerMirroredStrategy: ", worker, " at ", address,
                          " cannot be resolved or reached from this machine. Is the name right, "
                          "and does this machine's name service know it?"));
    }
    if (tries % kTriesBetweenReports == 0) {
      log(LogLevel::kInfo,
          message("waiting until the name of ", worker, " (", address, ") is known"));
    }
    backoff.sleep();
  }
}

// A worker that has joined the rendezvous listens; if its address refuses connections, it has
// ended.
std::shared_ptr<rpc::Channel> connect_to_first(const std::string& worker,
                                               const std::string& address,
                                               rpc::ChannelOptions options, Deadline deadline) {
  const std::string refused = std::generic_category().message(ECONNREFUSED);
  int in_a_row = 0;
  options.on_waiting = [&](const std::string& why) {
    // If a name has several addresses, some may always refuse.
    bool all_refuse = true;
    for (size_t from = 0; from < why.size() && all_refuse;) {
      const size_t end = std::min(why.find("; ", from), why.size());
      all_refuse = why.substr(from, end - from).find(refused) != std::string::npos;
      from = end + 2;
    }
    in_a_row = all_refuse ? in_a_row + 1 : 0;
    if (in_a_row < kRefusals) return;
    throw Error(ErrorCode::kUnavailable,
                message("MultiWorkerMirroredStrategy: ", worker,
                        " joined the rendezvous, but has ended before the workers were connected "
                        "to each other. Its log says why; start the job again."));
  };
  return rpc::Channel::connect(address, options, deadline);
}

}  // namespace

JoinedWorkers join_workers(const WorkerRendezvousOptions& options) {
  const auto ranks = options.names.size();
  const bool loopback =
      std::all_of(options.addresses.begin(), options.addresses.end(),
                  [](const std::string& each) { return each.empty() || rpc::is_loopback(each); });
  const rpc::SecurityOptions& security = options.security;
  // If only some addresses are loopback, a secret is still required.
  if (!security.has_certificates()) static_cast<void>(rpc::find_job_secret(security, loopback));

  const Deadline deadline = Deadline::after(options.join_timeout);
  const bool has_address = !options.own_address.empty();
  const std::string host = has_address
                               ? await_own_host(options.names[static_cast<size_t>(options.rank)],
                                                options.own_address, deadline)
                               : await_own_host(options.names[0], options.addresses[0], deadline);
  const std::string listen = has_address ? options.own_address : Address{host, 0}.to_string();
  rpc::ListenerOptions listener_options;
  listener_options.address = listen;
  listener_options.security = security;
  const auto listener = std::make_shared<rpc::Listener>(listener_options);
  const auto texts = std::make_shared<TextGather>(
      "MultiWorkerMirroredStrategy", options.names,
      message("Do they still run, and can they reach this address? The time for it is "
              "join_timeout, at least ",
              kConnectTime.count(), " s."));
  if (options.rank == 0) {
    listener->handle_deferred(kGatherMethod, [texts, ranks](const rpc::Caller&,
                                                            std::string_view request,
                                                            const rpc::Reply& reply) {
      const nlohmann::json json = nlohmann::json::parse(request, nullptr, false);
      if (!json.is_array() || json.size() != 3 || !json[0].is_number_unsigned() ||
          !json[1].is_number_unsigned() || json[1].get<size_t>() >= ranks || !json[2].is_string()) {
        reply.fail(Error(ErrorCode::kInvalidArgument, "Gather: malformed request."));
        return;
      }
      texts->put(json[0].get<uint64_t>(), json[1].get<size_t>(), json[2].get<std::string>(),
                 [reply](const TextGather::Texts& all) { reply.answer(print_texts(all)); });
    });
  }

  rpc::ChannelOptions channel_options;
  channel_options.security = security;
  RendezvousOptions meeting{.listener = *listener};
  meeting.rank = options.rank;
  meeting.addresses = options.addresses;
  meeting.addresses[static_cast<size_t>(options.rank)] =
      options.own_address.empty() ? listener->address() : options.own_address;
  meeting.job = options.job;
  meeting.facts = options.facts;
  meeting.info = options.info;
  meeting.timeout = options.join_timeout;
  meeting.deadline = deadline;
  meeting.channel = channel_options;
  const Membership members = rendezvous(meeting);
  const Deadline soon =
      Deadline::at(std::max(deadline.when(), Deadline::after(kConnectTime).when()));
  std::shared_ptr<rpc::Channel> to_first;
  if (options.rank != 0) {
    to_first = connect_to_first(message(options.names[0], " (", members.addresses[0], ")"),
                                members.addresses[0], channel_options, soon);
  }
  GroupOptions group;
  group.rank = options.rank;
  for (size_t r = 0; r < ranks; ++r) {
    group.names.push_back(message(options.names[r], " (", members.addresses[r], ")"));
  }
  texts->set_names(group.names);
  group.epoch = members.epoch;
  group.local_replicas = options.local_replicas;
  group.implementation = options.implementation;
  group.timeout = options.timeout;
  group.warning = options.warning;
  group.connect_timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(soon.when() - Deadline::Clock::now());
  uint64_t round = 0;
  group.gather = [&](const std::string& mine) {
    if (options.rank == 0) return texts->gather(0, mine, soon);
    const nlohmann::json request = {++round, options.rank, mine};
    return parse_texts(to_first->call(kGatherMethod, request.dump(), soon), ranks);
  };
  group.remote =
      make_grpc_links(listener, options.rank, members.epoch, members.addresses, channel_options);
  return {make_group(group), members.info};
}

}  // namespace tutti::internal
