// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/gce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/checked_json.h"
#include "tutti/cluster/internal/http_client.h"
#include "tutti/cluster/internal/natural_order.h"

namespace tutti {
namespace {

using internal::append_to_pointer;
using internal::Json;
using internal::JsonOrigin;

constexpr const char* kGce = "GCEClusterResolver";
constexpr const char* kGceRights =
    "Give the machine's service account the role Compute Viewer and the machine the scope "
    "compute-ro, or give an access_token.";
constexpr const char* kMetadataHeader = "Metadata-Flavor: Google";

JsonOrigin answer_origin(const char* what) {
  return {.who = message(kGce, ": the answer with ", what),
          .longest = size_t{16} << 20,
          .deepest = 64,
          .code = ErrorCode::kDataLoss};
}

std::string string_member(const JsonOrigin& origin, const std::string& pointer, const Json& object,
                          const char* key) {
  if (!object.is_object()) origin.refuse_value(pointer, object, "an object");
  const auto found = object.find(key);
  if (found == object.end()) return "";
  return internal::read_string(origin, append_to_pointer(pointer, key), *found);
}

// The first internal address of a machine.
std::string address_of_instance(const std::string& name, const std::string& text) {
  const JsonOrigin origin = answer_origin("a machine");
  const Json json = internal::parse_json_object(text, origin);
  const auto interfaces = json.find("networkInterfaces");
  if (interfaces == json.end() || !interfaces->is_array() || interfaces->empty()) {
    origin.refuse(message("machine ", in_quotes(name), " has no network interface"));
  }
  for (const char* key : {"networkIP", "ipv6Address"}) {
    std::string ip = string_member(origin, "/networkInterfaces/0", (*interfaces)[0], key);
    if (!ip.empty()) return ip;
  }
  origin.refuse(message("machine ", in_quotes(name), " has no internal IP address"));
}

void check_name(const char* option, const std::string& value) {
  const bool valid = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == ':';
  });
  if (valid) return;
  throw Error(ErrorCode::kInvalidArgument,
              message(kGce, ": ", option, " = ", in_quotes(value),
                      " is not a name of Compute Engine (lower-case letters, digits, hyphens)."));
}

}  // namespace

// The requests of one call of the resolver.
class GCEClusterResolver::Api {
 public:
  explicit Api(const GCEClusterResolverOptions& options)
      : options_(options),
        deadline_(Deadline::after(options.timeout)),
        compute_(kGce, {.ca_file = options.ca_file}),
        metadata_(kGce) {
    internal::check_url_for_token(kGce, options_.api_server);
    zone_ = message(options_.api_server, "/compute/v1/projects/",
                    internal::url_encoded(options_.project), "/zones/",
                    internal::url_encoded(options_.zone));
    token_ = options_.access_token ? *options_.access_token : own_token();
  }

  // The internal IP addresses of the running machines, sorted.
  std::vector<std::string> addresses() {
    std::vector<std::string> names;
    std::string next;
    do {
      next = append_page(names, next);
    } while (!next.empty());
    std::vector<std::string> out;
    for (const std::string& name : names) {
      const std::string url =
          message(zone_, "/instances/", internal::url_encoded(name), "?fields=networkInterfaces");
      out.push_back(address_of_instance(
          name,
          internal::body_of_ok(kGce, url, compute_.get(url, {bearer()}, deadline_), kGceRights)));
    }
    std::sort(out.begin(), out.end(), internal::natural_less);
    return out;
  }

  // That of the machine on which this process runs.
  std::string own_address() {
    for (const char* key : {"ip", "ipv6s"}) {
      const internal::HttpAnswer answer = metadata(message("network-interfaces/0/", key));
      std::string ip = answer.body.substr(0, answer.body.find_first_of("/\r\n"));
      if (answer.status == 200 && !ip.empty()) return ip;
    }
    throw Error(ErrorCode::kDataLoss,
                message(kGce,
                        ": the metadata server does not say which address this machine has. "
                        "Give a task_id."));
  }

 private:
  std::string bearer() const { return "Authorization: Bearer " + token_; }

  internal::HttpAnswer metadata(const std::string& path) {
    const std::string host =
        options_.metadata_server
            ? *options_.metadata_server
            : read_env("GCE_METADATA_HOST").value_or("metadata.google.internal");
    return metadata_.get(message("http://", host, "/computeMetadata/v1/instance/", path),
                         {kMetadataHeader}, deadline_);
  }

  std::string own_token() {
    internal::HttpAnswer answer = metadata("service-accounts/default/token");
    const std::string body =
        internal::body_of_ok(kGce, "the metadata server", std::move(answer), kGceRights);
    const JsonOrigin origin = answer_origin("the token");
    std::string token =
        string_member(origin, "", internal::parse_json_object(body, origin), "access_token");
    if (token.empty()) origin.refuse("there is no \"access_token\"");
    return token;
  }

  // Appends the machines of a page, and returns the token of the next one.
  std::string append_page(std::vector<std::string>& names, const std::string& page_token) {
    std::string url =
        message(zone_, "/instanceGroups/", internal::url_encoded(options_.instance_group),
                "/listInstances?maxResults=500");
    if (!page_token.empty()) url += "&pageToken=" + internal::url_encoded(page_token);
    const std::string body =
        internal::body_of_ok(kGce, url,
                             compute_.post(url, {bearer(), "Content-Type: application/json"},
                                           R"({"instanceState": "RUNNING"})", deadline_),
                             kGceRights);
    const JsonOrigin origin = answer_origin("the machines of the group");
    const Json json = internal::parse_json_object(body, origin);
    if (const auto items = json.find("items"); items != json.end()) {
      if (!items->is_array()) origin.refuse_value("/items", *items, "a list of machines");
      for (size_t i = 0; i < items->size(); ++i) {
        const std::string here = append_to_pointer("/items", std::to_string(i));
        const std::string link = string_member(origin, here, (*items)[i], "instance");
        // "https://www.googleapis.com/compute/v1/projects/p/zones/z/instances/name"
        const std::string name = link.substr(link.rfind('/') + 1);
        if (name.empty()) origin.refuse_at(here, "the machine has no name");
        names.push_back(name);
      }
    }
    if (names.size() > size_t{ClusterSpec::kLastIndex}) {
      origin.refuse(message("there are more than ", ClusterSpec::kLastIndex, " machines"));
    }
    return string_member(origin, "", json, "nextPageToken");
  }

  const GCEClusterResolverOptions& options_;  ///< The resolver's, which outlives this call.
  Deadline deadline_;
  internal::HttpClient compute_;
  internal::HttpClient metadata_;
  std::string zone_;
  std::string token_;
};

GCEClusterResolver::GCEClusterResolver(GCEClusterResolverOptions options)
    : options_(std::move(options)) {
  check_name("project", options_.project);
  check_name("zone", options_.zone);
  check_name("instance_group", options_.instance_group);
  if (options_.port >= 1 && options_.port <= 65535) return;
  throw Error(ErrorCode::kInvalidArgument,
              message(kGce, ": port = ", options_.port, ". It must be from 1 to 65535."));
}

ClusterSpec GCEClusterResolver::cluster_spec() const {
  std::vector<std::string> tasks;
  for (const std::string& ip : Api(options_).addresses()) {
    tasks.push_back(Address{ip, options_.port}.to_string());
    try {
      parse_address(tasks.back());
    } catch (const Error& error) {
      throw Error(ErrorCode::kDataLoss, message(kGce, ": a machine has ", error.what()));
    }
  }
  if (tasks.empty()) {
    throw Error(ErrorCode::kFailedPrecondition,
                message(kGce, ": no machine of instance group ", in_quotes(options_.instance_group),
                        " (project ", options_.project, ", zone ", options_.zone,
                        ") is running. Start them, or correct the name."));
  }
  return ClusterSpec{{options_.task_type, std::move(tasks)}};
}

std::optional<int> GCEClusterResolver::own_task_id() const {
  if (options_.task_id) return options_.task_id;
  if (options_.access_token) return std::nullopt;
  Api api(options_);
  const std::vector<std::string> all = api.addresses();
  const auto mine = std::find(all.begin(), all.end(), api.own_address());
  if (mine == all.end()) return std::nullopt;
  return static_cast<int>(mine - all.begin());
}

}  // namespace tutti
