#include "capstan/engine/diary.h"

#include <algorithm>
#include <exception>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include "capstan/store/ledger.h"

namespace capstan::engine {
namespace {

using DiaryClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBetweenWrites{2};
constexpr std::size_t kMostNotFinite = 20;
constexpr std::size_t kFingerprints = 3;  // ranks of one job are a step apart at most
// Every parameter is read for one: often at the beginning, and then at steps far apart.
constexpr std::int64_t kBetweenFingerprints = 64;

bool takes_fingerprint(std::int64_t step) {
  return step % kBetweenFingerprints == 0 || (step & (step - 1)) == 0;
}

double length_since(DiaryClock::time_point begin) {
  return std::chrono::duration<double>(DiaryClock::now() - begin).count();
}

// A sum over the bits: the same in whatever order it is made.
at::Tensor sum_of_bits(const at::Tensor& values) {
  const at::Tensor flat = values.detach().reshape({-1});
  return flat.view(flat.itemsize() == 2 ? at::kShort : at::kInt).sum();
}

}  // namespace

Diary::Diary(std::filesystem::path folder, comm::MeshGroups& mesh)
    : folder_(std::move(folder)), mesh_(mesh) {
  if (folder_.empty()) return;
  reader_.emplace(mesh_.all().recorder(),
                  profile::Kinds{profile::Kind::phase, profile::Kind::wait, profile::Kind::io});
  notes_.rank = mesh_.all().rank();
  notes_.world_size = mesh_.all().size();
  notes_.model_part = mesh_.place({layout::Axis::pipe, layout::Axis::tensor});
  notes_.state = "training";
  notes_.began =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  write();
}

Diary::~Diary() {
  if (!is_open()) return;
  if (notes_.state == "training") notes_.state = "closed";
  attempt([this] { write(); });
}

void Diary::read_times() {
  for (const profile::Record& record : reader_->take()) {
    if (record.owner != nullptr && record.owner != phases_) continue;
    const std::string kind(to_string(record.kind));
    const std::string name(record.name);
    profile::OpTime& time = times_[{kind, name}];
    const double seconds = std::chrono::duration<double>(record.device.length).count();
    ++time.count;
    time.seconds += seconds;
    time.longest = std::max(time.longest, seconds);
    time.bytes += record.bytes;
  }
}

void Diary::take_fingerprint(shard::ShardedModel& model) {
  if (model.settings().host.used()) return;  // updates may still be on their way
  const at::NoGradGuard no_grad;
  profile::Fingerprint print{.step = notes_.steps, .units = {}};
  std::vector<at::Tensor> sums;
  const std::vector<shard::UnitSpec>& units = model.plan().units;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const shard::Unit& unit = model.unit(static_cast<int>(u));
    if (unit.state() != shard::UnitState::whole || units[u].params.empty()) continue;
    at::Tensor sum = sum_of_bits(unit.slot(0));
    for (std::size_t slot = 1; slot < units[u].params.size(); ++slot) {
      sum = sum + sum_of_bits(unit.slot(static_cast<int>(slot)));
    }
    print.units.emplace_back(units[u].name, 0);
    sums.push_back(sum);
  }
  if (sums.empty()) return;
  const at::Tensor all = at::stack(sums).cpu();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    print.units[i].second = all.const_data_ptr<std::int64_t>()[i];
  }
  if (notes_.fingerprints.size() == kFingerprints) {
    notes_.fingerprints.erase(notes_.fingerprints.begin());
  }
  notes_.fingerprints.push_back(std::move(print));
}

void Diary::step_ended(const Progress& progress, shard::ShardedModel& model, const void* phases) {
  if (!is_open()) return;
  phases_ = phases;
  attempt([&] { note_step(progress, model); });
}

void Diary::note_step(const Progress& progress, shard::ShardedModel& model) {
  notes_.steps = progress.steps;
  notes_.skipped = progress.skipped;
  read_times();
  const bool prints = takes_fingerprint(notes_.steps);
  if (prints) take_fingerprint(model);
  notes_.memory_peaks.clear();
  const auto add = [this](const char* where, const store::Ledger& ledger) {
    for (const auto kind : {store::MemoryKind::parameters, store::MemoryKind::gradients,
                            store::MemoryKind::optimizer}) {
      const std::int64_t bytes = ledger.peak()[kind];
      if (bytes == 0) continue;
      notes_.memory_peaks.emplace_back(fmt::format("{} {}", where, to_string(kind)), bytes);
    }
  };
  add("device", model.places().device_ledger());
  add("host", model.places().host_ledger());
  if (prints || DiaryClock::now() - written_ >= kBetweenWrites) write();
}

void Diary::failed(std::string_view error) {
  if (!is_open() || notes_.state == "failed") return;
  notes_.state = "failed";
  notes_.error = error;
  attempt([this] { write(); });
}

void Diary::saw_non_finite(std::int64_t step, const std::string& what) {
  if (!is_open() || notes_.not_finite.size() == kMostNotFinite) return;
  notes_.not_finite.push_back(fmt::format("step {}: {}", step, what));
  if (notes_.not_finite.size() == 1) attempt([this] { write(); });
}

// What goes wrong here concerns the notes alone.
void Diary::attempt(const std::function<void()>& body) noexcept {
  try {
    body();
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
  }
}

void Diary::write() {
  written_ = DiaryClock::now();
  notes_.seconds = length_since(began_);
  notes_.operations = mesh_.all().recent_operations();
  notes_.times.clear();
  for (const auto& [of, time] : times_) {
    notes_.times.push_back(time);
    notes_.times.back().kind = of.first;
    notes_.times.back().name = of.second;
  }
  profile::write_notes(folder_, notes_);
}

}  // namespace capstan::engine
