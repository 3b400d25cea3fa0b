// capstan checkpoint inspect, verify, convert, export, prune.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/base/text.h"
#include "capstan/checkpoint/copy.h"
#include "capstan/checkpoint/deepspeed/export.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/folder_lock.h"
#include "capstan/checkpoint/index.h"
#include "capstan/checkpoint/verify.h"
#include "capstan/cli/command.h"

namespace capstan::cli {
namespace {

namespace fs = std::filesystem;

struct CheckpointArguments {
  std::string folder;
  std::string tag;
  bool tensors = false;
  int keep = 0;
  std::string into;  // the folder to write to
  checkpoint::ExportOptions exporting;
};

ConfigError none_in(const fs::path& folder) {
  return ConfigError(
      {.what = "there is no checkpoint",
       .where = folder.string(),
       .fix = "name the folder that the checkpoints were saved to, or one checkpoint in it"});
}

// The checkpoints that a command speaks of: one by its tag, or FOLDER itself, or all in FOLDER.
std::vector<fs::path> chosen(const CheckpointArguments& arguments) {
  const fs::path folder = arguments.folder;
  if (arguments.tag.empty() && fs::exists(folder / checkpoint::kIndexFile)) return {folder};
  std::vector<fs::path> found;
  for (const checkpoint::Found& each : checkpoint::list_checkpoints(folder)) {
    if (each.folder.filename() == arguments.tag) return {each.folder};
    found.push_back(each.folder);
  }
  if (found.empty()) throw none_in(folder);
  if (!arguments.tag.empty()) {
    std::vector<std::string> tags;
    tags.reserve(found.size());
    for (const fs::path& each : found) tags.push_back(each.filename());
    throw ConfigError({.what = fmt::format("there is no checkpoint \"{}\"", arguments.tag),
                       .where = folder.string(),
                       .fix = fmt::format("choose one of: {}", fmt::join(tags, ", "))});
  }
  return found;
}

void print_column(const checkpoint::Column& column, bool tensors) {
  std::int64_t bytes = 0;
  std::int64_t elems = 0;
  for (const checkpoint::IndexTensor& tensor : column.tensors) {
    bytes += tensor.spec.bytes();
    elems += tensor.spec.elems();
  }
  const std::string_view type =
      column.tensors.empty() ? "" : name(column.tensors.front().spec.element);
  fmt::print("  {:<24} {:>5} tensors  {:>14} elements  {:<5} {}\n", column.name,
             column.tensors.size(), elems, type, format_bytes(bytes));
  if (!tensors) return;
  for (const checkpoint::IndexTensor& tensor : column.tensors) {
    for (const checkpoint::StoredSlice& slice : tensor.slices) {
      const checkpoint::TensorSpec stored = slice_spec(tensor.spec, slice.box);
      fmt::print("    {:<48} {:<24} {}\n", stored.name, to_text(stored), slice.file);
    }
  }
}

// One of the texts of the state; of a long one its size.
void print_text(const checkpoint::Index& index, const std::string& key, const char* name) {
  constexpr std::size_t kMost = 2000;
  const auto text = std::ranges::find(checkpoint::kTexts, key,
                                      [](const auto& each) { return std::string(each.first); });
  const std::string& found = index.state.*text->second;
  if (const auto file = index.text_files.find(key); file != index.text_files.end()) {
    const auto fact = std::ranges::find(index.files, file->second, &checkpoint::FileFact::name);
    fmt::print("  {} in {}, {}\n", name, file->second, format_bytes(fact->bytes));
  } else if (found.size() > kMost) {
    fmt::print("  {} of {}\n", name, format_bytes(std::ssize(found)));
  } else if (found != "null" && found != "{}") {
    fmt::print("  {} {}\n", name, found);
  }
}

void print_checkpoint(const fs::path& folder, bool tensors) {
  const checkpoint::Index index = checkpoint::read_index(folder);
  const checkpoint::TrainingState& state = index.state;
  fmt::print("{}\n", folder.string());
  fmt::print("  saved {}, number {} in its folder\n", index.saved_at, index.sequence);
  std::vector<std::string> dtypes;
  dtypes.reserve(state.precision.size());
  for (const auto& [kind, dtype] : state.precision)
    dtypes.push_back(fmt::format("{} {}", kind, dtype));
  fmt::print("  stage {} on {}; {}\n", state.stage, counted(state.world_size, "rank"),
             fmt::join(dtypes, ", "));
  std::vector<std::string> counters;
  counters.reserve(state.progress.size());
  for (const auto& [counter, value] : state.progress) {
    counters.push_back(fmt::format("{} {}", counter, value));
  }
  fmt::print("  {}\n", fmt::join(counters, ", "));
  if (!state.optimizer.empty()) {
    fmt::print("  optimizer {}: {}\n", state.optimizer, fmt::join(state.optimizer_states, ", "));
  }
  print_text(index, "data", "data");
  print_text(index, "client_state", "client state");
  for (const auto& [alias, owner] : state.aliases) fmt::print("  {} is {}\n", alias, owner);
  for (const checkpoint::Column& column : index.columns) print_column(column, tensors);
}

int inspect(const CheckpointArguments& arguments) {
  for (const fs::path& folder : chosen(arguments)) {
    const std::string problem = checkpoint::look_at(folder).problem;
    if (problem.empty()) {
      print_checkpoint(folder, arguments.tensors);
    } else {
      fmt::print("{}\n  NOT COMPLETE: {}\n", folder.string(), problem);
    }
  }
  return 0;
}

int verify_all(const CheckpointArguments& arguments) {
  int exit_code = 0;
  for (const fs::path& folder : chosen(arguments)) {
    const checkpoint::Verified verified = checkpoint::verify(folder);
    if (verified.problems.empty()) {
      fmt::print("{}: whole, {}, {}\n", folder.string(), counted(verified.tensors, "tensor"),
                 format_bytes(verified.bytes));
      continue;
    }
    exit_code = 1;
    fmt::print("{}: DAMAGED\n", folder.string());
    for (const std::string& problem : verified.problems) fmt::print("  {}\n", problem);
  }
  return exit_code;
}

int prune_folder(const CheckpointArguments& arguments) {
  // Before the lock, which would make the folder.
  if (checkpoint::list_checkpoints(arguments.folder).empty()) throw none_in(arguments.folder);
  const checkpoint::FolderLock lock(arguments.folder);
  io::DurableCalls calls;
  checkpoint::Disk disk = checkpoint::system_disk(calls);
  const auto removed = checkpoint::prune(arguments.folder, arguments.keep, disk);
  if (removed.empty()) {
    fmt::print("removed nothing: there are no more than {}\n", arguments.keep);
  } else {
    fmt::print("removed {}: {}\n", removed.size(), fmt::join(removed, ", "));
  }
  return 0;
}

int convert(const CheckpointArguments& arguments) {
  const auto found = checkpoint::find_deepspeed(arguments.folder, arguments.tag);
  if (!found) {
    throw ConfigError(
        {.what = "there is no DeepSpeed checkpoint",
         .where = (fs::path(arguments.folder) / arguments.tag).string(),
         .fix =
             "name the folder that DeepSpeed saved to, and add --tag if it has no file `latest`"});
  }
  const fs::path& from = *found;
  checkpoint::Reader reader = checkpoint::open_reader(from);
  const checkpoint::Committed committed =
      checkpoint::copy_checkpoint(reader, {arguments.into, from.filename().string()});
  fmt::print("{} -> {} ({})\n", from.string(), committed.folder.string(),
             format_bytes(committed.bytes));
  return 0;
}

int export_one(const CheckpointArguments& arguments) {
  std::vector<fs::path> candidates = chosen(arguments);
  const auto whole = std::find_if(candidates.begin(), candidates.end(), [](const fs::path& each) {
    return checkpoint::look_at(each).problem.empty();
  });
  // The newest complete one; where none is, the reader tells why.
  checkpoint::Reader reader(whole == candidates.end() ? candidates.front() : *whole);
  checkpoint::export_deepspeed(reader, arguments.into, arguments.exporting);
  fmt::print("{} -> {}/{}\n", reader.folder().string(), arguments.into, reader.index().tag);
  return 0;
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("checkpoint", "Inspect, verify, convert and prune checkpoints.");
  command->require_subcommand(1);
  const auto arguments = std::make_shared<CheckpointArguments>();
  const auto add = [&](const char* word, const char* says, int (*run)(const CheckpointArguments&)) {
    CLI::App* sub = command->add_subcommand(word, says);
    sub->add_option("FOLDER", arguments->folder,
                    "The folder with checkpoints, or one checkpoint in it")
        ->required();
    sub->callback([arguments, run, &exit_code] { exit_code = run(*arguments); });
    return sub;
  };
  CLI::App* inspection = add("inspect", "Print what is in each checkpoint.", inspect);
  inspection->add_option("--tag", arguments->tag, "Only the checkpoint with this tag");
  inspection->add_flag("--tensors", arguments->tensors, "Also list every tensor");
  CLI::App* check = add("verify", "Read every byte and compare checksums.", verify_all);
  check->add_option("--tag", arguments->tag, "Only the checkpoint with this tag");
  CLI::App* conversion =
      add("convert", "Convert a DeepSpeed checkpoint to Capstan's format.", convert);
  conversion->add_option("INTO", arguments->into, "The folder to write to")->required();
  conversion->add_option(
      "--tag", arguments->tag,
      "The checkpoint to convert (default: the one that the file `latest` names)");
  CLI::App* exporting =
      add("export", "Write a checkpoint that DeepSpeed can resume from.", export_one);
  exporting->add_option("INTO", arguments->into, "The folder to write to")->required();
  exporting->add_option("--tag", arguments->tag, "The checkpoint to export (default: the newest)");
  exporting
      ->add_option("--stage", arguments->exporting.stage, "ZeRO stage of the run that will resume")
      ->check(CLI::Range(0, 3));
  exporting
      ->add_option("--ranks", arguments->exporting.ranks,
                   "Number of ranks of the run that will resume")
      ->check(CLI::PositiveNumber);
  CLI::App* pruning = add("prune", "Remove all but the newest checkpoints.", prune_folder);
  pruning->add_option("--keep", arguments->keep, "How many checkpoints to keep")
      ->required()
      ->check(CLI::PositiveNumber);
}

}  // namespace capstan::cli
