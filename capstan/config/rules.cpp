#include "capstan/config/rules.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "capstan/base/text.h"
#include "capstan/config/apply.h"
#include "capstan/config/convert.h"
#include "capstan/config/partition_rules.h"

namespace capstan::config {
namespace {

bool came_from_auto(const Table& table, std::string_view path) {
  const Entry* entry = table.find(path);
  return entry != nullptr && entry->origin.kind == OriginKind::automatic;
}

// Changes the value of an entry that is there, and says how it was found.
void set_value(Table& table, const std::string& path, json::Value value, Origin origin) {
  Entry entry = *table.find(path);
  entry.value = std::move(value);
  entry.origin = std::move(origin);
  table.put(std::move(entry));
}

// What one door does differently where nothing is said.
void derive_for_door(Table& table, std::optional<Door> door) {
  const std::string seed = "capstan.seed";
  if (door == Door::deepspeed_package && !table.given(seed)) {
    set_value(table, seed, json::Value(std::int64_t{0}),
              {OriginKind::derived, "torch's DistributedSampler has this default"});
  }
}

void derive_from_hidden(Table& table, std::int64_t hidden) {
  const auto set = [&](const char* name, double value, const char* rule) {
    const std::string path = join_path("zero_optimization", name);
    if (!came_from_auto(table, path)) return;
    set_value(table, path, json::Value(static_cast<std::int64_t>(value)),
              {OriginKind::automatic, fmt::format("{} with hidden_size {}", rule, hidden)});
  };
  const double size = static_cast<double>(hidden);
  set("reduce_bucket_size", size * size, "hidden_size^2");
  set("stage3_prefetch_bucket_size", 0.9 * size * size, "0.9 x hidden_size^2");
  set("stage3_param_persistence_threshold", 10 * size, "10 x hidden_size");
}

constexpr const char* kTuning = "autotuning";

class Rules {
 public:
  Rules(const Table& table, std::string source) : table_(table), source_(std::move(source)) {}

  RuleFindings run(std::optional<int> ranks) {
    check_precision();
    check_masters();
    check_optimizer();
    check_schedule();
    check_gradients();
    check_offload("offload_optimizer", "cpu_offload");
    check_offload("offload_param", "cpu_offload_param");
    check_groups(ranks);
    check_axes();
    check_partition();
    check_diagnostics();
    check_tuning();
    return std::move(findings_);
  }

 private:
  void check_precision() {
    if (table_.flag("fp16.enabled") && table_.flag("bf16.enabled")) {
      problem("fp16 and bf16 are both enabled", "bf16.enabled",
              "keep one of them: bf16 if the hardware supports it, otherwise fp16");
    }
    const std::string params = table_.text("data_types.param_dtype");
    if (!params.empty() && parse_dtype(params) != param_dtype(table_)) {
      problem(fmt::format("param_dtype is {}, but the sections fp16 and bf16 make it {}", params,
                          name(param_dtype(table_))),
              "data_types.param_dtype", "remove the key, or enable the section of that dtype");
    }
    if (table_.flag("fp16.enabled") && table_.number("fp16.loss_scale") == 0 &&
        std::ldexp(1.0, static_cast<int>(table_.integer("fp16.initial_scale_power"))) <
            table_.number("fp16.min_loss_scale")) {
      problem("the initial loss scale is below min_loss_scale", "fp16.initial_scale_power",
              "raise initial_scale_power, or lower min_loss_scale");
    }
  }

  void check_masters() {
    if (table_.flag("bf16.bf16_optimizer_states") &&
        !table_.flag("bf16.bf16_master_weights_and_grads")) {
      problem("bf16_optimizer_states needs bf16_master_weights_and_grads",
              "bf16.bf16_optimizer_states",
              "set both, or use capstan.optimizer_state_dtype for the moments alone");
    }
    for (const char* format : {"fp16", "bf16"}) {
      const std::string path = fmt::format("{0}.{0}_master_weights_and_grads", format);
      if (table_.flag(path) && !table_.flag(fmt::format("{}.enabled", format))) {
        problem(fmt::format("{} is not enabled", format), path,
                fmt::format("set \"enabled\": true in {}, or remove the key", format));
      }
    }
    const precision::Options options = to_precision(table_);
    if (options.master != DType::fp32 && options.master != options.params) {
      problem(
          fmt::format("master weights in {} lose the precision that updates of {} parameters need",
                      name(options.master), name(options.params)),
          "capstan.master_dtype", "use fp32, or the dtype of the parameters");
    }
  }

  void check_optimizer() {
    const std::string base = "optimizer.params.";
    if (table_.find(base + "nesterov") != nullptr && table_.flag(base + "nesterov") &&
        (table_.number(base + "momentum") == 0 || table_.number(base + "dampening") != 0)) {
      problem("nesterov needs momentum above 0 and no dampening", base + "nesterov",
              "set momentum, for example to 0.9, and remove dampening");
    }
    if (table_.find(base + "torch_adam") != nullptr && table_.flag(base + "torch_adam") &&
        !table_.flag(base + "bias_correction")) {
      problem("PyTorch's Adam always corrects its bias", base + "bias_correction",
              "remove bias_correction, or torch_adam");
    }
    if (table_.find(base + "max_coeff") != nullptr &&
        table_.number(base + "min_coeff") > table_.number(base + "max_coeff")) {
      problem("min_coeff is above max_coeff", base + "min_coeff", "swap the two");
    }
    const bool lamb = table_.find(base + "max_coeff") != nullptr;  // only LAMB has it
    if (lamb && table_.text("zero_optimization.offload_optimizer.device") == "nvme" &&
        table_.integer("zero_optimization.stage") > 0) {
      problem("LAMB needs norms of whole tensors, but state on nvme is streamed in pieces",
              "zero_optimization.offload_optimizer.device",
              "use \"cpu\" there, or AdamW, Adam, Lion, Adagrad or SGD");
    }
    if (!table_.names_below("capstan.parameter_groups").empty() &&
        table_.text("optimizer.type").empty()) {
      problem("there are parameter groups but no optimizer to use them", "capstan.parameter_groups",
              "add an optimizer section, or remove the groups");
    }
  }

  void check_schedule() {
    const std::string base = "scheduler.params.";
    const auto steps = [&](const char* name) {
      const std::string path = base + name;
      return table_.find(path) == nullptr ? std::nullopt : table_.maybe_integer(path);
    };
    const auto total = steps("total_num_steps");
    const auto warmup = steps("warmup_num_steps");
    if (total && warmup && *total < *warmup) {
      warning(fmt::format("warm-up takes {} but the run has only {}, so the learning rate never "
                          "reaches its peak",
                          counted(*warmup, "step"), *total),
              base + "warmup_num_steps", "lower warmup_num_steps");
    }
    if (table_.find(base + "cycle_min_lr") == nullptr) return;
    const std::vector<double> low = table_.numbers(base + "cycle_min_lr");
    const std::vector<double> high = table_.numbers(base + "cycle_max_lr");
    const std::size_t groups = low.empty() || high.empty() ? 0 : std::max(low.size(), high.size());
    for (std::size_t g = 0; g < groups; ++g) {
      if (low[std::min(g, low.size() - 1)] > high[std::min(g, high.size() - 1)]) {
        problem("cycle_min_lr is above cycle_max_lr", base + "cycle_min_lr", "swap the two");
        return;
      }
    }
  }

  void check_gradients() {
    if (table_.flag("prescale_gradients") && table_.number("gradient_predivide_factor") != 1) {
      problem("prescale_gradients and gradient_predivide_factor both divide before the sum",
              "gradient_predivide_factor", "keep one of the two");
    }
    if (table_.text("gradient_allreduce_op") != "sum") return;
    const auto refuse_sum = [&](const char* beside) {
      problem(fmt::format("gradient_allreduce_op \"sum\" is not supported with {}", beside),
              "gradient_allreduce_op", "use \"mean\"");
    };
    if (table_.integer("zero_optimization.stage") == 3) refuse_sum("ZeRO stage 3");
    if (table_.has_section("zero_optimization.zenflow")) refuse_sum("ZenFlow");
    if (table_.flag("compile.deepcompile")) refuse_sum("DeepCompile");
    if (table_.flag("prescale_gradients") || table_.number("gradient_predivide_factor") != 1) {
      warning(
          "\"sum\" never divides: prescale_gradients and gradient_predivide_factor have no effect",
          "gradient_allreduce_op", "use \"mean\" to divide, or remove the two");
    }
  }

  void check_offload(const std::string& section, const std::string& old_flag) {
    const std::string base = "zero_optimization.";
    if (table_.given(base + old_flag) && table_.given(base + section + ".device")) {
      problem(fmt::format("{} and {} are both given", old_flag, section), base + old_flag,
              fmt::format("remove the deprecated {}", old_flag));
    }
    if (table_.text(base + section + ".device") == "nvme" &&
        table_.text(base + section + ".nvme_path").empty()) {
      problem("nvme needs a folder", base + section + ".device",
              "add \"nvme_path\": a folder on a fast disk");
    }
    const std::int64_t from_stage = section == "offload_param" ? 3 : 1;
    const bool asked =
        table_.text(base + section + ".device") != "none" || table_.flag(base + old_flag);
    if (asked && table_.integer(base + "stage") < from_stage) {
      warning(fmt::format("{} has no effect below stage {}: there are no shards to offload",
                          section, from_stage),
              base + section + ".device",
              fmt::format("set \"stage\": {} or higher, or remove {}", from_stage, section));
    }
  }

  void check_groups(std::optional<int> ranks) {
    const std::string inside = "zero_optimization.mics_shard_size";
    const std::string near = "zero_optimization.zero_hpz_partition_size";
    const bool groups = table_.integer(inside) > 0;
    const bool copies = table_.integer(near) > 1;
    if (groups && copies) {
      problem("mics_shard_size and zero_hpz_partition_size both say where shards end", near,
              "keep one of the two");
    }
    if (copies && table_.integer("zero_optimization.stage") < 3) {
      warning("zero_hpz_partition_size has no effect below stage 3: parameters are whole there",
              near, "set \"stage\": 3, or remove the key");
    }
    for (const std::string& path : {inside, near}) {
      const std::int64_t size = table_.integer(path);
      if (!ranks || size < 2 || size >= *ranks || *ranks % size == 0) continue;
      problem(fmt::format("{} do not form groups of {}", counted(*ranks, "rank"), size), path,
              "use a size that divides the number of ranks");
    }
    if (groups && ranks && table_.integer(inside) > *ranks) {
      problem(fmt::format("a shard group of {} is larger than the {} there are",
                          table_.integer(inside), counted(*ranks, "rank")),
              inside, "use at most the number of ranks");
    }
  }

  void check_diagnostics() {
    const auto vocabulary = table_.maybe_integer("vocabulary_size");
    if (vocabulary && *vocabulary % 8 != 0) {
      warning(
          fmt::format("{} is not a multiple of 8, which makes matrix products slow", *vocabulary),
          "vocabulary_size", "pad the vocabulary");
    }
    if (table_.given("comms_logger.prof_ops") && table_.flag("comms_logger.prof_all") &&
        !table_.texts("comms_logger.prof_ops").empty()) {
      warning("prof_all logs every operation, whatever prof_ops says", "comms_logger.prof_ops",
              "set \"prof_all\": false");
    }
    const std::vector<double> traced = table_.numbers("capstan.trace.steps");
    const bool range = traced.size() == 2 && traced[0] >= 1 && traced[0] <= traced[1] &&
                       std::floor(traced[0]) == traced[0] && std::floor(traced[1]) == traced[1];
    if (!range) {
      problem("this is not a first and a last step", "capstan.trace.steps",
              "give two whole numbers, the first at least 1 and not above the last: [3, 5]");
    }
  }

  void check_axes() {
    if (table_.integer("sequence_parallel_size") > 1 &&
        table_.integer("tensor_parallel.autotp_size") > 1) {
      problem("ranks that split layers cannot share sequences too", "sequence_parallel_size",
              "share sequences or split layers, not both");
    }
  }

  void check_tuning() {
    const auto number = [&](const char* name) { return table_.integer(join_path(kTuning, name)); };
    if (number("end_profile_step") < number("start_profile_step")) {
      problem(fmt::format("the last measured step, {}, is before the first, {}",
                          number("end_profile_step"), number("start_profile_step")),
              "autotuning.end_profile_step", "give a later step; five are a good start");
    }
    if (number("max_train_micro_batch_size_per_gpu") <
        number("min_train_micro_batch_size_per_gpu")) {
      problem("the largest micro-batch is smaller than the smallest",
              "autotuning.max_train_micro_batch_size_per_gpu", "swap the two");
    }
    const auto most = table_.maybe_integer("autotuning.max_train_batch_size");
    if (most && *most < number("min_train_batch_size")) {
      problem("the largest batch is smaller than the smallest", "autotuning.max_train_batch_size",
              "swap the two");
    }
    check_mappings();
  }

  void check_mappings() {
    const json::Value& mappings = table_.find("autotuning.arg_mappings")->value;
    if (mappings.is_null()) return;
    const json::Object* flags = mappings.object();
    const auto is_flag = [](const json::Member& member) { return member.value.text() != nullptr; };
    if (flags != nullptr && std::all_of(flags->begin(), flags->end(), is_flag)) return;
    problem("arg_mappings is not an object of flags", "autotuning.arg_mappings",
            R"(write {"train_micro_batch_size_per_gpu": "--per_device_train_batch_size"})");
  }

  void check_partition() {
    std::vector<ErrorInfo> problems;
    read_partition_rules(table_.find("tensor_parallel.partition_config")->value, problems);
    for (ErrorInfo& each : problems) {
      const std::string& place = table_.find("tensor_parallel.partition_config")->origin.detail;
      each.where = fmt::format("{} ({})", place.empty() ? source_ : place, each.where);
      findings_.problems.push_back(std::move(each));
    }
  }

  ErrorInfo info(std::string what, const std::string& path, std::string fix) const {
    const Entry* entry = table_.find(path);
    const bool in_file = entry != nullptr && entry->origin.kind == OriginKind::file;
    return {.what = std::move(what),
            .where = fmt::format("{} ({})", in_file ? entry->origin.detail : source_, path),
            .fix = std::move(fix)};
  }
  void problem(std::string what, const std::string& path, std::string fix) {
    findings_.problems.push_back(info(std::move(what), path, std::move(fix)));
  }
  void warning(std::string what, const std::string& path, std::string fix) {
    findings_.warnings.push_back(info(std::move(what), path, std::move(fix)));
  }

  const Table& table_;
  std::string source_;
  RuleFindings findings_;
};

}  // namespace

void derive_values(Table& table, const Context& context) {
  if (context.hidden_size) derive_from_hidden(table, *context.hidden_size);
  derive_for_door(table, context.door);
  const std::string max_lr = "scheduler.params.warmup_max_lr";
  const Entry* lr = table.find("optimizer.params.lr");
  const Entry* peak = table.find(max_lr);
  if (came_from_auto(table, max_lr) && peak->value == peak->key->standard && lr != nullptr) {
    set_value(table, max_lr, json::Value(json::Array{lr->value}),
              {OriginKind::automatic, "the optimizer's learning rate"});
  }
  const std::string decay = "optimizer.params.weight_decay";
  const std::string type = table.text("optimizer.type");
  const bool adam = type == "Adam" || type == "AdamW";
  if (adam && table.flag("optimizer.params.torch_adam") && !table.given(decay) &&
      (type == "AdamW" || table.flag("optimizer.params.adam_w_mode"))) {
    set_value(table, decay, json::Value(0.01),
              {OriginKind::derived, "torch_adam has this default with decoupled decay"});
  }
}

RuleFindings check_rules(const Table& table, const std::string& source, std::optional<int> ranks) {
  return Rules(table, source).run(ranks);
}

}  // namespace capstan::config
