// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/cluster_def.h"

#include <string>

#include <gtest/gtest.h>

#include "tutti/cluster/cluster_spec.h"

#include "tests/support/expect_error.h"

namespace cluster_def_test {

using namespace tutti;

TEST(ClusterDef, IsMadeOfAClusterSpecAndBack) {
  const ClusterSpec spec = ClusterSpec::sparse(
      {{"worker", {{0, "a:1"}, {1, "b:1"}}}, {"ps", {{3, "c:1"}}}, {"evaluator", {}}});
  const ClusterDef def = spec.as_cluster_def();
  ASSERT_EQ(def.job.size(), 3u);
  EXPECT_EQ(def.job[0], (JobDef{"evaluator", {}}));
  EXPECT_EQ(def.job[1], (JobDef{"ps", {{3, "c:1"}}}));
  EXPECT_EQ(def.job[2], (JobDef{"worker", {{0, "a:1"}, {1, "b:1"}}}));
  EXPECT_EQ(ClusterSpec(def), spec);
  EXPECT_TRUE(ClusterSpec(ClusterDef()).empty());
  EXPECT_TUTTI_ERROR(ClusterSpec(ClusterDef{{{"ps", {}}, {"ps", {}}}}), ErrorCode::kInvalidArgument,
                     "job \"ps\" appears twice");
  EXPECT_TUTTI_ERROR(ClusterSpec(ClusterDef{{{"ps", {{-1, "a:1"}}}}}), ErrorCode::kInvalidArgument,
                     "index -1");
}

TEST(ClusterDef, IsWrittenAndReadAsJson) {
  const ClusterDef def{{{"worker", {{0, "a:1"}, {2, "[::1]:5"}}}, {"ps", {}}}};
  EXPECT_EQ(def.to_json(), R"({"job": [{"name": "worker", "tasks": {"0": "a:1", "2": "[::1]:5"}}, )"
                           R"({"name": "ps", "tasks": {}}]})");
  EXPECT_EQ(ClusterDef::from_json(def.to_json()), def);
  EXPECT_EQ(ClusterDef::from_json("{}"), ClusterDef());
  EXPECT_EQ(ClusterDef::from_json(R"({"job": [{"name": "ps"}]})"), (ClusterDef{{{"ps", {}}}}));
}

TEST(ClusterDef, SaysWhereItsJsonIsWrong) {
  const struct {
    const char* text;
    const char* part;
  } cases[] = {
      {R"({"job": )", "invalid JSON at line 1"},
      {R"([])", "expected an object"},
      {R"({"jobs": []})", "at \"/jobs\": unknown key"},
      {R"({"job": {}})", "at \"/job\": expected a list of jobs"},
      {R"({"job": [{}]})", "at \"/job/0\": the job has no \"name\""},
      {R"({"job": [{"name": 3}]})", "at \"/job/0/name\": expected a string, got 3"},
      {R"({"job": [{"name": ""}]})", "at \"/job/0/name\": the name is empty"},
      {R"({"job": [{"name": "a"}, {"name": "a"}]})", "at \"/job/1/name\": duplicate job"},
      {R"({"job": [{"name": "a", "tasks": ["a:1"]}]})", "at \"/job/0/tasks\": expected an object"},
      {R"({"job": [{"name": "a", "tasks": {"x": "a:1"}}]})", "\"x\" is not an index"},
      {R"({"job": [{"name": "a", "tasks": {"1000000": "a:1"}}]})", "is not an index"},
      {R"({"job": [{"name": "a", "tasks": {"1": "a:1", "01": "a:1"}}]})", "duplicate index"},
      {R"({"job": [{"name": "a", "tasks": {"1": "a"}}]})", "it has no port"},
      {R"({"job": [{"name": "a", "name": "b"}]})", "duplicate key"},
  };
  for (const auto& wrong : cases) {
    EXPECT_TUTTI_ERROR(ClusterDef::from_json(wrong.text), ErrorCode::kInvalidArgument,
                       "ClusterDef: ", wrong.part)
        << wrong.text;
  }
  EXPECT_TUTTI_ERROR(ClusterDef::from_json(std::string(100, '[')), ErrorCode::kInvalidArgument,
                     "nested more than 16 levels");
  EXPECT_TUTTI_ERROR(ClusterDef::from_json(std::string(2'000'000, ' ')),
                     ErrorCode::kInvalidArgument, "2000000 bytes; the limit is 1048576");
}

TEST(ClusterDeviceFilters, AreSetTaskByTask) {
  ClusterDeviceFilters filters;
  filters.set_device_filters("worker", 1, {"/job:ps", "/job:worker/task:1"});
  filters.set_device_filters("ps", 0, {"/job:ps"});
  filters.set_device_filters("worker", 0, {});
  filters.set_device_filters("ps", 0, {"/job:chief"});
  EXPECT_EQ(filters.to_json(),
            R"({"jobs": [{"name": "ps", "tasks": {"0": {"device_filters": ["/job:chief"]}}}, )"
            R"({"name": "worker", "tasks": {"0": {"device_filters": []}, )"
            R"("1": {"device_filters": ["/job:ps", "/job:worker/task:1"]}}}]})");
  EXPECT_EQ(ClusterDeviceFilters::from_json(filters.to_json()), filters);
  EXPECT_TUTTI_ERROR(filters.set_device_filters("", 0, {}), ErrorCode::kInvalidArgument,
                     "empty name");
  EXPECT_TUTTI_ERROR(filters.set_device_filters("ps", -1, {}), ErrorCode::kInvalidArgument,
                     "index -1");
  EXPECT_TUTTI_ERROR(filters.set_device_filters("ps", 2, {"/job:ps", ""}),
                     ErrorCode::kInvalidArgument, "a filter of /job:ps/task:2 is empty");
}

TEST(ClusterDeviceFilters, FindAJobInAnyOrder) {
  ClusterDeviceFilters filters = ClusterDeviceFilters::from_json(
      R"({"jobs": [{"name": "worker", "tasks": {}}, {"name": "chief", "tasks": {}}]})");
  filters.set_device_filters("chief", 0, {"/job:ps"});
  filters.set_device_filters("worker", 1, {"/job:ps"});
  ASSERT_EQ(filters.jobs.size(), 2U);
  EXPECT_EQ(filters.jobs[0].name, "worker");
  EXPECT_EQ(filters.jobs[0].tasks.count(1), 1U);
  EXPECT_EQ(filters.jobs[1].tasks.at(0).device_filters, std::vector<std::string>{"/job:ps"});
  EXPECT_EQ(ClusterDeviceFilters::from_json(filters.to_json()), filters);
}

TEST(ClusterDeviceFilters, SayWhereTheirJsonIsWrong) {
  for (const char* text :
       {R"({"jobs": [{"name": "a", "tasks": {"0": ["/job:ps"]}}]})",
        R"({"jobs": [{"name": "a", "tasks": {"0": {"device_filters": "/job:ps"}}}]})",
        R"({"jobs": [{"name": "a", "tasks": {"0": {"device_filters": [1]}}}]})",
        R"({"jobs": [{"name": "a", "tasks": {"0": {"device_filters": [""]}}}]})"}) {
    EXPECT_TUTTI_ERROR(ClusterDeviceFilters::from_json(text), ErrorCode::kInvalidArgument,
                       "ClusterDeviceFilters: at \"/jobs/0/tasks/0")
        << text;
  }
}

TEST(ServerDef, IsWrittenAndReadAsJson) {
  ServerDef def{.cluster = ClusterSpec{{"ps", {"a:1", "b:1"}}}.as_cluster_def(),
                .job_name = "ps",
                .task_index = 1,
                .port = 4321};
  def.cluster_device_filters.set_device_filters("ps", 1, {"/job:chief"});
  EXPECT_EQ(def.to_json(),
            R"({"cluster": {"job": [{"name": "ps", "tasks": {"0": "a:1", "1": "b:1"}}]}, )"
            R"("job_name": "ps", "task_index": 1, "protocol": "grpc", "port": 4321, )"
            R"("cluster_device_filters": {"jobs": [{"name": "ps", )"
            R"("tasks": {"1": {"device_filters": ["/job:chief"]}}}]}})");
  EXPECT_EQ(ServerDef::from_json(def.to_json()), def);
  EXPECT_EQ(ServerDef::from_json("{}"), ServerDef());
}

TEST(ServerDef, ReadsWhatTensorFlowWrites) {
  const ServerDef def = ServerDef::from_json(
      R"({"cluster": {"job": [{"name": "worker", "tasks": {"0": "a:1"}}]}, "jobName": "worker",
          "taskIndex": 0, "protocol": "grpc+verbs", "defaultSessionConfig": {"any": [1]},
          "clusterDeviceFilters": {"jobs": [{"name": "worker",
            "tasks": {"0": {"deviceFilters": ["/job:ps"]}}}]}})");
  EXPECT_EQ(def.job_name, "worker");
  EXPECT_EQ(def.protocol, "grpc+verbs");
  EXPECT_EQ(def.cluster_device_filters.jobs[0].tasks.at(0).device_filters[0], "/job:ps");
  EXPECT_TUTTI_ERROR(ServerDef::from_json(R"({"job_name": "a", "jobName": "b"})"),
                     ErrorCode::kInvalidArgument, "duplicate key");
  EXPECT_TUTTI_ERROR(ServerDef::from_json(R"({"port": 65536})"), ErrorCode::kInvalidArgument,
                     "at \"/port\": expected a port from 0 to 65535, got 65536");
  EXPECT_TUTTI_ERROR(ServerDef::from_json(R"({"task_index": -1})"), ErrorCode::kInvalidArgument,
                     "at \"/task_index\"");
  EXPECT_TUTTI_ERROR(ServerDef::from_json(R"({"cluster": 1})"), ErrorCode::kInvalidArgument,
                     "ServerDef: at \"/cluster\"");
}

}  // namespace cluster_def_test
