#include "capstan/tune/step_time.h"

#include <algorithm>

#include "capstan/engine/sharding.h"
#include "capstan/pipeline/simulate.h"

namespace capstan::tune {
namespace {

using store::Placement;

// Attention's kernels reach this share of what large products do. (Measured on an H200.)
constexpr double kAttentionShare = 0.58;
// And element-wise operations, of which each moves little, this share of what AdamW reaches.
// (Likewise: 78 of the 340 ms of a step of GPT-2 XL.)
constexpr double kElementwiseShare = 0.65;
// Of backward's computation, traffic hides behind this share: the first gather and the last
// reduction have nothing beside them.
constexpr double kHides = 0.9;

double elems(const Workload& work) {
  return static_cast<double>(work.model->parameter_count()) /
         (work.options.mesh.tensor * work.options.mesh.pipe);
}

double micro_batches(const Workload& work) {
  return static_cast<double>(work.options.batch.accumulation_steps);
}

struct Ranks {
  int all = 1;
  int data = 1;    // that see different data
  int shards = 1;  // that share a unit's shards
};

Ranks ranks_of(const Workload& work) {
  const layout::Mesh mesh = engine::make_mesh(work.options, work.ranks);
  return {work.ranks, mesh.size(layout::kDataAxes),
          mesh.size(layout::Axes{layout::Axis::shard, layout::Axis::sequence})};
}

// Of what a rank gives to each of the others, the share that leaves it.
double others(int ranks) { return ranks > 1 ? static_cast<double>(ranks - 1) / ranks : 0; }

// A ring over neighbours is as fast as its slowest link.
double rate_between(const Machine& machine, int ranks, int apart) {
  const bool one_host = ranks * apart <= machine.devices_per_host;
  return one_host || machine.network_rate == 0 ? machine.link_rate : machine.network_rate;
}

Seconds at_rate(double amount, double rate) {
  return Seconds(amount > 0 && rate > 0 ? amount / rate : 0);
}

// One micro-batch on one rank.
struct PassTime {
  Seconds forward{0};
  Seconds backward{0};
  Seconds again{0};  // forward computed again
};

PassTime pass_time(const Workload& work, const Machine& machine) {
  const engine::Options& options = work.options;
  const models::Sizes sizes = work.model->sizes();
  const double share = 1.0 / (options.mesh.tensor * options.mesh.pipe * options.mesh.sequence);
  const auto tokens =
      static_cast<double>(options.batch.micro_samples) * static_cast<double>(work.tokens);
  const double attention = 12.0 * static_cast<double>(sizes.layers) *
                           static_cast<double>(sizes.width) * static_cast<double>(work.tokens) *
                           tokens * share;
  const double products = work.model->flops_per_token(work.tokens) * tokens * share - attention;
  const models::Moved moved = work.model->moved_bytes(options.precision.params);
  const double flops =
      options.precision.params == DType::fp32 ? machine.flops_32 : machine.flops_16;
  const auto of = [&](double part, double moved_part, double operations) {
    return at_rate(part * products, flops) + at_rate(part * attention, flops * kAttentionShare) +
           at_rate(moved_part * tokens * share, machine.memory_rate * kElementwiseShare) +
           machine.kernel_delay * operations * (1.0 / options.mesh.pipe);
  };
  PassTime time{.forward = of(1.0 / 3, moved.forward, moved.operations_forward),
                .backward = of(2.0 / 3, moved.backward, moved.operations_backward)};
  // The output layer and the loss are not computed again.
  const double blocks = moved.blocks;
  if (options.recompute.enabled) time.again = blocks * time.forward;
  return time;
}

Seconds exposed(Seconds traffic, Seconds beside, bool overlaps) {
  return overlaps ? std::max(Seconds(0), traffic - kHides * beside) : traffic;
}

struct Update {
  Seconds length{0};
  Seconds exposed{0};
};

Update update_time(const Workload& work, const Machine& machine, const PassTime& pass) {
  const engine::Options& options = work.options;
  const Ranks ranks = ranks_of(work);
  const double owned = elems(work) / (options.shard.stage >= 1 ? ranks.shards : 1);
  const store::OptimizerOptions& optimizer = options.store.optimizer;
  const double away = optimizer.placement == Placement::device ? 0 : optimizer.ratio;
  const double param_bytes = static_cast<double>(size_bytes(options.precision.params));
  // Master and two moments are read and written, the gradient is read; the parameters follow.
  const double bytes = 24 + 4 + (options.precision.params == DType::fp32 ? 0 : param_bytes);
  Update update;
  if (!machine.on_gpu && machine.host_update_rate > 0) {
    const int sharing = std::min(ranks.all, machine.devices_per_host);
    update.length = at_rate(owned * sharing, machine.host_update_rate);
    update.exposed = update.length;
    return update;
  }
  const Seconds here = at_rate((1 - away) * owned * bytes, machine.memory_rate);
  const int sharing = std::min(ranks.all, machine.devices_per_host);
  Seconds there = at_rate(away * owned * sharing, machine.host_update_rate);
  if (optimizer.placement == Placement::nvme) {
    there = std::max({there, at_rate(12 * away * owned * sharing, machine.disk_read_rate),
                      at_rate(12 * away * owned * sharing, machine.disk_write_rate)});
  }
  // New values travel while the next are computed.
  there = std::max(there, at_rate(away * owned * param_bytes, machine.host_link_rate));
  const bool early = optimizer.early_updates != store::EarlyUpdates::never;
  const bool late = optimizer.late_updates.value_or(options.shard.stage == 3);
  Seconds hidden{0};
  if (early) hidden += pass.backward + pass.again;
  if (late) hidden += pass.forward;
  update.length = here + there;
  update.exposed = here + std::max(Seconds(0), there - kHides * hidden);
  return update;
}

// What a pipeline adds: until its first stage is done, beside its own work.
Seconds bubble_time(const Workload& work, const Machine& machine, const PassTime& pass) {
  const engine::Options& options = work.options;
  const int stages = options.mesh.pipe;
  if (stages == 1) return Seconds(0);
  constexpr double kTicks = 1e-7;  // seconds of a tick of the simulation
  const auto ticks = [](Seconds time) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(time.count() / kTicks));
  };
  const models::Sizes sizes = work.model->sizes();
  const double sent = static_cast<double>(options.batch.micro_samples * work.tokens * sizes.width *
                                          size_bytes(options.precision.params)) /
                      options.mesh.sequence;
  const double rate = rate_between(machine, 2, work.ranks / stages);
  const Seconds backward = pass.backward + pass.again;
  const pipeline::Costs costs{.forward = ticks(pass.forward),
                              .backward_inputs = ticks(0.5 * backward),
                              .backward_weights = ticks(0.5 * backward),
                              .transfer = ticks(machine.collective_delay + at_rate(sent, rate))};
  const pipeline::Simulation run = pipeline::simulate(
      pipeline::make_schedule(
          work.schedule,
          {.stages = stages, .micro_batches = static_cast<int>(options.batch.accumulation_steps)}),
      {costs});
  return Seconds(static_cast<double>(run.length - run.busy(0)) * kTicks);
}

}  // namespace

Traffic traffic_of(const Workload& work) {
  const engine::Options& options = work.options;
  const Ranks ranks = ranks_of(work);
  const shard::Policy policy = shard::policy_for(options.shard);
  const double all = elems(work);
  const double count = micro_batches(work);
  const double param = static_cast<double>(size_bytes(options.precision.params));
  const double travel = static_cast<double>(size_bytes(options.precision.reduce_dtype()));
  const double away = others(ranks.shards);
  Traffic traffic;
  // Stage 3 gathers for forward and for backward; what fits into the limit of reuse only once.
  const bool kept = all * param <= static_cast<double>(std::min(options.shard.max_reuse_bytes,
                                                                options.shard.max_live_bytes));
  const double uses = policy.shards_params() ? count * (kept ? 1 : 2) : 1;
  const double gathered = policy.shards_optimizer()
                              ? param
                              : static_cast<double>(size_bytes(options.precision.grad_accum));
  traffic.gathered = all * gathered * uses * away;
  const double reductions = policy.reduce == shard::ReduceSchedule::at_step ? 1 : count;
  traffic.reduced = all * travel * reductions * away;
  if (ranks.data > ranks.shards) traffic.reduced += 2 * all / ranks.shards * 4;
  const models::Sizes sizes = work.model->sizes();
  const double layer =
      static_cast<double>(options.batch.micro_samples * work.tokens * sizes.width) * param /
      options.mesh.sequence;
  const double blocks = static_cast<double>(sizes.layers) / options.mesh.pipe;
  const double passes = options.recompute.enabled ? 3 : 2;
  // Two sums in each block and pass, each a reduction and a gather.
  traffic.layers = count * blocks * passes * 2 * 2 * layer * others(options.mesh.tensor);
  // Queries, keys, values and the result change places.
  traffic.layers += count * blocks * passes * 4 * layer * others(options.mesh.sequence);
  if (options.mesh.pipe > 1) traffic.stages = 2 * count * layer;
  const double owned = all / (policy.shards_optimizer() ? ranks.shards : 1);
  if (options.store.optimizer.placement != Placement::device) {
    traffic.host += options.store.optimizer.ratio * owned * std::max(4.0 * reductions, param);
  }
  if (options.store.params.placement != Placement::device) traffic.host += owned * param * uses;
  if (options.store.optimizer.placement == Placement::nvme) {
    traffic.disk_read += 12 * owned;
    traffic.disk_written += 12 * owned;
  }
  if (options.store.params.placement == Placement::nvme) {
    traffic.disk_read += owned * param * uses;
    traffic.disk_written += owned * param;
  }
  return traffic;
}

StepTime step_time(const Workload& work, const Machine& machine) {
  const engine::Options& options = work.options;
  const Ranks ranks = ranks_of(work);
  const shard::Policy policy = shard::policy_for(options.shard);
  const PassTime pass = pass_time(work, machine);
  const Traffic traffic = traffic_of(work);
  const double count = micro_batches(work);
  const int sharing = options.mesh.tensor * options.mesh.sequence;
  const double rate = rate_between(machine, ranks.shards, sharing);
  const auto units = static_cast<double>(work.model->sizes().layers / options.mesh.pipe + 3);
  const bool overlap = options.shard.overlap_comm;
  const int hosted = std::min(ranks.all, machine.devices_per_host);

  StepTime time{.compute = count * (pass.forward + pass.backward), .recompute = count * pass.again};
  const Seconds passes = time.compute + time.recompute;
  Seconds gathers = at_rate(traffic.gathered, rate);
  if (ranks.shards > 1) gathers += units * machine.collective_delay;
  if (options.store.params.placement != Placement::device) {
    gathers = std::max(gathers, at_rate(traffic.host, machine.host_link_rate));
    if (options.store.params.placement == Placement::nvme) {
      gathers = std::max(gathers, at_rate(traffic.disk_read * hosted, machine.disk_read_rate));
    }
  }
  Seconds reductions = at_rate(traffic.reduced, rate);
  if (ranks.shards > 1) reductions += units * machine.collective_delay;
  const bool during = policy.reduce == shard::ReduceSchedule::per_backward;
  const bool gathers_during = policy.shards_params();
  // Both use the same links: what one hides behind, the other cannot.
  const Seconds backward = count * (pass.backward + pass.again);
  time.reduce = exposed(reductions, backward, overlap && during);
  const Seconds left = during ? std::max(Seconds(0), passes - reductions) : passes;
  time.gather = exposed(gathers, left, overlap && gathers_during);
  time.layers = at_rate(traffic.layers, rate_between(machine, sharing, 1));
  time.update = update_time(work, machine, pass).exposed;
  time.bubble = bubble_time(work, machine, pass);
  return time;
}

double tokens_per_second(const Workload& work, const StepTime& time) {
  const Ranks ranks = ranks_of(work);
  const double tokens = static_cast<double>(work.options.batch.micro_samples * work.tokens) *
                        micro_batches(work) * ranks.data;
  return tokens / time.total().count();
}

double model_flops_per_second(const Workload& work, const StepTime& time) {
  return tokens_per_second(work, time) * work.model->flops_per_token(work.tokens) / work.ranks;
}

}  // namespace capstan::tune
