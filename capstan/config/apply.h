// Turns the table of values into the options of the engine. The only place that knows both the keys
// and the fields.
#pragma once

#include "capstan/config/table.h"
#include "capstan/data/options.h"
#include "capstan/engine/options.h"
#include "capstan/tune/options.h"

namespace capstan::config {

// Dtype of the parameters that fp16 and bf16 choose.
DType param_dtype(const Table& table);
// "bfloat16", "torch.bfloat16", "bf16": one of the spellings that the schema allows.
DType parse_dtype(std::string_view spelling);

// Of the operations under torch's autocast.
DType autocast_dtype(const Table& table);

// Where the keys want the optimizer's state, at whatever stage.
store::Placement optimizer_placement(const Table& table);
// Whether a write into parameters that are gathered to be read is only warned of.
bool may_write_gathered(const Table& table);
// Whether anything is to be said of the run beside warnings: progress, times, memory, ...
bool asks_for_reports(const Table& table);

precision::Options to_precision(const Table& table);
std::optional<optim::Options> to_optimizer(const Table& table);
std::optional<schedule::Options> to_schedule(const Table& table);
// Unset where the sections are not enabled.
std::optional<schedule::Curriculum> to_curriculum(const Table& table);
std::optional<schedule::LayerDrop> to_layer_drop(const Table& table);
// The growth that the section `path` describes, enabled or not.
schedule::Curriculum growth_in(const Table& table, const std::string& path);
shard::Options to_shard(const Table& table);
store::Options to_store(const Table& table);
profile::Options to_profile(const Table& table);
monitor::Options to_monitor(const Table& table);

// All of them, with the batch sizes as they stand in the table.
engine::Options to_engine(const Table& table);
data::Options to_data(const Table& table);
tune::Options to_tune(const Table& table);

}  // namespace capstan::config
