// SPDX-License-Identifier: Apache-2.0
//
// The examples of the document on tf.compat.v1.distribute.MirroredStrategy, with the old names.

#include <string>

#include "tutti/compat/tf_v1.h"
#include "tutti/data/files.h"

at::Tensor parse(const std::string& record);
void train_step(const at::Tensor& x);
at::Tensor replica_fn(const at::Tensor& x);

void distribute_files() {
  tutti::v1::MirroredStrategy strategy;
  auto dataset = tutti::data::tf_record({"/a/1.tfr", "/a/2.tfr", "/a/3.tfr", "/a/4.tfr"});
  auto batches = dataset.map(parse).batch(64);
  auto dist_dataset =
      strategy.experimental_distribute_dataset(batches);  // WARN: use distribute_dataset
  for (auto& x : dist_dataset) {
    strategy.experimental_run_v2(train_step, x);  // WARN: use run
  }
}

void distribute_a_function(int64_t global_batch_size) {
  tutti::v1::MirroredStrategy strategy;
  auto dataset_fn = [&](const tutti::InputContext& input_context) {
    auto batch_size = input_context.get_per_replica_batch_size(global_batch_size);
    auto d = tutti::data::from_tensors(at::Tensor()).repeat().batch(batch_size);
    return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id);
  };
  auto inputs = strategy.experimental_distribute_datasets_from_function(
      dataset_fn);  // WARN: use distribute_datasets_from_function
  for (auto& batch : inputs) {
    auto replica_results = strategy.experimental_run_v2(replica_fn, batch);  // WARN: use run
    auto results = strategy.experimental_local_results(replica_results);  // WARN: use local_results
  }
}

void make_a_dataset(const at::Tensor& numpy_input) {
  tutti::v1::MirroredStrategy strategy;
  auto dataset =
      strategy.experimental_make_numpy_dataset(numpy_input);  // WARN: use make_tensor_dataset
  auto dist_dataset =
      strategy.experimental_distribute_dataset(dataset);  // WARN: use distribute_dataset
}

void run_an_iterator(int64_t global_batch_size) {
  tutti::v1::MirroredStrategy strategy;
  auto input_fn = [&](const tutti::InputContext& input_context) {
    auto batch_size = input_context.get_per_replica_batch_size(global_batch_size);
    auto d = tutti::data::from_tensors(at::Tensor()).repeat().batch(batch_size);
    return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id);
  };
  auto scope = strategy.scope();
  auto iterator =
      strategy.make_input_fn_iterator(input_fn);  // WARN: use distribute_datasets_from_function
  auto replica_results =
      strategy.experimental_run(replica_fn, iterator);  // WARN: use run, with get_next()
  auto next = strategy.extended().call_for_each_replica(replica_fn, iterator.get_next());
  auto first = strategy.experimental_run([] { return 1; });  // WARN: use run
}

void iterate_and_configure(const tutti::data::Dataset<at::Tensor>& dataset) {
  tutti::v1::MirroredStrategy strategy;
  auto iterator = strategy.make_dataset_iterator(dataset);  // WARN: use distribute_dataset
  iterator.initialize();
  auto config = strategy.update_config_proto({});  // WARN: there are no sessions to configure
  strategy.configure(&config);                     // WARN: use MultiWorkerMirroredStrategy
  auto unwrapped = strategy.unwrap(iterator.get_next());  // WARN: use local_results
  strategy.group(unwrapped);
  auto current = tutti::v1::get_distribution_strategy();  // WARN: use get_strategy
  bool has_one = tutti::v1::has_distribution_strategy();  // WARN: use has_strategy
  auto cross = tutti::v1::get_cross_replica_context();    // WARN: use get_strategy
  tutti::v1::experimental_set_strategy(std::nullopt);     // WARN: use set_strategy
  static_cast<void>(has_one);
}

void use_the_extension(const tutti::Variable& v) {
  tutti::v1::MirroredStrategy strategy;
  auto colocated = strategy.colocate_vars_with(v);  // WARN: use extended().colocate_vars_with
  auto values = strategy.experimental_distribute_values_from_function(
      [](const tutti::ValueContext&) { return 1; });  // WARN: use distribute_values_from_function
  auto extended = strategy.extended();
  bool all = extended.experimental_require_static_shapes();  // WARN: use require_static_shapes
  all = all && extended.experimental_between_graph();        // WARN: use between_graph
  all = all && extended.experimental_should_init();          // WARN: use should_init
}
