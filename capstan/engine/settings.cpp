#include "capstan/engine/settings.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/optim/update.h"
#include "capstan/precision/policy.h"
#include "capstan/shard/homes.h"
#include "capstan/shard/memory.h"
#include "capstan/shard/torch_dtype.h"

namespace capstan::engine {
namespace {

void check_param(const std::string& name, const at::Tensor& param) {
  const bool reachable = param.is_cpu() || param.is_cuda();
  if (param.is_floating_point() && param.scalar_type() != at::kDouble && reachable &&
      param.layout() == at::kStrided) {
    return;
  }
  throw ConfigError({.what = fmt::format("a parameter has type {} on {}",
                                         c10::toString(param.scalar_type()), param.device().str()),
                     .where = name,
                     .fix = "parameters must be fp32, fp16 or bf16, on a CPU or a CUDA device: "
                            "convert the model with model->to(...), or make the tensor a buffer"});
}

void check_same_device(const shard::ModelView& view, std::size_t index) {
  const c10::Device here = view.params[index].device();
  if (here == view.home() || view.is_loose(index)) return;
  throw ConfigError({.what = fmt::format("a parameter is on {}, but the engine is on {}",
                                         here.str(), view.home().str()),
                     .where = view.names[index],
                     .fix = "move the whole model to one device before you make the engine"});
}

// From a disk, state passes through host memory in pieces, each seen once.
void check_streams(const Options& options, bool has_optimizer_factory) {
  const bool lamb = options.optimizer.has_value() && options.optimizer->kind == optim::Kind::lamb;
  if (!lamb && !has_optimizer_factory) return;
  throw ConfigError(
      {.what = lamb ? "lamb needs norms of whole tensors, but state on nvme is read in pieces"
                    : "only Capstan's own optimizers can keep their state on nvme",
       .where = options.names("store.optimizer.placement"),
       .fix = "use \"cpu\" there, or one of Capstan's element-wise optimizers: AdamW, Adam, Lion, "
              "Adagrad, SGD"});
}

std::optional<DType> own_dtype(const at::Tensor& param) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    if (param.scalar_type() == shard::torch_dtype(dtype)) return dtype;
  }
  return std::nullopt;
}

// Parameters become what the configuration says, unless the model is a mixture on purpose.
struct Mixture {
  bool adapters = false;  // all that is trained is fp32, as configured: what is frozen stays
  bool early = false;     // some were sharded in 16 bits, as configured: those in fp32 stay

  bool keeps(const shard::ModelView& view, std::size_t param) const {
    const at::Tensor& tensor = view.params[param];
    return (adapters && !tensor.requires_grad()) ||
           (early && view.is_loose(param) && own_dtype(tensor) == DType::fp32);
  }
};

Mixture mixture_of(const shard::ModelView& view, DType configured) {
  Mixture mixture;
  bool trains = false;
  bool trains_otherwise = false;
  for (std::size_t i = 0; i < view.params.size(); ++i) {
    const bool as_configured = own_dtype(view.params[i]) == configured;
    if (as_configured && view.is_loose(i)) mixture.early = configured != DType::fp32;
    if (!view.params[i].requires_grad()) continue;
    trains = true;
    trains_otherwise = trains_otherwise || !as_configured;
  }
  mixture.adapters = configured == DType::fp32 && trains && !trains_otherwise;
  return mixture;
}

// A checkpoint would hold elements of another place.
void check_slice(const shard::ParamSpec& param) {
  if (!param.slice) return;
  const layout::Box& box = param.slice->box;
  if (box.length == param.sizes && layout::fits(box, param.slice->shape)) return;
  throw InternalError(
      {.what = fmt::format("'{}' has shape [{}], but is given as {} of a tensor of shape [{}]",
                           param.name, fmt::join(param.sizes, ", "), to_text(box),
                           fmt::join(param.slice->shape, ", "))});
}

}  // namespace

void check(const Options& options, bool has_optimizer_factory) {
  std::vector<std::string> problems;
  if (!options.optimizer.has_value() && !has_optimizer_factory) {
    problems.emplace_back("no optimizer: set Options::optimizer or Parts::optimizer");
  }
  if (options.batch.accumulation_steps < 1) {
    problems.push_back(fmt::format("accumulation_steps is {}", options.batch.accumulation_steps));
  }
  const shard::Policy policy = shard::policy_for(options.shard);
  if (options.store.params.placement == store::Placement::nvme &&
      options.store.params.nvme_paths.empty()) {
    problems.emplace_back("parameters on nvme need nvme_paths");
  }
  if (options.store.optimizer.placement == store::Placement::nvme) {
    if (options.store.optimizer.nvme_paths.empty()) {
      problems.emplace_back("an optimizer on nvme needs nvme_paths");
    }
    check_streams(options, has_optimizer_factory);
  }
  if (options.store.optimizer.placement != store::Placement::device && !policy.shards_optimizer()) {
    problems.emplace_back("the optimizer can be offloaded at stages 1 to 3 only");
  }
  if (options.store.params.placement != store::Placement::device &&
      policy.params != shard::Gather::per_use) {
    problems.emplace_back("parameters can be offloaded at stage 3 only");
  }
  if (has_optimizer_factory && options.precision.optimizer_state != DType::fp32 &&
      options.precision.optimizer_state != options.precision.master) {
    problems.push_back(
        fmt::format("an optimizer that is not Capstan's own keeps its states in the dtype of the "
                    "master weights; optimizer_state ({}) cannot change that",
                    options.names("precision.optimizer_state")));
  }
  if (options.optimizer.has_value() && options.optimizer->kind == optim::Kind::lamb &&
      options.mesh.tensor > 1) {
    problems.emplace_back(
        "lamb needs norms of whole tensors, which tensor ranks have parts of: use another "
        "optimizer");
  }
  if (options.optimizer.has_value()) optim::check(*options.optimizer);
  precision::check(options.precision);
  if (problems.empty()) return;
  throw ConfigError({.what = fmt::format("{}", fmt::join(problems, "; ")),
                     .where = "engine::Options",
                     .fix = "correct these options; docs/config.md says what each does"});
}

shard::Plan make_plan(const shard::ModelView& view, const Options& options,
                      const layout::Mesh& mesh) {
  const precision::Options& precision = options.precision;
  const Mixture mixture = mixture_of(view, precision.params);
  std::vector<shard::ParamSpec> params;
  for (std::size_t i = 0; i < view.params.size(); ++i) {
    const at::Tensor& param = view.params[i];
    check_param(view.names[i], param);
    check_same_device(view, i);
    const DType dtype =
        mixture.keeps(view, i) ? own_dtype(param).value_or(precision.params) : precision.params;
    shard::ParamSpec spec{.name = view.names[i],
                          .sizes = view.sizes[i],
                          .dtype = dtype,
                          .trainable = param.requires_grad(),
                          .travel = view.travel.empty() ? std::nullopt : view.travel[i],
                          .slice = view.slices.empty() ? std::nullopt : view.slices[i],
                          .tie = view.tie_of.empty() ? std::nullopt : view.tie_of[i]};
    check_slice(spec);
    const bool configured = precision.reduce.has_value() || spec.travel.has_value();
    if (dtype != precision.params && !configured) spec.travel = precision.grad_accum;
    params.push_back(std::move(spec));
  }
  const std::int64_t align = view.home().is_cuda() ? kCudaAlignBytes : kCpuAlignBytes;
  shard::Plan plan =
      shard::make_plan(std::move(params), view.boundaries, plan_options(options, mesh, align));
  plan.ties = view.ties;
  return plan;
}

int moment_index(const shard::StateSettings& states, std::string_view name) {
  const auto& names = states.moment_names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<int>(found - names.begin());
  throw ConfigError({.what = fmt::format("the optimizer has no state '{}'", name),
                     .where = "Engine::state",
                     .fix = names.empty() ? "it keeps none"
                                          : fmt::format("use one of: {}", fmt::join(names, ", "))});
}

void prepare_buffers(const std::vector<at::Tensor>& buffers, const precision::Options& options,
                     comm::Group& group) {
  for (const at::Tensor& buffer : buffers) {
    if (options.buffers.has_value() && buffer.is_floating_point()) {
      buffer.set_data(buffer.to(shard::torch_dtype(*options.buffers)));
    }
    if (!buffer.is_contiguous()) buffer.set_data(buffer.contiguous());
    if (buffer.numel() == 0) continue;
    // As bytes: a buffer may have any dtype.
    at::Tensor bytes = buffer.detach().view(-1).view(at::kByte);
    group.broadcast(bytes, 0, "buffers").wait();
  }
}

void check_host_memory(const store::MemoryUse& mine, const shard::Settings& settings,
                       const HostRoom& room) {
  if (room.need_bytes <= room.available_bytes) return;
  const double share = settings.host.homes.optimizer.share *
                       static_cast<double>(room.available_bytes) /
                       static_cast<double>(room.need_bytes);
  throw ConfigError(
      {.what = fmt::format("{} on this machine need {} of host memory (this rank {}: {}), but only "
                           "{} are available",
                           counted(room.ranks, "rank"), format_bytes(room.need_bytes),
                           format_bytes(mine.total()), store::to_text(mine),
                           format_bytes(room.available_bytes)),
       .where = settings.names("store"),
       .fix = fmt::format("use more ranks on more machines, offload less (\"ratio\": {:.2f} "
                          "would fit), or free host memory",
                          std::max(0.0, share - 0.01))});
}

std::string describe_run(const Options& options, const shard::Plan& plan,
                         const shard::Settings& settings, const layout::Mesh& mesh) {
  std::int64_t elems = 0;
  for (const shard::ParamSpec& param : plan.params) elems += param.numel();
  const int shards = settings.policy.shards_optimizer()
                         ? mesh.size(plan_options(options, mesh, kCpuAlignBytes).axes.cut)
                         : 1;
  std::string text = fmt::format(
      "stage {}: {} parameters ({} trainable) in {}\n{}"
      "mesh                    data-parallel {}, parameter-parallel {}",
      options.shard.stage, elems, plan.trainable_elems(), counted(std::ssize(plan.units), "unit"),
      precision::dtype_table(options.precision), mesh.size(layout::kDataAxes), shards);
  for (const layout::Axis axis :
       {layout::Axis::pipe, layout::Axis::sequence, layout::Axis::tensor}) {
    if (mesh.size(axis) > 1) text += fmt::format(", {} {}", to_string(axis), mesh.size(axis));
  }
  if (keeps_near(options.shard, mesh.size(layout::kDataAxes))) {
    text +=
        fmt::format("\nsecond copy             cut over {} near ranks", options.shard.near_ranks);
  }
  if (mesh.size(layout::Axis::pipe) > 1 && settings.policy.shards_params() && shards > 1) {
    std::int64_t bytes = 0;
    for (const shard::UnitSpec& unit : plan.units) {
      if (!unit.resident) bytes += unit.whole_bytes();
    }
    text += fmt::format(
        "\npipeline                every micro-batch gathers {} for forward and again for "
        "backward; "
        "stage 1 would not",
        format_bytes(bytes));
  }
  const auto share = [](const shard::Home& home) { return home.used() ? home.share : 0.0; };
  if (settings.host.used()) {
    text += fmt::format(
        "\nhost memory             {} ({:.0f} % of the optimizer and {:.0f} % of the "
        "parameters)",
        store::to_text(shard::host_forecast(plan, settings)),
        100 * share(settings.host.homes.optimizer), 100 * share(settings.host.homes.params));
  }
  const store::MemoryUse disks = shard::disk_forecast(plan, settings);
  if (disks.total() > 0) text += fmt::format("\ndisks                   {}", store::to_text(disks));
  return text;
}

}  // namespace capstan::engine
