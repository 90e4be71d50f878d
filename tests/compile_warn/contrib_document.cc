// SPDX-License-Identifier: Apache-2.0
//
// The examples of the document on tf.contrib.distribute.MirroredStrategy, with the old names.

#include <optional>

#include "tutti/compat/contrib.h"
#include "tutti/compat/v1/step.h"

at::Tensor replica_fn(const at::Tensor& x);

void construct() {
  tutti::contrib::MirroredStrategy all;
  tutti::contrib::MirroredStrategy some({"CPU:0", "CPU:1"});
  tutti::contrib::MirroredStrategy gpus({}, /*num_gpus=*/2);
  tutti::contrib::MirroredStrategy per_worker({}, std::nullopt, /*num_gpus_per_worker=*/2);
}

void iterate(const tutti::data::Dataset<at::Tensor>& dataset) {
  tutti::contrib::MirroredStrategy strategy;
  auto iterator = strategy.make_dataset_iterator(
      dataset);  // WARN: use distribute_dataset, with batches for all replicas together
  iterator.initialize();
  auto results = strategy.experimental_run(replica_fn, iterator);  // WARN: use run, with get_next()
  auto step = [&](const tutti::v1::MultiStepContext&, const auto& batch) {
    strategy.extended().call_for_each_replica(replica_fn, batch);
  };
  strategy.extended().experimental_run_steps_on_iterator(step, iterator);  // WARN: write a loop
}

void configure(const tutti::ClusterSpec& cluster_spec) {
  tutti::contrib::MirroredStrategy strategy;
  strategy.configure(cluster_spec, "worker", 0);  // WARN: use MultiWorkerMirroredStrategy
}
