// SPDX-License-Identifier: Apache-2.0
//
// The strategies of tf.compat.v1.distribute under their old names, for programs that are ported
// line by line. tutti.h does not include this header; new programs do not need it. Old names are
// deprecated, and the compiler's warning names the successor. contrib.h has the strategy of
// tf.contrib.distribute, v1/step.h the Step classes.

#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/config_proto.h"
#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/hierarchical_copy_all_reduce.h"
#include "tutti/collectives/nccl/nccl_all_reduce.h"
#include "tutti/collectives/reduction_to_one_device.h"
#include "tutti/compat/v1/input_forms.h"
#include "tutti/compat/v1/input_iterator.h"
#include "tutti/compat/v1/multi_step_context.h"
#include "tutti/compat/v1/strategy_extended.h"
#include "tutti/strategy/strategy.h"
#include "tutti/values/communication_options.h"

namespace tutti::v1 {

namespace internal {

/// Throws kInvalidArgument if the pipeline's batches are known to be indivisible; returns how many
/// replicas must divide the first batch, because its size is not known.
int check_batches(const tutti::Strategy& strategy, const data::NodePtr& pipeline);

/// The pipeline of one worker, with whole elements.
data::NodePtr shard_elements(const data::NodePtr& pipeline, const InputContext& context);

/// Throws kFailedPrecondition in a replica.
void check_outside_of_replicas(const char* function);

/// Throws kInvalidArgument unless there is one pipeline per worker.
void check_replication_mode(InputReplicationMode mode);

}  // namespace internal

/// A strategy with the old names; made from any strategy. A handle, cheap to copy. Thread-safe as
/// tutti::Strategy is.
class Strategy : public tutti::Strategy {
 public:
  Strategy(const tutti::Strategy& strategy) : tutti::Strategy(strategy) {}
  explicit Strategy(std::shared_ptr<tutti::StrategyExtended> extended)
      : tutti::Strategy(std::move(extended)) {}
  Strategy(std::nullptr_t) = delete;

  StrategyExtended extended() const { return StrategyExtended(*this); }

  // ---- running and combining

  template <class F, class... A>
  [[deprecated("use run")]] auto experimental_run_v2(const F& fn, A&&... args) const {
    return run(fn, std::forward<A>(args)...);
  }

  /// Runs fn with the next step of the iterator; its parts arrive spread out if fn accepts that.
  template <class F, class Iterator>
  [[deprecated("use run, with get_next()")]] auto experimental_run(
      const F& fn, const Iterator& input_iterator) const {
    return run(fn, input_iterator.get_next());
  }
  template <class F>
  [[deprecated("use run")]] auto experimental_run(const F& fn) const {
    return run(fn);
  }

  template <class V>
  [[deprecated("use local_results")]] auto experimental_local_results(V&& value) const {
    return local_results(std::forward<V>(value));
  }
  template <class V>
  [[deprecated("use local_results")]] auto unwrap(V&& value) const {
    return local_results(std::forward<V>(value));
  }

  /// Does nothing: what run() returns has been computed. For programs that group operations.
  template <class V>
  void group(const V&, const std::string& = {}) const {}

  template <class F>
  [[deprecated("use distribute_values_from_function")]] auto
  experimental_distribute_values_from_function(const F& value_fn) const {
    return distribute_values_from_function(value_fn);
  }

  [[deprecated("use extended().colocate_vars_with"), nodiscard]] auto colocate_vars_with(
      const Variable& variable) const {
    return extended().colocate_vars_with(variable);
  }

  // ---- input

  template <class T>
  [[deprecated("use distribute_dataset")]] DistributedDataset<T> experimental_distribute_dataset(
      const data::Dataset<T>& dataset, const InputOptions& options = {}) const {
    return distribute_dataset(dataset, options);
  }

  template <class F>
  [[deprecated("use distribute_datasets_from_function")]] auto
  experimental_distribute_datasets_from_function(const F& dataset_fn,
                                                 const InputOptions& options = {}) const {
    return distribute_datasets_from_function(dataset_fn, options);
  }

  /// A dataset of the rows of arrays. A list of arrays is stacked, also inside of tuples, pairs and
  /// maps. Throws kFailedPrecondition in a replica.
  template <class T>
  [[deprecated("use make_tensor_dataset")]] auto experimental_make_numpy_dataset(
      const T& numpy_input) const {
    internal::check_outside_of_replicas("experimental_make_numpy_dataset");
    return make_tensor_dataset(internal::stacked(numpy_input));
  }
  [[deprecated("use make_tensor_dataset")]] data::Dataset<at::Tensor>
  experimental_make_numpy_dataset(std::initializer_list<at::Tensor> arrays) const {
    internal::check_outside_of_replicas("experimental_make_numpy_dataset");
    return make_tensor_dataset(internal::stack_arrays(arrays));
  }

  /// Splits batches of the global size evenly over all replicas. Throws kInvalidArgument if the
  /// number of replicas does not divide the batch size; a last batch that is not full is split as
  /// distribute_dataset() does. (The strategy of tf.contrib takes batches of one replica's size.)
  template <class T>
  [[deprecated("use distribute_dataset")]] InputIterator<T> make_dataset_iterator(
      const data::Dataset<T>& dataset) const {
    return dataset_iterator(dataset);
  }

  /// Calls input_fn(InputContext) once for this worker. It returns a dataset of batches for single
  /// replicas, or a function that returns such a batch, or an optional of one, at each call; then
  /// input_fn is called once per pass.
  template <class F>
  [[deprecated("use distribute_datasets_from_function")]] auto make_input_fn_iterator(
      const F& input_fn,
      InputReplicationMode replication_mode = InputReplicationMode::kPerWorker) const;

  // ---- sessions and clusters

  /// A copy of the configuration with what this strategy needs.
  [[deprecated("there are no sessions to configure")]] ConfigProto update_config_proto(
      const ConfigProto& config) const;

  /// Turns this handle into the strategy of one worker if a cluster is given: call it before using
  /// the strategy (see MirroredStrategy::configure). Then updates *session_config, if given, as
  /// update_config_proto() does.
  [[deprecated("use MultiWorkerMirroredStrategy")]] void configure(
      ConfigProto* session_config = nullptr, const ClusterSpec& cluster_spec = {},
      const std::optional<std::string>& task_type = std::nullopt,
      std::optional<int> task_id = std::nullopt);
  [[deprecated("use MultiWorkerMirroredStrategy")]] void configure(const ClusterSpec& cluster_spec,
                                                                   const std::string& task_type,
                                                                   int task_id);

 protected:
  template <class T>
  InputIterator<T> dataset_iterator(const data::Dataset<T>& dataset) const {
    const CompatTraits compat = extended()->traits().compat;
    if (compat.takes_replica_batches) {
      return InputIterator<T>(distribute_datasets_from_function([&](const InputContext& context) {
        return compat.shards_replica_batches
                   ? data::Dataset<T>(internal::shard_elements(dataset.node(), context))
                   : dataset;
      }));
    }
    const int divisor = internal::check_batches(*this, dataset.node());
    return InputIterator<T>(distribute_dataset(dataset), divisor);
  }

 private:
  ConfigProto updated(ConfigProto config) const;
};

/// tutti::MirroredStrategy with the old arguments and names. Thread-safe as Strategy is.
class MirroredStrategy : public Strategy {
 public:
  explicit MirroredStrategy(const std::vector<std::string>& devices = {},
                            std::shared_ptr<CrossDeviceOps> cross_device_ops = nullptr);
};

/// tutti::OneDeviceStrategy with the old arguments and names. Thread-safe as Strategy is.
class OneDeviceStrategy : public Strategy {
 public:
  explicit OneDeviceStrategy(const std::string& device);
};

/// tutti::CentralStorageStrategy with the old arguments and names. Thread-safe as Strategy is.
class CentralStorageStrategy : public Strategy {
 public:
  explicit CentralStorageStrategy(const std::vector<std::string>& compute_devices = {},
                                  const std::string& parameter_device = {});
};

/// tutti::MultiWorkerMirroredStrategy with the old arguments and names. Thread-safe as Strategy is.
class MultiWorkerMirroredStrategy : public Strategy {
 public:
  explicit MultiWorkerMirroredStrategy(
      CommunicationImplementation communication = CommunicationImplementation::kAuto,
      std::shared_ptr<ClusterResolver> cluster_resolver = nullptr);
};

template <class F>
auto Strategy::make_input_fn_iterator(const F& input_fn,
                                      InputReplicationMode replication_mode) const {
  static_assert(std::is_invocable_v<const F&, const InputContext&>,
                "Strategy::make_input_fn_iterator: input_fn must accept a tutti::InputContext and "
                "return a tutti::data::Dataset, or a function that returns one element per call");
  if constexpr (std::is_invocable_v<const F&, const InputContext&>) {
    internal::check_replication_mode(replication_mode);
    return InputIterator(distribute_datasets_from_function(
        [&](const InputContext& context) { return internal::dataset_of(input_fn, context); }));
  }
}

// ---- functions

using tutti::get_replica_context;
using tutti::has_strategy;
using tutti::in_cross_replica_context;

using tutti::CrossDeviceOps;
using tutti::HierarchicalCopyAllReduce;
using tutti::InputContext;
using tutti::InputOptions;
using tutti::InputReplicationMode;
using tutti::NcclAllReduce;
using tutti::ReduceOp;
using tutti::ReductionToOneDevice;
using tutti::ReplicaContext;
using tutti::RunOptions;
using tutti::ValueContext;

/// The current strategy, with the old names.
Strategy get_strategy();

/// How a loss that is computed on each replica is combined: always by a sum, since gradients are.
ReduceOp get_loss_reduction();

/// The current strategy in cross-replica context, else nullopt.
[[deprecated("use get_strategy")]] std::optional<Strategy> get_cross_replica_context();

[[deprecated("use get_strategy")]] Strategy get_distribution_strategy();
[[deprecated("use has_strategy")]] bool has_distribution_strategy();
[[deprecated("use set_strategy")]] void experimental_set_strategy(
    std::optional<tutti::Strategy> strategy);

}  // namespace tutti::v1
