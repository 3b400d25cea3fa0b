#include "capstan/checkpoint/save.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <system_error>
#include <utility>

#include <unistd.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/file_name.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/index.h"
#include "capstan/checkpoint/part.h"
#include "capstan/io/failure.h"

namespace capstan::checkpoint {
namespace {

constexpr const char* kPartialMark = ".partial-";
constexpr std::int64_t kMaxInlineBytes = 256 << 10;
constexpr int kMaxInlineDepth = 32;
constexpr const char* kReplaced = ".replaced";
constexpr const char* kBegunFile = "begun";  // made last, when every other file is there

// Of this process, so that engines beside us in it are left alone.
std::string own_partial_suffix() {
  std::array<char, 65> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("{}{}-{}", kPartialMark, host.data(), ::getpid());
}

// Out of sight first: what is half removed must not look like a checkpoint.
void remove_replaced(const std::filesystem::path& replaced) {
  const std::filesystem::path hidden =
      replaced.parent_path() / ("." + replaced.filename().string());
  std::error_code ignored;
  std::filesystem::remove_all(hidden, ignored);
  std::filesystem::rename(replaced, hidden, ignored);
  std::filesystem::remove_all(hidden, ignored);
}

// Whether `folder` is a checkpoint that a newer one of its tag has replaced.
bool is_replaced(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.ends_with(kReplaced) || !look_at(folder).problem.empty()) return false;
  const std::string tag = name.substr(0, name.size() - std::string_view(kReplaced).size());
  return look_at(folder.parent_path() / tag).problem.empty();
}

void remove_dead_saves(const std::filesystem::path& folder) {
  const std::string own = own_partial_suffix();
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    entries.push_back(at->path());
  }
  for (const std::filesystem::path& entry : entries) {
    const std::string name = entry.filename().string();
    const bool partial = name.find(kPartialMark) != std::string::npos && !name.ends_with(own);
    const bool removed = name.ends_with(".removed") || name.ends_with(kReplaced);
    std::error_code ignored;
    if (name.starts_with('.') && (partial || removed)) {
      std::filesystem::remove_all(entry, ignored);
    } else if (is_replaced(entry)) {
      remove_replaced(entry);
    }
  }
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw io::io_failure({.verb = "make folder", .file = folder}, error.value());
}

// Columns and files may be named by a checkpoint from elsewhere that is copied.
void check_file_name(const std::string& name) {
  if (is_plain_name(name) && name != kIndexFile && name != kIndexChecksumFile) return;
  throw ConfigError({.what = fmt::format("'{}' cannot be the name of a file in a checkpoint", name),
                     .where = "checkpoint",
                     .fix = "use a plain name that is not one of the checkpoint's own files"});
}

void make_file(const std::filesystem::path& partial, const PlannedFile& planned, Disk& disk) {
  io::File file = io::File::open(partial / planned.name, {.access = io::Access::create});
  file.reserve(planned.contents.file_bytes);
  write_bytes(file, 0, std::as_bytes(std::span(planned.contents.header)), disk.calls);
  sync_file(file, disk.calls);
}

// Blocks of all ranks, by file and tensor.
std::vector<std::vector<std::vector<WrittenBlock>>> gather_blocks(
    const std::filesystem::path& partial, const FilePlan& plan, int ranks) {
  std::vector<std::vector<std::vector<WrittenBlock>>> blocks(plan.files.size());
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    blocks[f].resize(plan.files[f].contents.tensors.size());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto part = read_part(partial, rank);
    if (!part || !part->error.empty()) {
      throw IoError({.what = fmt::format("rank {} did not write its part: {}", rank,
                                         part ? part->error : "it left no note"),
                     .where = partial.string(),
                     .fix = "nothing was saved; older checkpoints are untouched"});
    }
    for (const WrittenBlock& block : part->blocks) {
      blocks.at(static_cast<std::size_t>(block.file))
          .at(static_cast<std::size_t>(block.tensor))
          .push_back(block);
    }
  }
  return blocks;
}

StoredSlice index_slice(const PlannedFile& file, const StoredTensor& stored,
                        std::vector<WrittenBlock> written) {
  std::sort(written.begin(), written.end(),
            [](const WrittenBlock& a, const WrittenBlock& b) { return a.begin < b.begin; });
  StoredSlice slice{.box = layout::whole_box(stored.spec.shape),
                    .file = file.name,
                    .begin = stored.begin,
                    .blocks = {}};
  std::int64_t next = 0;
  for (const WrittenBlock& block : written) {
    if (block.begin != next) break;
    next = block.end;
    slice.blocks.push_back({block.end, block.sum});
  }
  if (next != stored.spec.bytes() || slice.blocks.size() != written.size()) {
    throw InternalError({.what = fmt::format("'{}' of {}: the ranks' pieces leave a gap or overlap "
                                             "at byte {}",
                                             stored.spec.name, file.name, next)});
  }
  return slice;
}

// A whole tensor, or one more slice of the last one.
void add_stored(std::vector<IndexTensor>& tensors, const TensorSpec& stored,
                const PlannedSlice* planned, StoredSlice slice) {
  if (planned == nullptr) {
    tensors.push_back({stored, {std::move(slice)}});
    return;
  }
  slice.box = planned->box;
  if (tensors.empty() || tensors.back().spec.name != planned->tensor.name) {
    tensors.push_back({planned->tensor, {}});
  }
  tensors.back().slices.push_back(std::move(slice));
}

Index make_index(const std::filesystem::path& partial, const SaveRequest& request,
                 const FilePlan& plan, int ranks) {
  const auto blocks = gather_blocks(partial, plan, ranks);
  Index index{.tag = request.tag, .sequence = next_sequence(request.folder)};
  index.latest = request.latest;
  index.saved_at = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  index.state = request.state;
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    const PlannedFile& file = plan.files[f];
    if (index.columns.empty() || index.columns.back().name != file.column) {
      index.columns.push_back({file.column, {}});
    }
    for (std::size_t t = 0; t < file.contents.tensors.size(); ++t) {
      const StoredTensor& stored = file.contents.tensors[t];
      const auto planned = plan.slices.find({file.column, stored.spec.name});
      add_stored(index.columns.back().tensors, stored.spec,
                 planned == plan.slices.end() ? nullptr : &planned->second,
                 index_slice(file, stored, blocks[f][t]));
    }
    index.files.push_back({file.name, file.contents.file_bytes, std::nullopt});
  }
  return index;
}

int nesting_of(const std::string& text) {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++depth);
    } else if (!quoted && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return deepest;
}

// Texts that would make the index slow to read, or that its reader would refuse, leave it for files
// of their own, which nobody but their owner looks into.
std::vector<ExtraFile> take_out_large_texts(Index& index) {
  std::vector<ExtraFile> files;
  for (const auto& [key, member] : kTexts) {
    std::string& text = index.state.*member;
    if (std::ssize(text) <= kMaxInlineBytes && nesting_of(text) <= kMaxInlineDepth) continue;
    const std::string name = fmt::format("state.{}.json", key);
    files.push_back({name, std::exchange(text, "null")});
    index.text_files[key] = name;
  }
  return files;
}

// What was written is read again: a checkpoint that cannot be loaded is no checkpoint.
void check_written(const std::filesystem::path& partial, const std::string& index_text,
                   const std::vector<ExtraFile>& files) {
  std::string problem;
  try {
    if (to_json(read_index(partial)) != index_text) problem = "the index reads differently";
    for (const ExtraFile& file : files) {
      if (read_text_file(partial / file.name) != file.text)
        problem = file.name + " has different bytes";
    }
  } catch (const Error& error) {
    problem = error.info().what;
  }
  if (problem.empty()) return;
  throw IoError({.what = "what was written cannot be read back: " + problem,
                 .where = partial.parent_path().string(),
                 .fix = "nothing was saved and older checkpoints are untouched; check the disk, "
                        "and the values that you add to the checkpoint beside the model"});
}

void write_extra_files(const std::filesystem::path& partial, const std::vector<ExtraFile>& files,
                       Index& index, Disk& disk) {
  for (const ExtraFile& file : files) {
    write_text_file(partial / file.name, file.text, disk.calls);
    index.files.push_back(
        {file.name, std::ssize(file.text), checksum(std::as_bytes(std::span(file.text)))});
  }
}

// Gives the finished folder its name. A complete checkpoint of that name goes: exchanged in one
// step where the file system can, elsewhere under a name that a load still takes while neither has
// the tag. Anything else of that name, a damaged checkpoint or another program's files, is set
// aside.
void give_name(const std::filesystem::path& partial, const SaveRequest& request, Disk& disk) {
  const std::filesystem::path name = request.folder / request.tag;
  const std::filesystem::path before = request.folder / (request.tag + kReplaced);
  std::error_code error;
  const bool taken = std::filesystem::exists(std::filesystem::symlink_status(name, error));
  const bool complete = taken && look_at(name).problem.empty();
  if (taken && !complete) set_aside(request.folder, request.tag, disk);
  if (complete && disk.calls.exchange(partial, name) == 0) {
    io::sync_folder(request.folder, disk.calls);
    abandon_save(partial);  // the name now stands for what was there before
    return;
  }
  if (complete && disk.calls.rename(name, before) != 0) {
    throw io::io_failure({.verb = "rename to", .file = before}, errno);
  }
  if (disk.calls.rename(partial, name) != 0) {
    const int reason = errno;
    if (complete) disk.calls.rename(before, name);
    throw io::io_failure({.verb = "rename to", .file = name}, reason);
  }
  io::sync_folder(request.folder, disk.calls);
  if (complete) remove_replaced(before);
}

Committed commit(const std::filesystem::path& partial, const SaveRequest& request,
                 const FilePlan& plan, int ranks, Disk& disk) {
  Index index = make_index(partial, request, plan, ranks);
  std::vector<ExtraFile> extra = request.extra_files;
  if (std::string text = weights_index(plan); !text.empty()) {
    extra.push_back({"model.safetensors.index.json", std::move(text)});
  }
  for (ExtraFile& file : take_out_large_texts(index)) extra.push_back(std::move(file));
  write_extra_files(partial, extra, index, disk);
  const std::string text = to_json(index);
  write_text_file(partial / kIndexFile, text, disk.calls);
  write_text_file(partial / kIndexChecksumFile,
                  checksum_text(checksum(std::as_bytes(std::span(text)))) + "\n", disk.calls);
  check_written(partial, text, extra);
  std::error_code ignored;
  std::filesystem::remove(partial / kBegunFile, ignored);
  for (int rank = 0; rank < ranks; ++rank) {
    std::filesystem::remove(part_path(partial, rank), ignored);
  }
  io::sync_folder(partial, disk.calls);
  give_name(partial, request, disk);
  if (request.latest) write_latest(request.folder, request.tag, disk);
  return {request.folder / request.tag, index.sequence, plan.bytes(),
          prune(request.folder, request.keep_last, disk)};
}

}  // namespace

std::filesystem::path partial_path(const SaveRequest& request) {
  return request.folder / fmt::format(".{}{}", request.tag, own_partial_suffix());
}

bool save_has_begun(const std::filesystem::path& partial) {
  std::error_code missing;
  return std::filesystem::exists(partial / kBegunFile, missing);
}

std::filesystem::path begin_save(const SaveRequest& request, const FilePlan& plan, Disk& disk) {
  check_tag(request.tag);
  for (const PlannedFile& file : plan.files) check_file_name(file.name);
  for (const ExtraFile& file : request.extra_files) check_file_name(file.name);
  make_folder(request.folder);
  remove_dead_saves(request.folder);
  for (const Found& damaged : request.damaged) {
    std::error_code gone;
    const bool here =
        std::filesystem::equivalent(damaged.folder.parent_path(), request.folder, gone);
    // A tag that was saved anew since then is another checkpoint.
    if (here && look_at(damaged.folder).sequence == damaged.sequence) {
      set_aside(request.folder, damaged.tag, disk);
    }
  }
  const std::filesystem::path partial = partial_path(request);
  try {
    std::error_code ignored;
    std::filesystem::remove_all(partial, ignored);
    make_folder(partial);
    for (const PlannedFile& file : plan.files) make_file(partial, file, disk);
    write_text_file(partial / kBegunFile, "", disk.calls);
    io::sync_folder(partial, disk.calls);
  } catch (const Error&) {
    abandon_save(partial);
    throw;
  }
  return partial;
}

Committed commit_save(const std::filesystem::path& partial, const SaveRequest& request,
                      const FilePlan& plan, int ranks, Disk& disk) {
  try {
    return commit(partial, request, plan, ranks, disk);
  } catch (const Error&) {
    abandon_save(partial);
    throw;
  }
}

void abandon_save(const std::filesystem::path& partial) noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(partial, ignored);
}

}  // namespace capstan::checkpoint
