#include "capstan/cli/train/trainer.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "capstan/base/counter_random.h"
#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/cli/generate/decode.h"
#include "capstan/cli/train/checkpoints.h"
#include "capstan/cli/train/losses.h"
#include "capstan/data/unicode.h"
#include "capstan/engine/engine_state.h"
#include "capstan/io/failure.h"
#include "capstan/models/attention_choice.h"
#include "capstan/schedule/curriculum.h"
#include "capstan/schedule/layer_drop.h"

namespace capstan::cli::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kDropDraws = 0x4c61796572;  // no other draws from the same seed

// Of each row its first `length` tokens, or as many rows of them as it has.
at::Tensor cut_rows(const at::Tensor& rows, std::int64_t length, schedule::SequenceCut cut) {
  if (cut == schedule::SequenceCut::truncate) return rows.narrow(1, 0, length);
  const std::int64_t parts = rows.size(1) / length;
  return rows.narrow(1, 0, parts * length).reshape({rows.size(0) * parts, length});
}

// Among those that see different data.
data::RankOf rank_of(Engine& engine) {
  const comm::MeshGroups& mesh = engine.mesh();
  return {mesh.place(layout::kDataAxes), mesh.mesh().size(layout::kDataAxes)};
}

void write_curve(const std::string& path, const Curve& curve) {
  std::ofstream file(path);
  file << curve_page(curve) << std::flush;
  if (!file) {
    throw IoError(
        {.what = "cannot write the loss curve: " + io::errno_text(errno),
         .where = path,
         .fix = "free some disk space; the figures are in the file of --metrics, if you gave one"});
  }
}

// Documents stand apart by an empty line.
std::string readable_text(const data::Tokenizer& tokenizer, const std::vector<data::Token>& tokens,
                          data::Token end_of_text) {
  std::string text;
  for (auto begin = tokens.begin(); begin != tokens.end();) {
    const auto end = std::find(begin, tokens.end(), end_of_text);
    if (!text.empty()) text += "\n\n";
    text += tokenizer.decode({begin, end});
    begin = end == tokens.end() ? end : end + 1;
  }
  return data::printable_text(text);
}

}  // namespace

Trainer::Trainer(const TrainerParts& parts)
    : arguments_(parts.arguments),
      corpus_(parts.corpus),
      model_(parts.model),
      engine_(parts.engine),
      stop_(parts.stop),
      device_(parts.device),
      shows_(parts.shows),
      monitors_(parts.monitors),
      metrics_(parts.metrics),
      logger_(parts.logger),
      sampler_(parts.corpus.train.count(), rank_of(parts.engine), parts.sampling),
      curriculum_(parts.curriculum),
      layer_drop_(parts.layer_drop),
      drop_seed_(derive_seed(parts.sampling.seed, kDropDraws)),
      passes_(engine_.options().mesh.pipe > 1
                  ? make_piped_passes(engine_, *model_, device_)
                  : make_whole_passes(engine_, *model_, device_, !arguments_.no_optimizer_step)) {
  if (engine_.options().profile.flops.enabled) {
    costs_ = std::make_unique<StepCosts>(engine_, model_->blueprint(), corpus_.train.length());
  }
  if (!shows_) return;
  view_ = make_progress_view(
      stdout, {.columns = terminal_columns(stdout), .log_every = arguments_.output.log_every});
  if (!arguments_.output.page.empty()) {
    page_ = std::make_unique<page::RunPage>(
        page::page_in(arguments_.output.page),
        std::vector<std::filesystem::path>{metrics_path(arguments_.output)});
  }
  if (!device_.is_cpu()) gpu_use_ = GpuUse::open(device_.index());
}

void Trainer::run() {
  resume_run();
  stop_.defer();  // from here on there is something to save
  first_step_ = engine_.progress().steps;
  std::int64_t step = first_step_;
  if (view_ && step >= arguments_.max_steps) {
    view_->note(fmt::format(
        "nothing left to do: {} were taken already; give a larger --max-steps to continue",
        counted(step, "step")));
  }
  bool go_on = true;
  step_began_ = Clock::now();
  while (go_on && step < arguments_.max_steps) {
    go_on = take_step(++step);
    const std::int64_t pause = arguments_.checkpoint.save_every;
    const bool last = step == arguments_.max_steps || !go_on;
    if (last || (pause > 0 && step % pause == 0)) save_run();
    const int every = arguments_.output.eval_every;
    if (every > 0 && step % every == 0 && step < arguments_.max_steps && go_on) validate(step);
  }
  validate(step);
  engine_.finish_saves();
  if (view_) view_->finish();
  if (view_ && !go_on) view_->note(fmt::format("stopped after step {} on request", step));
  summarize();
}

void Trainer::resume_run() {
  if (arguments_.checkpoint.resume.empty()) return;
  const std::string& folder = arguments_.checkpoint.resume;
  const auto resumed = resume(engine_, model_->blueprint(), sampler_, folder);
  if (!resumed && view_)
    view_->note(fmt::format("no checkpoint in {}: starting from the beginning", folder));
  if (!resumed) return;
  if (monitors_ != nullptr) read_losses(metrics_, engine_.progress().steps, curve_);
  if (view_) tell_other_schedule(*resumed);
}

// A schedule over --max-steps is another one when these change: a cosine that had ended rises
// again.
void Trainer::tell_other_schedule(const Resumed& before) {
  const std::vector<double> rates = engine_.learning_rates();
  if (before.max_steps == 0 || before.max_steps == arguments_.max_steps || rates.empty()) return;
  if (std::abs(rates.front() - before.lr) <= 1e-9 * std::abs(before.lr)) return;
  view_->note(fmt::format(
      "warning: the run before was planned for {}, this one for {}: its schedule continues at a "
      "learning rate of {:.3g} instead of {:.3g}. To keep the old schedule, set "
      "scheduler.params.total_num_steps to {} in --config",
      counted(before.max_steps, "step"), counted(arguments_.max_steps, "step"), rates.front(),
      before.lr, before.max_steps));
}

void Trainer::save_run() {
  const CheckpointArguments& where = arguments_.checkpoint;
  if (where.save.empty()) return;
  const std::optional<data::Token> end =
      corpus_.tokenizer ? corpus_.tokenizer->end_of_text() : std::nullopt;
  save(engine_, model_->blueprint(), sampler_,
       {.folder = where.save,
        .keep_last = where.keep_last,
        .tokenizer = corpus_.tokenizer_json,
        .end_of_text = end.value_or(0),
        .max_steps = arguments_.max_steps});
  step_began_ = Clock::now();
}

Batch Trainer::read_batch(const data::Windows& windows, const std::vector<std::int64_t>& samples,
                          const CutRows& cut) const {
  const auto rows = static_cast<std::int64_t>(samples.size());
  const auto count = static_cast<std::size_t>(rows * windows.length());
  at::Tensor ids = at::empty({rows, windows.length()}, at::kLong);
  at::Tensor targets = at::empty_like(ids);
  windows.read(samples, {ids.mutable_data_ptr<std::int64_t>(), count},
               {targets.mutable_data_ptr<std::int64_t>(), count});
  if (cut) {
    ids = cut(ids);
    targets = cut(targets);
  }
  return {our_part(ids).to(device_), our_part(targets).to(device_)};
}

std::int64_t Trainer::length_of(std::int64_t step) const {
  const std::int64_t length = corpus_.train.length();
  return curriculum_ ? std::min(length, schedule::difficulty_at(*curriculum_, step)) : length;
}

std::int64_t Trainer::tokens_of(std::int64_t step) const {
  const std::int64_t length = length_of(step);
  const bool reshapes = curriculum_ && curriculum_->cut == schedule::SequenceCut::reshape;
  const std::int64_t parts = reshapes ? corpus_.train.length() / length : 1;
  return engine_.options().batch.train_samples * parts * length;
}

Batch Trainer::training_batch(const std::vector<std::int64_t>& samples, std::int64_t step) const {
  if (!curriculum_) return read_batch(corpus_.train, samples);
  return read_batch(corpus_.train, samples, [&](const at::Tensor& rows) {
    return cut_rows(rows, length_of(step), curriculum_->cut);
  });
}

// For all micro-batches of a step, so that it does not matter how many ranks they are shared by;
// the same on all ranks, and again in a run that goes on.
void Trainer::drop_layers(std::int64_t step) {
  if (!layer_drop_) return;
  model_->scale_branches(
      schedule::branch_scales(static_cast<int>(model_->blueprint().sizes().layers),
                              schedule::theta_of_step(*layer_drop_, step),
                              derive_seed(drop_seed_, static_cast<std::uint64_t>(step))));
}

// All of the sequence, unless ranks share it.
at::Tensor Trainer::our_part(const at::Tensor& tokens) const {
  const comm::MeshGroups& mesh = engine_.mesh();
  const int ranks = mesh.mesh().size(layout::Axis::sequence);
  return tokens.chunk(ranks, 1)[static_cast<std::size_t>(mesh.place(layout::Axis::sequence))]
      .contiguous();
}

Trainer::Agreed Trainer::agree(const at::Tensor& loss, bool stop) {
  const at::Tensor both = at::stack({loss.to(at::kFloat), at::full_like(loss, stop ? 1.0 : 0.0)});
  engine_.group().all_reduce(both, "mean loss").wait();
  const at::Tensor sums = both.to(at::kCPU, at::kDouble);
  // Of a pipeline, the ranks of the last stage have a loss; those that share sequences have shares
  // of one.
  const layout::Axes once = {layout::Axis::pipe, layout::Axis::sequence};
  const int counted = engine_.group().size() / engine_.mesh().mesh().size(once);
  return {sums[0].item<double>() / counted, sums[1].item<double>() > 0};
}

bool Trainer::take_step(std::int64_t step) {
  const engine::BatchOptions& batch = engine_.options().batch;
  // On every stage of a pipeline, whether it reads them or not: all go through the data together.
  std::vector<std::vector<std::int64_t>> samples;
  for (std::int64_t i = 0; i < batch.accumulation_steps; ++i) {
    samples.push_back(sampler_.next(batch.micro_samples));
  }
  if (costs_) costs_->begin(step - 1);
  drop_layers(step);
  const at::Tensor loss = passes_->train(
      [&](std::int64_t i) { return training_batch(samples[static_cast<std::size_t>(i)], step); });
  const engine::StepReport report = passes_->finish_step();
  if (costs_) tell_costs();
  const Agreed agreed = agree(loss, stop_.seen());
  report_step(step, agreed.loss, report);
  return !agreed.stop;
}

// One rank tells: what the others have of the model costs them the same, or is another stage.
void Trainer::tell_costs() {
  const std::optional<std::string> text = costs_->end();
  if (text && shows_) write_report(*text, engine_.options().profile.flops.output_file);
}

void Trainer::report_step(std::int64_t step, double loss, const engine::StepReport& report) {
  const auto now = Clock::now();
  const std::chrono::duration<double> took = now - step_began_;
  step_began_ = now;
  // The first step warms caches up and would spoil the mean.
  if (step > first_step_ + 1) {
    timed_ += took;
    timed_tokens_ += tokens_of(step);
  }
  if (!shows_) return;
  const auto tokens = static_cast<double>(tokens_of(step));
  last_ = engine::stats_of(report, engine_.progress(), engine_.inside().sharded(),
                           engine_.options().precision);
  last_.step = step;
  last_.max_steps = arguments_.max_steps;
  last_.loss = loss;
  last_.samples_per_s = static_cast<double>(engine_.options().batch.train_samples) / took.count();
  last_.tokens_per_s = tokens / took.count();
  last_.flops_per_s = last_.tokens_per_s * model_->blueprint().flops_per_token(length_of(step));
  if (curriculum_) last_.sequence_tokens = length_of(step);
  if (layer_drop_) last_.theta = schedule::theta_of_step(*layer_drop_, step);
  if (gpu_use_) last_.gpu_use = gpu_use_->read();
  curve_.train.push_back({static_cast<double>(step), loss});
  view_->step(last_);
  monitors_->step(last_);
  tell([](page::RunPage& shown) { shown.refresh(); });
}

// Training does not end because of its page.
void Trainer::tell(const std::function<void(page::RunPage&)>& show) {
  if (!page_) return;
  try {
    show(*page_);
  } catch (const Error& error) {
    logger_.log(LogLevel::warning,
                fmt::format("the run page is left out from here on, training continues: {} ({})",
                            error.info().what, error.info().where));
    page_.reset();
  }
}

// The same samples each time, shared out over the ranks.
void Trainer::validate(std::int64_t step) {
  const at::NoGradGuard no_grad;
  model_->module().eval();
  const std::int64_t rows = engine_.options().batch.micro_samples;
  const data::RankOf ranks = rank_of(engine_);
  const at::Tensor mean = passes_->evaluate(arguments_.output.eval_batches, [&](std::int64_t i) {
    std::vector<std::int64_t> samples;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t place = (i * ranks.world_size + ranks.rank) * rows + row;
      samples.push_back(place % corpus_.validation.count());
    }
    return read_batch(corpus_.validation, samples);
  });
  model_->module().train();
  const double loss = agree(mean, false).loss;
  step_began_ = Clock::now();
  if (!shows_) return;
  curve_.validation.push_back({static_cast<double>(step), loss});
  view_->note(fmt::format("step {}  validation loss {:.4f}", step, loss));
  monitors_->validation(last_, loss);
}

std::string Trainer::sampled_text() {
  if (!corpus_.tokenizer || arguments_.output.sample_tokens == 0) return "";
  model_->module().eval();
  models::avoid_cudnn_attention();
  const data::Token end = corpus_.tokenizer->end_of_text().value_or(0);
  std::vector<data::Token> prompt = corpus_.tokenizer->encode(arguments_.output.prompt);
  if (prompt.empty()) prompt.push_back(end);
  // Every rank draws the same.
  const std::unique_ptr<generate::Search> search =
      generate::make_search(std::move(prompt), {.max_new_tokens = arguments_.output.sample_tokens,
                                                .sample = true,
                                                .draw = {.temperature = 0.7, .top_k = 40},
                                                .seed = arguments_.seed});
  generate::run_searches(
      {&search, 1}, [this](std::span<models::Sequences> all) { return passes_->next_logits(all); },
      [](bool mine) { return mine; },
      {.context = std::min(model_->blueprint().sizes().context, corpus_.train.length()),
       .device = device_});
  model_->module().train();
  return readable_text(*corpus_.tokenizer, search->best(), end);
}

void Trainer::summarize() {
  curve_.sample = sampled_text();
  if (!shows_ || curve_.train.empty()) return;
  const double tokens =
      static_cast<double>(engine_.options().batch.train_samples * corpus_.train.length());
  const double rate =
      timed_.count() > 0 ? static_cast<double>(timed_tokens_) / timed_.count() : 0.0;
  const double flops = rate * model_->blueprint().flops_per_token(corpus_.train.length());
  curve_.title = fmt::format("{} on {}", arguments_.model.name, arguments_.data.path);
  curve_.facts = {
      {"data", corpus_.description},
      {"parameters", fmt::format("{}", model_->blueprint().parameter_count())},
      {"ranks", fmt::format("{}", engine_.group().size())},
      {"steps", fmt::format("{} of {}{:.0f} tokens, {} skipped", curve_.train.size(),
                            curriculum_ ? "up to " : "", tokens, engine_.progress().skipped)},
      {"time", clock_text(std::chrono::duration_cast<std::chrono::seconds>(timed_)) +
                   (first_step_ > 0 ? fmt::format(" since step {}", first_step_) : "")},
      {"speed", timed_tokens_ == 0
                    ? "unknown: the first step is not timed"
                    : fmt::format("{:.0f} tokens/s, {:.4g} TFLOP/s", rate, flops / 1e12)},
      {"training loss",
       fmt::format("{:.4f} -> {:.4f}", curve_.train.front().loss, curve_.train.back().loss)},
      {"validation loss", fmt::format("{:.4f}", curve_.validation.back().loss)},
      {"memory", store::to_text(engine_.ledger().peak())}};
  for (const auto& [name, value] : curve_.facts) {
    view_->note(fmt::format("{:<16} {}", name, value));
  }
  if (!curve_.sample.empty()) {
    view_->note(fmt::format("{:-<72}\n{}\n{:-<72}", "", curve_.sample, ""));
  }
  if (!arguments_.output.curve.empty()) {
    write_curve(arguments_.output.curve, curve_);
    view_->note("loss curve: " + arguments_.output.curve);
  }
  tell([this](page::RunPage& shown) {
    shown.finish();
    view_->note("run page: " + shown.path().string());
  });
}

}  // namespace capstan::cli::train
