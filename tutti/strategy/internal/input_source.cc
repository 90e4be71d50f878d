// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/data/transforms.h"
#include "tutti/strategy/internal/context_checks.h"
#include "tutti/strategy/internal/input_reader.h"

namespace tutti {

int64_t InputContext::get_per_replica_batch_size(int64_t global_batch_size) const {
  if (num_replicas_in_sync < 1 || global_batch_size % num_replicas_in_sync != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("InputContext::get_per_replica_batch_size: the global batch size ",
                        global_batch_size, " is not divisible by the number of replicas, ",
                        num_replicas_in_sync, ". Choose a multiple of it."));
  }
  return global_batch_size / num_replicas_in_sync;
}

std::ostream& operator<<(std::ostream& out, const InputContext& context) {
  return out << "InputContext(input pipeline id " << context.input_pipeline_id
             << ", total: " << context.num_input_pipelines << ")";
}

namespace internal {
namespace {

void check_options(const char* function, const InputOptions& options) {
  const auto refuse = [&](const auto&... what) {
    throw Error(ErrorCode::kInvalidArgument, message("Strategy::", function, ": ", what...));
  };
  if (options.per_replica_buffer_size < 0) {
    refuse("per_replica_buffer_size is ", options.per_replica_buffer_size,
           "; it must be 0 (nothing is read ahead) or more.");
  }
  if (!options.place_dataset_on_device) return;
  if (options.replication_mode == InputReplicationMode::kPerWorker) {
    refuse(
        "place_dataset_on_device needs a pipeline for each replica. Set replication_mode to "
        "kPerReplica, or leave place_dataset_on_device off.");
  }
  if (options.fetch_to_device) {
    refuse(
        "place_dataset_on_device and fetch_to_device exclude each other: what is made on the "
        "device does not have to be moved there. Set one of them to false.");
  }
}

}  // namespace

data::Element host_copy(data::Element element) {
  for (data::Value& value : element.values) {
    auto* const tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr && tensor->defined()) *tensor = tensor->detach().cpu().clone();
  }
  return element;
}

std::vector<data::ElementSpec> InputSource::element_specs() const {
  std::vector<data::ElementSpec> specs;
  for (int i = 0; i < strategy->num_local_replicas(); ++i) {
    const size_t pipeline = pipelines.size() == 1 ? 0 : static_cast<size_t>(i);
    data::ElementSpec spec = pipelines[pipeline]->spec();
    // A replica may get a piece of a batch, or nothing in the last step.
    const bool certain = sharded && sharded->rows;
    if (strategy->num_replicas_in_sync() > 1) {
      spec = data::spec_with_rows(std::move(spec),
                                  certain ? (*sharded->rows)[static_cast<size_t>(i)] : -1);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

int64_t InputSource::cardinality() const {
  const int replicas = strategy->num_local_replicas();
  if (sharded) return sharded->cardinality(replicas);
  int64_t steps = 0;
  for (const data::NodePtr& pipeline : pipelines) {
    const int64_t elements = pipeline->cardinality();
    if (elements < 0) return elements;
    const int64_t mine = pipelines.size() == 1 ? (elements + replicas - 1) / replicas : elements;
    steps = std::max(steps, mine);
  }
  return steps;
}

std::shared_ptr<const InputSource> distribute_pipeline(
    const std::shared_ptr<StrategyExtended>& strategy, const data::NodePtr& pipeline,
    const InputOptions& options) {
  check_cross_replica(*strategy, "distribute_dataset", "merge_call()");
  check_options("distribute_dataset", options);
  if (options.replication_mode == InputReplicationMode::kPerReplica) {
    throw Error(ErrorCode::kUnimplemented,
                "Strategy::distribute_dataset: InputReplicationMode::kPerReplica is for "
                "distribute_datasets_from_function only, which can make a pipeline per replica.");
  }
  WorkerGroup& workers = strategy->workers();
  data::ShardedPipeline sharded = data::shard_pipeline(
      pipeline,
      {workers.size(), workers.rank(), strategy->num_local_replicas(), options.even_split});
  log(sharded.is_warning ? LogLevel::kWarning : LogLevel::kInfo,
      message(strategy->name(), ": input of worker ", workers.rank(), " of ", workers.size(), ": ",
              sharded.explanation, "."));
  auto source = std::make_shared<InputSource>();
  source->strategy = strategy;
  source->options = options;
  source->pipelines = {sharded.node};
  source->seed = workers.agree(data::propose_seed, "seed of a dataset");
  source->sharded = std::move(sharded);
  return source;
}

std::shared_ptr<const InputSource> distribute_pipelines(
    const std::shared_ptr<StrategyExtended>& strategy,
    const std::function<data::NodePtr(const InputContext&)>& make, const InputOptions& options) {
  check_cross_replica(*strategy, "distribute_datasets_from_function", "merge_call()");
  check_options("distribute_datasets_from_function", options);
  auto source = std::make_shared<InputSource>();
  source->strategy = strategy;
  source->options = options;
  const int replicas = strategy->num_replicas_in_sync();
  if (options.replication_mode == InputReplicationMode::kPerWorker) {
    source->pipelines.push_back(
        make({strategy->workers().size(), strategy->workers().rank(), replicas}));
  } else {
    for (int i = 0; i < strategy->num_local_replicas(); ++i) {
      const int id = strategy->replica_context(i).replica_id_in_sync_group();
      source->pipelines.push_back(make({replicas, id, replicas}));
    }
  }
  return source;
}

}  // namespace internal
}  // namespace tutti
