// SPDX-License-Identifier: Apache-2.0
//
// The variables of slurm_cluster.py's real Slurm, and others that it does not produce.

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/cluster/resolvers/slurm.h"

#include "tests/support/expect_error.h"
#include "tests/support/scoped_environment.h"

namespace slurm_resolver_test {

using namespace tutti;
using test::ScopedEnvironment;
using Variables = std::map<std::string, std::string>;
using Addresses = std::vector<std::string>;

Variables step(int rank, int size, const std::string& nodes, const std::string& tasks) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
          {"SLURM_STEP_NODELIST", nodes},
          {"SLURM_STEP_TASKS_PER_NODE", tasks},
          {"SLURM_JOB_ID", "7"},
          {"SLURM_STEP_ID", "0"}};
}

TEST(SlurmClusterResolver, KeepsTheOrderOfTheNodes) {
  const ScopedEnvironment environment(step(3, 5, "node[8-10]", "3,1(x2)"));
  const SlurmClusterResolver resolver;
  EXPECT_EQ(
      resolver.cluster_spec(),
      (ClusterSpec{
          {"worker", {"node8:8888", "node8:8889", "node8:8890", "node9:8888", "node10:8888"}}}));
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 3);
  EXPECT_EQ(resolver.get_task_info(), (TaskName{"worker", 3}));
  EXPECT_EQ(resolver.rank(), 3);
  EXPECT_EQ(resolver.num_tasks(), 5);
  EXPECT_EQ(resolver.master(), "grpc://node9:8888");
  EXPECT_EQ(resolver.master("worker", 0, ""), "node8:8888");
  EXPECT_EQ(resolver.rendezvous_address(), "node8:8888");
  EXPECT_EQ(resolver.job_id(), "Slurm 7.0 restart 0");
  EXPECT_EQ(resolver.source(), "Slurm");
  EXPECT_FALSE(resolver.is_explicit());
}

TEST(SlurmClusterResolver, KnowsTheDistributionsOfSrun) {
  ScopedEnvironment environment(step(0, 7, "node[8-10]", "4,2,1"));
  const SlurmClusterResolver resolver;
  environment.set("SLURM_DISTRIBUTION", "cyclic");
  EXPECT_EQ(resolver.cluster_spec(),
            (ClusterSpec{{"worker",
                          {"node8:8888", "node9:8888", "node10:8888", "node8:8889", "node9:8889",
                           "node8:8890", "node8:8891"}}}));
  environment.set("SLURM_DISTRIBUTION", "plane");
  environment.set("SLURM_DIST_PLANESIZE", "2");
  EXPECT_EQ(resolver.cluster_spec(),
            (ClusterSpec{{"worker",
                          {"node8:8888", "node8:8889", "node9:8888", "node9:8889", "node10:8888",
                           "node8:8890", "node8:8891"}}}));
  environment.set("SLURM_DISTRIBUTION", "block:cyclic,NoPack");
  EXPECT_EQ(resolver.cluster_spec().task_address("worker", 4), "node9:8888");
  environment.set("SLURM_DISTRIBUTION", "arbitrary");
  EXPECT_TUTTI_ERROR(resolver.cluster_spec(), ErrorCode::kFailedPrecondition,
                     "SLURM_DISTRIBUTION=\"arbitrary\"", "srun -m block");
}

TEST(SlurmClusterResolver, NoticesADistributionThatIsNotInTheEnvironment) {
  ScopedEnvironment environment(step(1, 4, "a,b", "2(x2)"));
  environment.set("SLURM_NODEID", "0");
  environment.set("SLURM_LOCALID", "1");
  EXPECT_EQ(SlurmClusterResolver().cluster_spec().num_tasks("worker"), 4);
  environment.set("SLURM_NODEID", "1");
  environment.set("SLURM_LOCALID", "0");
  EXPECT_TUTTI_ERROR(SlurmClusterResolver().cluster_spec(), ErrorCode::kFailedPrecondition,
                     "SLURM_NODEID=\"1\"", "rank 1 would be task 1 of node 0");
}

TEST(SlurmClusterResolver, GivesConsecutiveRanksToJobs) {
  const ScopedEnvironment environment(step(4, 5, "n[1-2]", "3,2"));
  const SlurmClusterResolver resolver(
      {.jobs = {{"worker", 3}, {"ps", 1}, {"chief", 1}}, .port_base = 4000, .rpc_layer = ""});
  EXPECT_EQ(resolver.cluster_spec(), (ClusterSpec{{"chief", {"n1:4000"}},
                                                  {"ps", {"n1:4001"}},
                                                  {"worker", {"n1:4002", "n2:4000", "n2:4001"}}}));
  EXPECT_EQ(resolver.get_task_info(), (TaskName{"worker", 2}));
  EXPECT_EQ(resolver.master(), "n2:4001");
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.jobs = {{"worker", 4}}}).cluster_spec(),
                     ErrorCode::kFailedPrecondition, "the option jobs has 4 tasks",
                     "the job step has 5");
}

TEST(SlurmClusterResolver, TakesTasksPerNodeFromItsOptions) {
  const ScopedEnvironment environment(step(0, 4, "n[1-2]", "4,0"));
  EXPECT_EQ(SlurmClusterResolver({.tasks_per_node = 2}).cluster_spec().task_address("worker", 2),
            "n2:8888");
  using Counts = std::map<std::string, int>;
  EXPECT_EQ(SlurmClusterResolver({.tasks_per_node = Counts{{"n1", 1}, {"n2", 3}}})
                .cluster_spec()
                .task_address("worker", 1),
            "n2:8888");
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.tasks_per_node = Counts{{"n1", 4}}}).cluster_spec(),
                     ErrorCode::kInvalidArgument, "no number for host \"n2\"");
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.tasks_per_node = 3}).cluster_spec(),
                     ErrorCode::kFailedPrecondition, "SLURM_STEP_NUM_TASKS=\"4\"",
                     "the option tasks_per_node would have 6 tasks");
}

TEST(SlurmClusterResolver, WorksOnNodesWithoutGpus) {
  ScopedEnvironment environment(step(1, 2, "n1", "2"));
  const SlurmClusterResolver resolver;
  EXPECT_TRUE(resolver.num_accelerators().empty());
  EXPECT_TRUE(resolver.gpus().empty());
  environment.set("CUDA_VISIBLE_DEVICES", "NoDevFiles");
  EXPECT_TRUE(resolver.num_accelerators().empty());
  environment.set("CUDA_VISIBLE_DEVICES", "-1");
  EXPECT_TRUE(resolver.gpus().empty());
  environment.set("SLURM_GPUS_ON_NODE", "8");
  environment.set("CUDA_VISIBLE_DEVICES", "");
  EXPECT_TRUE(resolver.num_accelerators().empty()) << "set to nothing: CUDA sees no device";
}

TEST(SlurmClusterResolver, DividesTheGpusOfANode) {
  ScopedEnvironment environment(step(1, 3, "n[1-2]", "2,1"));
  const SlurmClusterResolver resolver;
  environment.set("SLURM_GPUS_ON_NODE", "8");
  EXPECT_EQ(resolver.num_accelerators().at("GPU"), 4);
  environment.set("CUDA_VISIBLE_DEVICES", "0,1,2,3,4");
  EXPECT_EQ(resolver.num_accelerators().at("GPU"), 2) << "one of them is left over";
  EXPECT_EQ(resolver.gpus(), (std::vector<int>{2, 3}));
  environment.set("CUDA_VISIBLE_DEVICES", "GPU-aa,GPU-bb,-1,GPU-cc");
  EXPECT_EQ(resolver.gpus(), (std::vector<int>{1}));
  EXPECT_EQ(SlurmClusterResolver({.gpus_per_node = 6}).gpus(), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(SlurmClusterResolver({.gpus_per_node = 6, .gpus_per_task = 2}).gpus(),
            (std::vector<int>{2, 3}));
  EXPECT_TRUE(SlurmClusterResolver({.gpus_per_node = 0}).gpus().empty());
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.gpus_per_node = 4, .gpus_per_task = 3}).gpus(),
                     ErrorCode::kFailedPrecondition, "2 tasks with 3 GPUs each", "the 4 GPUs");
}

TEST(SlurmClusterResolver, DoesNotDivideWhatSlurmHasDivided) {
  ScopedEnvironment environment(step(1, 2, "n1", "2"));
  environment.set("SLURM_GPUS_PER_TASK", "2");
  environment.set("CUDA_VISIBLE_DEVICES", "2,3");
  EXPECT_EQ(SlurmClusterResolver().num_accelerators().at("GPU"), 2);
  EXPECT_EQ(SlurmClusterResolver().gpus(), (std::vector<int>{0, 1}));
}

TEST(SlurmClusterResolver, CountsBoundGpusWithoutTheVariableOfCuda) {
  ScopedEnvironment environment(step(1, 4, "n1", "4"));
  environment.set("SLURM_GPUS_ON_NODE", "8");
  environment.set("SLURM_GPUS_PER_TASK", "2");
  EXPECT_EQ(SlurmClusterResolver().num_accelerators().at("GPU"), 2);
  EXPECT_EQ(SlurmClusterResolver().gpus(), (std::vector<int>{0, 1}));
  EXPECT_EQ(SlurmClusterResolver({.gpus_per_task = 1}).gpus(), std::vector<int>{0});
  EXPECT_EQ(SlurmClusterResolver({.gpus_per_node = 4}).gpus(), std::vector<int>{1});
  for (const char* text : {"mi300:3", "mi300:1,mi250:2"}) {
    environment.set("SLURM_GPUS_PER_TASK", text);
    EXPECT_EQ(SlurmClusterResolver().num_accelerators().at("GPU"), 3) << text;
  }
  for (const char* text : {"many", "mi300:", "1,", "-1", "2x", "99999999999"}) {
    environment.set("SLURM_GPUS_PER_TASK", text);
    EXPECT_TUTTI_ERROR(SlurmClusterResolver().num_accelerators(), ErrorCode::kInvalidArgument,
                       std::string("SLURM_GPUS_PER_TASK=\"") + text + '"');
  }
}

TEST(SlurmClusterResolver, MustRunInAJobStep) {
  {
    const ScopedEnvironment environment;
    EXPECT_TUTTI_ERROR(SlurmClusterResolver().cluster_spec(), ErrorCode::kFailedPrecondition,
                       "Slurm environment: SLURM_PROCID, SLURM_STEP_NUM_TASKS",
                       "is not a task of a job step. Start the program with srun");
    EXPECT_TUTTI_ERROR(SlurmClusterResolver().task_id(), ErrorCode::kFailedPrecondition, "srun");
    EXPECT_EQ(SlurmClusterResolver().job_id(), "");
  }
  const ScopedEnvironment batch_script{{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}};
  EXPECT_TUTTI_ERROR(SlurmClusterResolver().cluster_spec(), ErrorCode::kFailedPrecondition,
                     "SLURM_PROCID=\"0\" is set, but SLURM_STEP_NUM_TASKS");
}

TEST(SlurmClusterResolver, RefusesVariablesThatContradictEachOther) {
  const struct {
    Variables variables;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {step(3, 3, "n[1-3]", "1(x3)"), ErrorCode::kInvalidArgument, "SLURM_PROCID=\"3\""},
      {step(0, 3, "n[1-3", "1(x3)"), ErrorCode::kInvalidArgument, "SLURM_STEP_NODELIST: \"n[1-3\""},
      {step(0, 3, "n[1-3]", "1(x"), ErrorCode::kInvalidArgument,
       "SLURM_STEP_TASKS_PER_NODE: \"1(x"},
      {step(0, 3, "n[1-3]", "1(x2)"), ErrorCode::kFailedPrecondition, "which are 3 and 2 nodes"},
      {step(0, 3, "n[1-3]", "2,1(x2)"), ErrorCode::kFailedPrecondition, "would have 4 tasks"},
      {step(0, 0, "n1", "0"), ErrorCode::kInvalidArgument, "SLURM_STEP_NUM_TASKS=\"0\""},
  };
  for (const auto& wrong : cases) {
    const ScopedEnvironment environment(wrong.variables);
    EXPECT_TUTTI_ERROR(SlurmClusterResolver().cluster_spec(), wrong.code, wrong.part);
  }
}

TEST(SlurmClusterResolver, RefusesOptionsThatCannotBe) {
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.port_base = 0}), ErrorCode::kInvalidArgument,
                     "SlurmClusterResolver: port_base = 0");
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.jobs = {{"ps", -1}}}), ErrorCode::kInvalidArgument,
                     "jobs[\"ps\"] = -1");
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.gpus_per_task = -1}), ErrorCode::kInvalidArgument,
                     "gpus_per_task = -1");
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.tasks_per_node = 0}), ErrorCode::kInvalidArgument,
                     "tasks_per_node = 0");
  const ScopedEnvironment environment(step(0, 3, "n1", "3"));
  EXPECT_TUTTI_ERROR(SlurmClusterResolver({.port_base = 65534}).cluster_spec(),
                     ErrorCode::kInvalidArgument, "3 tasks on one node");
}

}  // namespace slurm_resolver_test
