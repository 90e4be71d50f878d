// SPDX-License-Identifier: Apache-2.0
//
// tf.contrib.distribute.MirroredStrategy, whose make_dataset_iterator() takes batches of one
// replica's size. tutti.h does not include this header.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/compat/tf_v1.h"

namespace tutti::contrib {

/// One replica per device; configure() with a cluster turns it into the strategy of one worker,
/// which runs the same program as the others in lock step. TensorFlow has one client there, which
/// builds a graph for the devices of all workers: here, start the program on every worker.
///
/// make_dataset_iterator() of this strategy, by whatever handle, gives each replica whole batches
/// of its dataset, and shards them over workers only if auto_shard_dataset is set.
/// Thread-safe as v1::Strategy is.
class MirroredStrategy : public v1::Strategy {
 public:
  /// Give either `devices`, or the number of GPUs under one of its two names, or nothing, which
  /// means all GPUs or, without a GPU, all logical CPUs. `cross_tower_ops` is the older name of
  /// `cross_device_ops`. Throws kInvalidArgument for arguments that exclude each other and
  /// kNotFound for devices that do not exist.
  explicit MirroredStrategy(const std::vector<std::string>& devices = {},
                            std::optional<int> num_gpus = std::nullopt,
                            std::optional<int> num_gpus_per_worker = std::nullopt,
                            std::shared_ptr<CrossDeviceOps> cross_device_ops = nullptr,
                            bool auto_shard_dataset = false,
                            std::shared_ptr<CrossDeviceOps> cross_tower_ops = nullptr);

  /// Gives each replica a whole batch of the dataset.
  template <class T>
  [[deprecated(
      "use distribute_dataset, with batches for all replicas together")]] v1::InputIterator<T>
  make_dataset_iterator(const data::Dataset<T>& dataset) const {
    return dataset_iterator(dataset);
  }
};

}  // namespace tutti::contrib
