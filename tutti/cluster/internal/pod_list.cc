// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/pod_list.h"

#include "tutti/base/error.h"
#include "tutti/cluster/internal/checked_json.h"

namespace tutti::internal {
namespace {

// A string at a path of keys below `value`; empty if there is none.
std::string string_at(const JsonOrigin& origin, const std::string& pointer, const Json& value,
                      std::initializer_list<const char*> keys) {
  const Json* place = &value;
  std::string here = pointer;
  for (const char* key : keys) {
    if (!place->is_object()) origin.refuse_value(here, *place, "an object");
    const auto found = place->find(key);
    if (found == place->end() || found->is_null()) return "";
    here = append_to_pointer(here, key);
    place = &*found;
  }
  return read_string(origin, here, *place);
}

}  // namespace

PodPage parse_pod_page(std::string_view who, std::string_view text) {
  const JsonOrigin origin{.who = message(who, ": the list of pods"),
                          .longest = size_t{16} << 20,
                          .deepest = 64,
                          .code = ErrorCode::kDataLoss};
  const Json json = parse_json_object(text, origin);
  PodPage page;
  page.next = string_at(origin, "", json, {"metadata", "continue"});
  const auto items = json.find("items");
  if (items == json.end()) origin.refuse("there are no \"items\"");
  if (items->is_null()) return page;  // how some servers write an empty list
  if (!items->is_array()) origin.refuse_value("/items", *items, "a list of pods");
  for (const Json& item : *items) {
    const std::string here = append_to_pointer("/items", std::to_string(page.pods.size()));
    Pod pod;
    pod.name = string_at(origin, here, item, {"metadata", "name"});
    if (pod.name.empty()) origin.refuse_at(here, "the pod has no name");
    pod.pod_namespace = string_at(origin, here, item, {"metadata", "namespace"});
    pod.is_being_deleted =
        !string_at(origin, here, item, {"metadata", "deletionTimestamp"}).empty();
    pod.hostname = string_at(origin, here, item, {"spec", "hostname"});
    pod.phase = string_at(origin, here, item, {"status", "phase"});
    pod.pod_ip = string_at(origin, here, item, {"status", "podIP"});
    pod.host_ip = string_at(origin, here, item, {"status", "hostIP"});
    page.pods.push_back(std::move(pod));
  }
  return page;
}

}  // namespace tutti::internal
