// Claim: an optimizer step whose state lives on a disk takes hardly longer than reading and writing
// that state once: at least 0.85 of the disk's own rate, with the arithmetic hidden behind it.
//   nvme_bench [folder = .] [MiB of state = 768] [rounds = 5] [trace.json]
// In each round, one after another: the state's bytes read and written by a plain ring of the same
// block size and queue depth; forward, backward and step with the state in host memory; and a few
// in a row with it on the disk, until the last byte is there. What a step from disk takes is the
// time of these less that of forward and backward with the state in host memory. With a fourth word
// one more update is recorded, transfer by transfer, for draw_timeline.py.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <torch/nn/modules/linear.h>

#include "capstan/base/cpu_isa.h"
#include "capstan/base/guard.h"
#include "capstan/engine/engine.h"
#include "capstan/engine/engine_state.h"
#include "capstan/io/aligned_buffer.h"
#include "capstan/io/ring.h"
#include "capstan/nn/unit.h"
#include "capstan/optim/update.h"
#include "capstan/store/swap_stream.h"

namespace capstan::engine {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 2048;        // of a layer; its parameters are a unit
constexpr std::int64_t kBytesPerParam = 12;  // master and two moments in fp32
constexpr std::int64_t kTileElems = std::int64_t{1} << 22;
constexpr int kStepsInARow = 4;

double seconds_of(const std::function<void()>& body) {
  const auto began = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Layers one after another.
class LayersImpl : public torch::nn::Module {
 public:
  explicit LayersImpl(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const torch::nn::LinearOptions layer(kWidth, kWidth);
      layers_.push_back(register_module(std::to_string(i), nn::Unit<torch::nn::Linear>(layer)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers_) x = layer(x);
    return x.sum();
  }

 private:
  std::vector<nn::Unit<torch::nn::Linear>> layers_;
};
TORCH_MODULE(Layers);

// A model whose optimizer state has a placement; a step at a time.
class Trained {
 public:
  Trained(std::int64_t layers, store::Placement placement, const fs::path& folder)
      : model_(layers), engine_(model_, options(placement, folder)) {}

  double passes() {
    return seconds_of([&] { engine_.backward(model_(at::ones({1, kWidth}, at::kBFloat16))); });
  }
  double step() {
    return seconds_of([&] { engine_.step(); });
  }
  // Passes and step, all of it done: on average over some in a row.
  double whole_step(int count) {
    return seconds_of([&] {
             for (int i = 0; i < count; ++i) {
               passes();
               step();
             }
             engine_.inside().sharded().settle_updates();
           }) /
           count;
  }
  std::int64_t disk_bytes() { return engine_.ledger(store::Placement::nvme).now().total(); }

 private:
  static Options options(store::Placement placement, const fs::path& folder) {
    Options options;
    options.gradient_clipping = 0;  // no norm: the step is the update
    options.optimizer = optim::Options{.kind = optim::Kind::adamw};
    options.precision.params = DType::bf16;
    options.shard.stage = 2;
    options.shard.sub_group_elems = kTileElems;
    options.store.optimizer.placement = placement;
    options.store.optimizer.pin = false;
    options.store.optimizer.nvme_paths = {folder.string()};
    options.store.optimizer.late_updates = false;
    return options;
  }

  Layers model_;
  Engine engine_;
};

// The disk by itself: as many bytes, as large requests, as much memory of the same pages, the same
// ring.
class RawDisk {
 public:
  RawDisk(const fs::path& folder, std::int64_t bytes)
      : bytes_(bytes),
        path_(folder / ".capstan-nvme-bench"),
        file_(io::File::open(path_, {.access = io::Access::create, .direct = true})),
        buffer_(kTileElems * kBytesPerParam * store::OptimizerOptions{}.buffer_count,
                io::Pages::huge),
        ring_(io::Options{}, silence_) {
    file_.reserve(bytes);
    write();  // space that was never written to is slower at first, and so is memory
    read();
  }
  ~RawDisk() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  RawDisk(const RawDisk&) = delete;
  RawDisk& operator=(const RawDisk&) = delete;

  double read() {
    return seconds_of([this] {
      transfer([this](std::int64_t at, std::span<std::byte> bytes) {
        return ring_.read(file_, at, bytes);
      });
    });
  }
  double write() {
    return seconds_of([this] {
      transfer([this](std::int64_t at, std::span<std::byte> bytes) {
        return ring_.write(file_, at, bytes);
      });
    });
  }

 private:
  template <typename Start>
  void transfer(const Start& start) {
    std::vector<io::PendingIo> pending;
    const std::int64_t column = kTileElems * 4;
    for (std::int64_t at = 0; at < bytes_; at += column) {
      const auto place = static_cast<std::size_t>(at % buffer_.size_bytes());
      const auto count = static_cast<std::size_t>(std::min(column, bytes_ - at));
      pending.push_back(start(at, buffer_.bytes().subspan(place, count)));
    }
    for (io::PendingIo& each : pending) each.wait();
  }

  std::int64_t bytes_;
  fs::path path_;
  io::File file_;
  io::AlignedBuffer buffer_;  // a whole number of columns
  NullLogger silence_;
  io::Ring ring_;
};

// What was at work when, as a trace that browsers and draw_timeline.py read.
class Timeline {
 public:
  void add(const char* lane, Clock::time_point began, Clock::time_point ended) {
    const auto us = [](Clock::duration time) {
      return std::chrono::duration<double, std::micro>(time).count();
    };
    const std::lock_guard lock(mutex_);
    events_ += fmt::format(
        R"({}{{"cat":"{}","name":"{}","ph":"X","pid":0,"tid":"{}","ts":{:.1f},"dur":{:.1f}}})",
        events_.empty() ? "" : ",\n", lane, lane, lane, us(began.time_since_epoch()),
        us(ended - began));
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    events_.clear();
  }
  void write(const fs::path& path) const {
    std::ofstream(path) << "{\"traceEvents\":[\n" << events_ << "\n]}\n";
  }

 private:
  std::mutex mutex_;
  std::string events_;
};

// Notes when each transfer is handed to the kernel and when it is done.
class NotedQueue final : public io::RawQueue {
 public:
  NotedQueue(std::unique_ptr<io::RawQueue> inner, Timeline& timeline)
      : inner_(std::move(inner)), timeline_(timeline) {}
  int depth() const override { return inner_->depth(); }
  io::Submitted submit(std::span<const io::RawOp> ops) override {
    {
      const std::lock_guard lock(mutex_);
      for (const io::RawOp& op : ops) began_[op.tag] = {op.kind, Clock::now()};
    }
    return inner_->submit(ops);
  }
  std::int64_t wait(std::span<io::RawDone> out) override {
    const std::int64_t count = inner_->wait(out);
    const std::lock_guard lock(mutex_);
    for (const io::RawDone& done : out.first(static_cast<std::size_t>(count))) {
      const auto& [kind, began] = began_.at(done.tag);
      timeline_.add(kind == io::OpKind::read ? "read" : "write", began, Clock::now());
    }
    return count;
  }

 private:
  std::unique_ptr<io::RawQueue> inner_;
  Timeline& timeline_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::pair<io::OpKind, Clock::time_point>> began_;
};

// The update of the engine, in the same tiles, over a ring that notes its transfers.
void record_update(const fs::path& folder, std::int64_t tiles, Timeline& timeline) {
  store::SwapFiles files({.folders = {folder}, .label = "nvme_bench"});
  std::vector<c10::DataPtr> memory;
  std::vector<store::Spans> list(static_cast<std::size_t>(tiles));
  for (store::Spans& tile : list) {
    for (int column = 0; column < 3; ++column) {
      memory.push_back(files.take(kTileElems * 4));
      tile.emplace_back(static_cast<std::byte*>(memory.back().get()), kTileElems * 4);
    }
  }
  io::OpenedQueue opened = io::open_queue({});
  opened.queue = std::make_unique<NotedQueue>(std::move(opened.queue), timeline);
  NullLogger silence;
  io::Ring ring({}, silence, std::move(opened));
  store::SwapStream stream(files, ring, store::OptimizerOptions{}.buffer_count);
  optim::WorkerPool workers(at::get_num_threads());
  const at::Tensor grads = at::full({kTileElems}, 0.01, at::kFloat);
  const auto update = [&] {
    stream.start(list);
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::vector<std::byte*> columns = stream.next();
      const auto began = Clock::now();
      optim::update(optim::Kind::adamw, {}, {.lr = 1e-3, .step = 1},
                    {.master = {columns[0]},
                     .grad = {grads.const_data_ptr()},
                     .states = {{columns[1]}, {columns[2]}},
                     .elems = kTileElems},
                    {workers});
      timeline.add("update", began, Clock::now());
    }
    stream.finish();
  };
  update();  // space that was never written to is slower at first
  timeline.clear();
  update();
}

int run(int argc, char** argv) {
  avoid_broken_amx();
  const fs::path folder = argc > 1 ? argv[1] : ".";
  const std::int64_t mib = argc > 2 ? std::strtoll(argv[2], nullptr, 10) : 768;
  const int rounds = argc > 3 ? std::stoi(argv[3]) : 5;
  const std::int64_t layers =
      std::max<std::int64_t>(1, (mib << 20) / kBytesPerParam / (kWidth * kWidth));
  Trained on_disk(layers, store::Placement::nvme, folder);
  Trained on_host(layers, store::Placement::host, folder);
  RawDisk raw(folder, on_disk.disk_bytes());
  on_disk.whole_step(1);
  on_host.whole_step(1);
  const double gb = static_cast<double>(on_disk.disk_bytes()) / 1e9;
  std::vector<double> shares;
  for (int round = 0; round < rounds; ++round) {
    const double read = raw.read();
    const double write = raw.write();
    const double passes = on_host.passes();
    const double host = on_host.step();
    const double disk = on_disk.whole_step(kStepsInARow) - passes;
    shares.push_back((read + write) / disk);
    fmt::print(
        "disk alone: read {:.2f} s ({:.2f} GB/s), write {:.2f} s ({:.2f} GB/s)  passes {:.2f} s  "
        "update in host memory {:.2f} s  step {:.2f} s ({:.2f} GB/s)  {:.2f} of the disk's rate, "
        "{:.2f} of doing all in turn\n",
        read, gb / read, write, gb / write, passes, host, disk, 2 * gb / disk, shares.back(),
        disk / (read + write + host));
  }
  fmt::print("{:.2f} GB of state, median of {} rounds: {:.2f} of the disk's own rate\n", gb, rounds,
             median(shares));
  if (argc > 4) {
    Timeline timeline;
    record_update(folder, /*tiles=*/12, timeline);
    timeline.write(argv[4]);
  }
  return 0;
}

void report(const std::string& text) { fmt::print(stderr, "nvme_bench: {}\n", text); }

}  // namespace
}  // namespace capstan::engine

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::engine::report>(capstan::engine::run, argc, argv);
}
