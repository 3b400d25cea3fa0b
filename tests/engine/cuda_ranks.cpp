// One rank of the promises on a GPU: over NCCL alone on its card, over MPI when several share one.
// Prints a line for every cell whose stages agree and ends with 1 at the first that does not.
// cuda_ranks [TEXT]: only cells whose line contains TEXT, say "bf16 1 backwards clip adamw".
// cuda_ranks join [without]: an engine that joins the ranks by itself; without NCCL to join them
// with.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/cuda/Sleep.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "capstan/base/guard.h"
#include "capstan/comm/nccl/nccl.h"
#include "capstan/comm/world.h"
#include "capstan/engine/engine.h"
#include "capstan/engine/engine_state.h"
#include "capstan/shard/memory.h"
#include "capstan/shard/torch_dtype.h"
#include "tests/engine/small_model.h"
#include "tests/support/delayed_backend.h"

namespace capstan::engine {
namespace {

constexpr int kWidth = 24;
constexpr int kBlocks = 4;
constexpr int kClasses = 7;
constexpr int kSteps = 4;
constexpr std::int64_t kMaxDelayCycles = 400'000;  // a fifth of a millisecond

struct Cell {
  DType dtype = DType::fp32;
  int backwards = 1;
  bool clip = false;
  optim::Kind kind = optim::Kind::adamw;
  bool overflow = false;
};

struct Result {
  std::vector<float> losses;
  std::vector<double> norms;
  std::vector<at::Tensor> params;
  std::int64_t skipped = 0;

  // Empty: nothing does.
  std::string what_differs(const Result& other) const {
    std::string text;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      if (losses[i] != other.losses[i]) text += fmt::format(" loss {}", i);
    }
    for (std::size_t i = 0; i < norms.size(); ++i) {
      if (norms[i] != other.norms[i]) text += fmt::format(" norm {}", i);
    }
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (!params[i].equal(other.params[i])) text += fmt::format(" parameter {}", i);
    }
    return skipped == other.skipped ? text : text + " skipped";
  }
  bool operator==(const Result& other) const { return what_differs(other).empty(); }
};

enum class Host {
  nothing,
  half_the_optimizer,
  optimizer,
  late_optimizer,
  early_optimizer,
  everything,
  everything_early,
  disks
};

Options options_of(const Cell& cell, int stage, Host host = Host::nothing) {
  Options options;
  options.batch.accumulation_steps = cell.backwards;
  options.gradient_clipping = cell.clip ? 0.05 : 0;
  options.optimizer = optim::Options{.kind = cell.kind,
                                     .hyper = {.lr = 1e-2, .weight_decay = 0.01, .momentum = 0.9}};
  options.precision.params = cell.dtype;
  options.precision.loss_scale.initial_scale_power = cell.overflow ? 24 : 8;
  options.precision.loss_scale.hysteresis = 1;
  options.shard.stage = stage;
  options.shard.reduce_schedule = shard::ReduceSchedule::per_backward;
  options.shard.persistence_threshold_elems = 30;
  options.shard.max_reuse_bytes = 0;
  if (host != Host::nothing) options.store.optimizer.placement = store::Placement::host;
  if (host == Host::late_optimizer) options.store.optimizer.late_updates = true;
  if (host == Host::half_the_optimizer) options.store.optimizer.ratio = 0.5;
  if (host == Host::early_optimizer) options.store.optimizer.late_updates = true;
  if (host == Host::early_optimizer || host == Host::everything_early) {
    options.store.optimizer.early_updates = store::EarlyUpdates::always;
  }
  if (host == Host::everything || host == Host::everything_early) {
    options.store.params.placement = store::Placement::host;
  }
  if (host == Host::disks && cell.kind != optim::Kind::lamb) {
    const std::string folder = std::filesystem::temp_directory_path();
    options.store.optimizer.placement = store::Placement::nvme;
    options.store.params.placement = store::Placement::nvme;
    options.store.optimizer.nvme_paths = options.store.params.nvme_paths = {folder};
  }
  return options;
}

struct Place {
  int stage = 0;
  Host host = Host::nothing;
  bool leaves = false;  // the device before every forward and every step
  // Hybrid sharding; with a maker of groups.
  int shard_ranks = 0;
  int near_ranks = 1;
  int blocks_of = 1;
  comm::GroupMaker* maker = nullptr;
};

constexpr shard::AsideKinds kAll{
    .moments = true, .masters = true, .params = true, .gradients = true};

Result train(const Cell& cell, Place place, comm::Group& group, c10::Device device) {
  test::SmallModel model(kWidth, kBlocks, kClasses);
  test::fill(*model, 11);
  model->to(device);
  Options options = options_of(cell, place.stage, place.host);
  options.shard.shard_ranks = place.shard_ranks;
  options.shard.near_ranks = place.near_ranks;
  options.comm.reduce_in_blocks_of = place.blocks_of;
  Engine engine(model, options,
                {.group = place.maker != nullptr ? Ranks(group, *place.maker) : Ranks(&group)});
  Result result;
  for (int step = 0; step < kSteps * cell.backwards; ++step) {
    const auto seed = static_cast<std::uint64_t>(1000 + step * 10 + group.rank());
    test::Batch batch = test::make_batch(16, kWidth, kClasses, seed);
    batch = {batch.inputs.to(device), batch.targets.to(device)};
    if (place.leaves) engine.offload_states(kAll);
    const at::Tensor loss = test::loss_of(model, batch, shard::torch_dtype(cell.dtype));
    result.losses.push_back(loss.item<float>());
    engine.backward(loss);
    if (place.leaves) engine.offload_states(kAll);
    const StepReport report = engine.step();
    if (report.boundary) result.norms.push_back(report.applied ? report.grad_norm : -1);
  }
  for (const shard::ParamSpec& param : engine.inside().sharded().plan().params) {
    result.params.push_back(engine.master(param.name).cpu());
  }
  result.skipped = engine.progress().skipped;
  return result;
}

std::string text_of(const Cell& cell) {
  return fmt::format("{} {} backwards{}{} {}", name(cell.dtype), cell.backwards,
                     cell.clip ? " clip" : "", cell.overflow ? " overflow" : "",
                     optim::name(cell.kind));
}

std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const int backwards : {1, 3}) {
      for (const bool clip : {false, true}) all.push_back({dtype, backwards, clip});
    }
  }
  using optim::Kind;
  for (const Kind kind : {Kind::adam, Kind::sgd, Kind::lion, Kind::adagrad, Kind::lamb}) {
    all.push_back({.dtype = DType::bf16, .clip = true, .kind = kind});
  }
  all.push_back({.dtype = DType::fp16, .clip = true, .overflow = true});
  return all;
}

std::vector<Place> places() {
  return {{0},
          {1},
          {2},
          {3},
          {1, Host::optimizer},
          {2, Host::half_the_optimizer},
          {2, Host::late_optimizer},
          {2, Host::early_optimizer},
          {3, Host::optimizer},
          {3, Host::everything},
          {3, Host::everything_early},
          {3, Host::disks},
          {3, Host::nothing, /*leaves=*/true}};
}

// Every stage and placement, then all again with late streams, against stage 0.
bool stages_agree(const Cell& cell, comm::Group& group, c10::Device device) {
  const Result reference = train(cell, {}, group, device);
  if (cell.overflow && reference.skipped == 0) {
    fmt::print(stderr, "{}: nothing overflowed\n", text_of(cell));
    return false;
  }
  for (const bool late : {false, true}) {
    for (const Place& place : places()) {
      comm::Group delayed(
          test::delay_streams(c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&group.backend()),
                              kMaxDelayCycles, static_cast<std::uint64_t>(place.stage + 1)));
      const std::string differs =
          train(cell, place, late ? delayed : group, device).what_differs(reference);
      if (differs.empty()) continue;
      fmt::print(stderr, "rank {}: {}: stage {} placement {}{}{} differs from stage 0:{}\n",
                 group.rank(), text_of(cell), place.stage, static_cast<int>(place.host),
                 place.leaves ? " aside" : "", late ? " with late streams" : "", differs);
      return false;
    }
  }
  if (group.rank() == 0) fmt::print("agree: {}\n", text_of(cell));
  return true;
}

// A second copy near by gives the bits of stage 3; shard groups those of sums in their order, and
// their norm counts everything once.
bool hybrids_agree(comm::World& world, c10::Device device) {
  bool good = true;
  const auto expect = [&](bool holds, const std::string& what) {
    if (holds && world.group().rank() == 0) fmt::print("hybrid: {}\n", what);
    if (!holds) fmt::print(stderr, "rank {}: {}: not so\n", world.group().rank(), what);
    good = good && holds;
  };
  const auto run = [&](const Cell& cell, Place place) {
    place.stage = 3;
    place.maker = &world;
    return train(cell, place, world.group(), device);
  };
  for (const Host host : {Host::nothing, Host::everything}) {
    const Cell clipped{.dtype = DType::bf16, .backwards = 2, .clip = true};
    const std::string where = host == Host::nothing ? "" : ", on the host";
    expect(run(clipped, {.host = host, .near_ranks = 2}) == run(clipped, {.host = host}),
           "a second copy gives the bits of stage 3" + where);
    const Cell once{.dtype = DType::bf16};
    Result inside = run(once, {.host = host, .shard_ranks = 2});
    const Result in_blocks = run(once, {.host = host, .blocks_of = 2});
    inside.norms = in_blocks.norms;  // these sum other pieces
    expect(inside == in_blocks, "shard groups give the bits of their order" + where);
    const Result groups = run(clipped, {.host = host, .shard_ranks = 2});
    const Result plain = run(clipped, {.host = host});
    bool near = groups.norms.size() == plain.norms.size();
    for (std::size_t i = 0; near && i < plain.norms.size(); ++i) {
      near = std::abs(groups.norms[i] - plain.norms[i]) < 0.02 * plain.norms[i];
    }
    expect(near, "shard groups count everything once in the norm" + where);
  }
  return good;
}

// The bytes that the engine asked for and keeps between steps are what the ledger says, but for the
// small tables of the gradient check. (What the allocator adds to each block is not ours to count.)
bool memory_is_as_forecast(comm::Group& group, c10::Device device) {
  constexpr std::int64_t kTables = 1 << 20;
  const at::Tensor first = at::zeros({1}, device);  // there are no figures before the first use
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
  const auto now = [&] {
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator->getDeviceStats(device.index()).requested_bytes[all].current;
  };
  for (const int stage : {0, 1, 2, 3}) {
    test::SmallModel model(512, 8, kClasses);
    test::fill(*model, 11);
    const std::int64_t before = now();
    model->to(device);
    Engine engine(model, options_of({.dtype = DType::bf16}, stage), {.group = &group});
    const std::int64_t taken = now() - before;
    const std::int64_t ledger = engine.ledger().now().total();
    if (taken < ledger || taken > ledger + kTables) {
      fmt::print(stderr, "stage {}: {} bytes are taken, the ledger says {}\n", stage, taken,
                 ledger);
      return false;
    }
    engine.offload_states(kAll);
    const std::int64_t left = now() - before;
    engine.reload_states();
    const std::int64_t again = now() - before;
    if (left > kTables || again != taken) {
      fmt::print(stderr, "stage {}: {} bytes stay when states leave, {} of {} come back\n", stage,
                 left, again, taken);
      return false;
    }
    if (group.rank() == 0) fmt::print("memory: stage {}: {} of {}\n", stage, ledger, taken);
  }
  return true;
}

// In every phase of a step the allocator's peak is the ledger's, but for the gradient that autograd
// hands over, the activations of one small sample, and what libraries keep (the same in all
// phases).
bool peaks_are_as_forecast(comm::Group& group, c10::Device device) {
  constexpr std::int64_t kSample = 1 << 20;
  constexpr int kWide = 1536;
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
  const auto stats = [&] { return allocator->getDeviceStats(device.index()).requested_bytes[all]; };
  bool good = true;
  for (const int stage : {0, 1, 2, 3}) {
    test::SmallModel model(kWide, 6, kClasses);
    test::fill(*model, 11);
    model->to(device);
    Engine engine(model, options_of({.dtype = DType::bf16}, stage), {.group = &group});
    store::Ledger& ledger = engine.ledger();
    const std::int64_t gradient = (2 * kWide + 1) * kWide * size_bytes(DType::bf16);
    at::Tensor loss;
    const auto forward = [&] {
      test::Batch batch = test::make_batch(1, kWide, kClasses, 1);
      batch.inputs = batch.inputs.to(device);
      batch.targets = batch.targets.to(device);
      loss = test::loss_of(model, batch, at::kBFloat16);
    };
    const auto backward = [&] { engine.backward(std::exchange(loss, {})); };
    const auto step = [&] { engine.step(); };
    for (int i = 0; i < 2; ++i) {
      forward();
      backward();
      step();
    }
    const std::int64_t beside = stats().current - ledger.now().total();
    const auto look = [&](const char* phase, const auto& run_phase) {
      ledger.reset_peak();
      allocator->resetPeakStats(device.index());
      run_phase();
      const std::int64_t over = stats().peak - beside - ledger.peak_total();
      const bool as_said = over >= 0 && over <= gradient + kSample;
      if (!as_said || group.rank() == 0) {
        fmt::print(as_said ? stdout : stderr, "peak: stage {} {}: {} and {} beside it\n", stage,
                   phase, ledger.peak_total(), over);
      }
      good = good && as_said;
    };
    look("forward", forward);
    look("backward", backward);
    look("step", step);
  }
  return good;
}

// A phase takes as long as the device is at it, although the host goes on at once.
bool phases_are_the_devices(comm::Group& group, c10::Device device) {
  constexpr std::int64_t kCycles = 400'000'000;
  test::SmallModel model(kWidth, kBlocks, kClasses);
  test::fill(*model, 11);
  model->to(device);
  profile::Reader reader(group.recorder(), {profile::Kind::phase});
  Engine engine(model, options_of({}, 1), {.group = &group});
  test::Batch batch = test::make_batch(1, kWidth, kClasses, 1);
  batch.inputs = batch.inputs.to(device);
  batch.targets = batch.targets.to(device);
  c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  begin.record(stream);
  at::cuda::sleep(kCycles);
  end.record(stream);
  engine.backward(test::loss_of(model, batch, at::kFloat));
  engine.step();
  group.recorder()->settle();
  const std::vector<profile::Record> records = reader.take();
  const double slept_ms = begin.elapsedTime(end);
  const double forward_ms = profile::milliseconds(records.at(0).device.length);
  const bool good = records.size() == 3 && records[0].name == "forward" && forward_ms >= slept_ms;
  fmt::print(good ? stdout : stderr, "times: {} phases, {} of {} ms, the kernel in it {} ms\n",
             records.size(), records.at(0).name, forward_ms, slept_ms);
  return good;
}

// Each rank has a card of its own.
int join(bool with_nccl) {
  const RankEnv env = read_rank_env(process_env());
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(env.local_rank));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  test::SmallModel model(kWidth, kBlocks, kClasses);
  test::fill(*model, 11);
  model->to(device);
  Engine engine(model, options_of({}, 3), {.start_nccl = with_nccl ? &comm::start_nccl : nullptr});
  test::Batch batch = test::make_batch(4, kWidth, kClasses, 1);
  batch.inputs = batch.inputs.to(device);
  batch.targets = batch.targets.to(device);
  engine.backward(test::loss_of(model, batch, at::kFloat));
  const bool applied = engine.step().applied;
  fmt::print("joined: rank {} of {} on {}\n", engine.group().rank(), engine.group().size(),
             device.str());
  engine.close();
  return applied ? 0 : 1;
}

int run(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  if (wanted == "join") return join(/*with_nccl=*/argc == 2);
  const RankEnv env = read_rank_env(process_env());
  const c10::Device device(c10::kCUDA, 0);
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  const auto kind = env.world_size == 1 ? comm::BackendKind::nccl : comm::BackendKind::mpi;
  const auto world = comm::make_world(env, {.backend = kind}, comm::start_nccl);
  if (env.world_size > 2) {
    const bool agree = hybrids_agree(*world, device);
    world->close();
    return agree ? 0 : 1;
  }
  bool good = memory_is_as_forecast(world->group(), device) &&
              peaks_are_as_forecast(world->group(), device) &&
              phases_are_the_devices(world->group(), device);
  for (const Cell& cell : cells()) {
    if (text_of(cell).find(wanted) == std::string::npos) continue;
    good = good && stages_agree(cell, world->group(), device);
  }
  world->close();
  return good ? 0 : 1;
}

void report(const std::string& text) { fmt::print(stderr, "cuda_ranks: {}\n", text); }

}  // namespace
}  // namespace capstan::engine

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::engine::report>(capstan::engine::run, argc, argv);
}
