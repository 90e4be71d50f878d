// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/task_roles.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace task_roles_test {

using namespace tutti;

const ClusterSpec kAll{
    {"chief", {"a:1"}}, {"worker", {"b:1", "c:1"}}, {"ps", {"d:1", "e:1"}}, {"evaluator", {"f:1"}}};
const ClusterSpec kWorkers{{"worker", {"a:1", "b:1", "c:1"}}};
const ClusterSpec kAlone;

TEST(TaskRoles, TheChiefIsTheChiefOrTheFirstWorker) {
  EXPECT_TRUE(is_chief(kAll, "chief", 0));
  EXPECT_FALSE(is_chief(kAll, "worker", 0));
  EXPECT_TRUE(is_chief(kAll, "evaluator", 0));
  EXPECT_FALSE(is_chief(kAll, "ps", 0));
  EXPECT_TRUE(is_chief(kWorkers, "worker", 0));
  EXPECT_FALSE(is_chief(kWorkers, "worker", 1));
  EXPECT_TRUE(is_chief(kWorkers, "evaluator", 0)) << "need not be in the cluster";
  EXPECT_TRUE(is_chief(kAlone));
}

TEST(TaskRoles, CountsChiefAndWorkersTogether) {
  EXPECT_EQ(worker_count(kAll, "chief"), 3);
  EXPECT_EQ(worker_count(kAll, "worker"), 3);
  EXPECT_EQ(worker_count(kAll), 3);
  EXPECT_EQ(worker_count(kAll, "evaluator"), 1);
  EXPECT_EQ(worker_count(kWorkers, "evaluator"), 1);
  EXPECT_EQ(worker_count(kWorkers, "worker"), 3);
  EXPECT_EQ(worker_count(kAlone), 1);
  EXPECT_TUTTI_ERROR(worker_count(kAll, "ps"), ErrorCode::kInvalidArgument, "ps");
  EXPECT_TUTTI_ERROR(worker_count(kAll, "master"), ErrorCode::kInvalidArgument, "unrecognized");
}

TEST(TaskRoles, RanksBeginWithTheChief) {
  EXPECT_EQ(id_in_cluster(kAll, "chief", 0), 0);
  EXPECT_EQ(id_in_cluster(kAll, "worker", 0), 1);
  EXPECT_EQ(id_in_cluster(kAll, "worker", 1), 2);
  EXPECT_EQ(id_in_cluster(kAll, "evaluator", 0), 0);
  EXPECT_EQ(id_in_cluster(kWorkers, "worker", 2), 2);
  EXPECT_EQ(id_in_cluster(kAlone), 0);
  EXPECT_TUTTI_ERROR(id_in_cluster(kAll, "ps", 0), ErrorCode::kInvalidArgument, "a ps has no rank");
  EXPECT_TUTTI_ERROR(id_in_cluster(kAll), ErrorCode::kInvalidArgument, "not given");
}

TEST(TaskRoles, RanksASparseJobWithoutHoles) {
  const ClusterSpec sparse = ClusterSpec::sparse({{"worker", {{2, "a:1"}, {5, "b:1"}}}});
  EXPECT_EQ(id_in_cluster(sparse, "worker", 2), 0);
  EXPECT_EQ(id_in_cluster(sparse, "worker", 5), 1);
  EXPECT_TRUE(is_chief(sparse, "worker", 2));
  EXPECT_EQ(collective_leader(sparse, "worker", 5), "/job:worker/replica:0/task:2");
  EXPECT_EQ(task_of_rank(sparse, 1), (TaskName{"worker", 5}));
}

TEST(TaskRoles, FindsTheTaskOfARank) {
  EXPECT_EQ(task_of_rank(kAll, 0), (TaskName{"chief", 0}));
  EXPECT_EQ(task_of_rank(kAll, 2), (TaskName{"worker", 1}));
  EXPECT_TUTTI_ERROR(task_of_rank(kAll, 3), ErrorCode::kNotFound, "rank 3");
  EXPECT_TUTTI_ERROR(task_of_rank(kAll, -1), ErrorCode::kNotFound, "rank -1");
  EXPECT_TUTTI_ERROR(task_of_rank(kAlone, 0), ErrorCode::kNotFound, "rank 0");
}

TEST(TaskRoles, FindsTheLeaders) {
  EXPECT_EQ(collective_leader(kAll, "worker", 1), "/job:chief/replica:0/task:0");
  EXPECT_EQ(collective_leader(kWorkers, "worker", 1), "/job:worker/replica:0/task:0");
  EXPECT_EQ(collective_leader(kAll, "evaluator", 0), "");
  EXPECT_EQ(collective_leader(kAlone), "");
  EXPECT_EQ(coordination_leader(kAll), "/job:ps/replica:0/task:0");
  EXPECT_EQ(coordination_leader(kWorkers), "/job:worker/replica:0/task:0");
  EXPECT_EQ(coordination_leader((ClusterSpec{{"chief", {"a:1"}}, {"worker", {"b:1"}}})),
            "/job:chief/replica:0/task:0");
  EXPECT_EQ(coordination_leader(kAlone), "");
}

TEST(TaskRoles, ValidationNamesTheMistake) {
  const ClusterSpec two_chiefs{{"chief", {"a:1", "b:1"}}};
  const ClusterSpec two_evaluators{{"evaluator", {"a:1", "b:1"}}, {"worker", {"c:1"}}};
  const ClusterSpec master{{"master", {"a:1"}}};
  const struct {
    ClusterSpec spec;
    std::optional<std::string> type;
    std::optional<int> id;
    const char* reason;
  } cases[] = {
      {master, {}, {}, "job \"master\" is unknown; the jobs are chief, worker, ps and evaluator"},
      {two_chiefs, "chief", 0, "job chief has 2 tasks"},
      {two_evaluators, "worker", 0, "job evaluator has 2 tasks"},
      {kWorkers, "boss", 0, "unrecognized task type \"boss\""},
      {kWorkers, "worker", {}, "task type worker is given without an index"},
      {kWorkers, {}, 0, "task index 0 is given without a task type"},
      {kWorkers, "worker", -1, "task index -1 is negative"},
      {kWorkers, "worker", 3, "this process is worker 3, but the cluster has only 3 tasks"},
      {kWorkers, "ps", 0, "this process is ps 0, but the cluster has no tasks of that type"},
      {kAll, "evaluator", 1, "evaluator 1, but the cluster has only 1 task of that type"},
      {kAlone, "worker", 0, "this process is worker 0, but the cluster has no tasks"},
      {ClusterSpec{{"worker", {"a:1", "b:1", "a:1"}}}, "worker", 0,
       "worker 0 and worker 2 have the same address a:1"},
      {ClusterSpec{{"worker", {"a:1", "b"}}}, "worker", 0,
       "worker 1: address \"b\": it has no port"},
  };
  for (const auto& each : cases) {
    EXPECT_TUTTI_ERROR(validate_cluster_task(each.spec, each.type, each.id),
                       ErrorCode::kInvalidArgument, each.reason);
  }
}

TEST(TaskRoles, AddressesMayBeUnknown) {
  EXPECT_NO_THROW(validate_cluster_task(ClusterSpec{{"worker", {"a:1", "", ""}}}, "worker", 2));
}

}  // namespace task_roles_test
