// The options that decide the numbers: precision, optimizer, schedule.
#include <algorithm>
#include <cctype>
#include <limits>

#include "capstan/config/apply.h"

namespace capstan::config {
namespace {

DType dtype_or(const Table& table, const char* path, DType fallback) {
  const std::string spelling = table.text(path);
  return spelling.empty() ? fallback : parse_dtype(spelling);
}

int small_int(const Table& table, const char* path) {
  const std::int64_t value = table.integer(path);
  return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
}

std::optional<optim::Kind> to_kind(const std::string& type) {
  for (const optim::Kind kind : {optim::Kind::adam, optim::Kind::adamw, optim::Kind::sgd,
                                 optim::Kind::lion, optim::Kind::adagrad, optim::Kind::lamb}) {
    std::string lower = type;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (lower == optim::name(kind)) return kind;
  }
  return {};
}

optim::HyperParams to_hyper(const Table& table, optim::Kind kind) {
  const auto path = [](const char* name) { return join_path("optimizer.params", name); };
  const auto number = [&](const char* name, double& field) {
    if (table.find(path(name)) != nullptr) field = table.number(path(name));
  };
  const auto flag = [&](const char* name, bool& field) {
    if (table.find(path(name)) != nullptr) field = table.flag(path(name));
  };
  optim::HyperParams hyper = optim::default_hyper_params(kind);
  number("lr", hyper.lr);
  number("eps", hyper.eps);
  number("weight_decay", hyper.weight_decay);
  number("momentum", hyper.momentum);
  number("dampening", hyper.dampening);
  number("lr_decay", hyper.lr_decay);
  number("initial_accumulator_value", hyper.initial_accumulator);
  number("max_coeff", hyper.max_coeff);
  number("min_coeff", hyper.min_coeff);
  flag("bias_correction", hyper.bias_correction);
  flag("nesterov", hyper.nesterov);
  flag("eps_inside_sqrt", hyper.eps_inside_sqrt);
  if (table.find(path("betas")) != nullptr) {
    const std::vector<double> betas = table.numbers(path("betas"));
    hyper.beta1 = betas.at(0);
    hyper.beta2 = betas.at(1);
  }
  return hyper;
}

std::vector<optim::Group> to_groups(const Table& table, const optim::HyperParams& hyper) {
  std::vector<optim::Group> groups;
  for (const std::string& name : table.names_below("capstan.parameter_groups")) {
    const std::string base = join_path("capstan.parameter_groups", name);
    optim::Group group{.patterns = table.texts(base + ".parameters"), .hyper = hyper};
    if (!table.is_null(base + ".lr")) group.hyper.lr = table.number(base + ".lr");
    if (!table.is_null(base + ".weight_decay")) {
      group.hyper.weight_decay = table.number(base + ".weight_decay");
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

constexpr const char* kParams = "scheduler.params";

schedule::WarmupType to_warmup_type(const Table& table) {
  return table.text("scheduler.params.warmup_type") == "linear" ? schedule::WarmupType::linear
                                                                : schedule::WarmupType::log;
}

schedule::WarmupLr to_warmup(const Table& table) {
  return {.min_lr = table.numbers("scheduler.params.warmup_min_lr"),
          .max_lr = table.numbers("scheduler.params.warmup_max_lr"),
          .num_steps = table.integer("scheduler.params.warmup_num_steps"),
          .type = to_warmup_type(table),
          .last_step = table.integer("scheduler.params.last_batch_iteration")};
}

schedule::OneCycle to_one_cycle(const Table& table) {
  const auto path = [](const char* name) { return join_path(kParams, name); };
  schedule::OneCycle cycle;
  cycle.cycle_min_lr = table.numbers(path("cycle_min_lr"));
  cycle.cycle_max_lr = table.numbers(path("cycle_max_lr"));
  cycle.decay_lr_rate = table.number(path("decay_lr_rate"));
  cycle.first_steps = table.integer(path("cycle_first_step_size"));
  cycle.second_steps = table.maybe_integer(path("cycle_second_step_size"));
  cycle.first_stairs = table.integer(path("cycle_first_stair_count"));
  cycle.second_stairs = table.maybe_integer(path("cycle_second_stair_count"));
  cycle.decay_steps = table.integer(path("decay_step_size"));
  cycle.cycle_momentum = table.flag(path("cycle_momentum"));
  cycle.cycle_min_mom = table.numbers(path("cycle_min_mom"));
  cycle.cycle_max_mom = table.numbers(path("cycle_max_mom"));
  cycle.decay_mom_rate = table.number(path("decay_mom_rate"));
  cycle.last_step = table.integer(path("last_batch_iteration"));
  return cycle;
}

// Of gradients; empty: that of the parameters.
std::string wire_dtype(const Table& table) {
  std::string wire;
  if (table.integer("sequence_parallel_size") > 1) {
    wire = table.text("seq_parallel_communication_data_type");
  }
  return wire.empty() ? table.text("communication_data_type") : wire;
}

}  // namespace

DType parse_dtype(std::string_view spelling) {
  if (spelling.find("bf") != std::string_view::npos) return DType::bf16;
  const bool half = spelling.find("16") != std::string_view::npos || spelling == "half";
  return half ? DType::fp16 : DType::fp32;
}

DType param_dtype(const Table& table) {
  if (table.flag("fp16.enabled")) return DType::fp16;
  return table.flag("bf16.enabled") ? DType::bf16 : DType::fp32;
}

DType autocast_dtype(const Table& table) {
  return dtype_or(table, "torch_autocast.dtype", DType::bf16);
}

precision::Options to_precision(const Table& table) {
  precision::Options options;
  options.params = param_dtype(table);
  const bool half_masters =
      (options.params == DType::fp16 && table.flag("fp16.fp16_master_weights_and_grads")) ||
      (options.params == DType::bf16 && table.flag("bf16.bf16_master_weights_and_grads"));
  const DType masters = half_masters ? options.params : DType::fp32;
  const bool half_states =
      options.params == DType::bf16 && table.flag("bf16.bf16_optimizer_states");
  options.grad_accum = dtype_or(table, "data_types.grad_accum_dtype", masters);
  options.master = dtype_or(table, "capstan.master_dtype", masters);
  options.optimizer_state =
      dtype_or(table, "capstan.optimizer_state_dtype", half_states ? DType::bf16 : DType::fp32);
  if (const std::string wire = wire_dtype(table); !wire.empty()) {
    options.reduce = parse_dtype(wire);
  }
  if (const std::string buffers = table.text("data_types.buffer_dtype"); !buffers.empty()) {
    options.buffers = parse_dtype(buffers);
  }
  options.cast_inputs = options.params == DType::fp16 && table.flag("fp16.auto_cast");
  options.check_grad_overflow = table.flag("bf16.check_grad_overflow");
  options.max_skipped_in_a_row = table.integer("capstan.max_skipped_in_a_row");
  options.loss_scale = {.static_scale = table.number("fp16.loss_scale"),
                        .initial_scale_power = small_int(table, "fp16.initial_scale_power"),
                        .window_steps = table.integer("fp16.loss_scale_window"),
                        .hysteresis = small_int(table, "fp16.hysteresis"),
                        .consecutive_hysteresis = table.flag("fp16.consecutive_hysteresis"),
                        .min_scale = table.number("fp16.min_loss_scale")};
  return options;
}

std::optional<optim::Options> to_optimizer(const Table& table) {
  const std::optional<optim::Kind> type = to_kind(table.text("optimizer.type"));
  if (!type) return {};
  const bool is_adam = *type == optim::Kind::adam || *type == optim::Kind::adamw;
  optim::Options options;
  options.kind = *type;
  options.hyper = to_hyper(table, *type);
  if (is_adam) {
    const bool decoupled =
        *type == optim::Kind::adamw || table.flag("optimizer.params.adam_w_mode");
    options.kind = decoupled ? optim::Kind::adamw : optim::Kind::adam;
  }
  options.groups = to_groups(table, options.hyper);
  return options;
}

std::optional<schedule::Options> to_schedule(const Table& table) {
  const std::string type = table.text("scheduler.type");
  if (type == "WarmupLR") return to_warmup(table);
  // 0 steps in all: "auto", to be filled in by whoever knows the length of the run.
  const auto total = [&] {
    return table.maybe_integer("scheduler.params.total_num_steps").value_or(0);
  };
  if (type == "WarmupDecayLR") {
    return schedule::WarmupDecayLr{.total_steps = total(), .warmup = to_warmup(table)};
  }
  if (type == "WarmupCosineLR") {
    return schedule::WarmupCosineLr{
        .total_steps = total(),
        .warmup_steps = table.integer("scheduler.params.warmup_num_steps"),
        .warmup_min_ratio = table.number("scheduler.params.warmup_min_ratio"),
        .cos_min_ratio = table.number("scheduler.params.cos_min_ratio"),
        .type = to_warmup_type(table),
        .last_step = table.integer("scheduler.params.last_batch_iteration")};
  }
  if (type == "OneCycle") return to_one_cycle(table);
  if (type == "LRRangeTest") {
    return schedule::LrRangeTest{
        .min_lr = table.numbers("scheduler.params.lr_range_test_min_lr"),
        .step_size = table.integer("scheduler.params.lr_range_test_step_size"),
        .step_rate = table.number("scheduler.params.lr_range_test_step_rate"),
        .staircase = table.flag("scheduler.params.lr_range_test_staircase"),
        .last_step = table.integer("scheduler.params.last_batch_iteration")};
  }
  return {};
}

}  // namespace capstan::config
