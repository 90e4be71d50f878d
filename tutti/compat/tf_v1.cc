// SPDX-License-Identifier: Apache-2.0

#include "tutti/compat/tf_v1.h"

#include "tutti/base/error.h"
#include "tutti/cluster/task_roles.h"
#include "tutti/data/auto_shard.h"
#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

namespace tutti::v1 {
namespace internal {

void check_divisible(int64_t rows, int num_replicas) {
  if (rows % num_replicas == 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              message("Strategy::make_dataset_iterator: a batch of ", rows,
                      rows == 1 ? " row" : " rows", " cannot be divided evenly across ",
                      num_replicas, " replicas. Use a multiple of ", num_replicas,
                      " as batch size, or make_input_fn_iterator, whose batches are not split."));
}

int check_batches(const tutti::Strategy& strategy, const data::NodePtr& pipeline) {
  const int replicas = strategy.num_replicas_in_sync();
  const std::optional<int64_t> rows = data::global_batch_size(*pipeline);
  if (!rows) return replicas;
  check_divisible(*rows, replicas);
  return 1;
}

data::NodePtr shard_elements(const data::NodePtr& pipeline, const InputContext& context) {
  return data::shard_elements(pipeline, context.num_input_pipelines, context.input_pipeline_id);
}

void check_outside_of_replicas(const char* function) {
  if (!has_strategy() || in_cross_replica_context()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              message("Strategy::", function,
                      ": called in a replica. Call it before run(), in cross-replica context."));
}

void check_replication_mode(InputReplicationMode mode) {
  if (mode == InputReplicationMode::kPerWorker) return;
  throw Error(ErrorCode::kInvalidArgument,
              "Strategy::make_input_fn_iterator: input replication mode not supported; it must be "
              "InputReplicationMode::kPerWorker. distribute_datasets_from_function accepts "
              "kPerReplica.");
}

}  // namespace internal

ConfigProto Strategy::update_config_proto(const ConfigProto& config) const {
  return updated(config);
}

ConfigProto Strategy::updated(ConfigProto config) const {
  const StrategyTraits& traits = extended()->traits();
  config.isolate_session_state =
      config.isolate_session_state || traits.compat.isolates_session_state;
  if (traits.cluster_resolver == nullptr) return config;
  const ClusterSpec spec = traits.cluster_resolver->cluster_spec();
  if (spec.empty()) return config;
  const std::optional<std::string> type = traits.cluster_resolver->task_type();
  const std::optional<int> id = traits.cluster_resolver->task_id();
  config.experimental.collective_group_leader = collective_leader(spec, type, id);
  if (type && id) config.device_filters = {message("/job:", *type, "/task:", *id)};
  return config;
}

void Strategy::configure(ConfigProto* session_config, const ClusterSpec& cluster_spec,
                         const std::optional<std::string>& task_type, std::optional<int> task_id) {
  if (!cluster_spec.empty()) {
    if (!task_type || !task_id) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("Strategy::configure: the cluster ", cluster_spec,
                          " was given without the task of this process. Give task_type and "
                          "task_id too."));
    }
    join_cluster("Strategy::configure", cluster_spec, *task_type, *task_id);
  }
  if (session_config != nullptr) *session_config = updated(*session_config);
}

void Strategy::configure(const ClusterSpec& cluster_spec, const std::string& task_type,
                         int task_id) {
  join_cluster("Strategy::configure", cluster_spec, task_type, task_id);
}

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   std::shared_ptr<CrossDeviceOps> cross_device_ops)
    : Strategy(
          tutti::MirroredStrategy(devices, {.cross_device_ops = std::move(cross_device_ops)})) {}

OneDeviceStrategy::OneDeviceStrategy(const std::string& device)
    : Strategy(tutti::OneDeviceStrategy(device)) {}

CentralStorageStrategy::CentralStorageStrategy(const std::vector<std::string>& compute_devices,
                                               const std::string& parameter_device)
    : Strategy(tutti::CentralStorageStrategy(compute_devices, parameter_device)) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(
    CommunicationImplementation communication, std::shared_ptr<ClusterResolver> cluster_resolver)
    : Strategy(tutti::MultiWorkerMirroredStrategy(
          std::move(cluster_resolver),
          {.communication_options = {.implementation = communication}})) {}

Strategy get_strategy() { return tutti::get_strategy(); }

ReduceOp get_loss_reduction() { return ReduceOp::kSum; }

std::optional<Strategy> get_cross_replica_context() {
  if (!in_cross_replica_context()) return std::nullopt;
  return get_strategy();
}

Strategy get_distribution_strategy() { return get_strategy(); }

bool has_distribution_strategy() { return has_strategy(); }

void experimental_set_strategy(std::optional<tutti::Strategy> strategy) {
  set_strategy(std::move(strategy));
}

}  // namespace tutti::v1
