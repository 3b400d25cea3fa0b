// What the tests of checkpoint/ share: columns of known bytes, written by several ranks in turn.
#pragma once

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/folder.h"
#include "capstan/checkpoint/part.h"
#include "capstan/checkpoint/piece_writer.h"
#include "capstan/checkpoint/reader.h"
#include "capstan/checkpoint/save.h"
#include "tests/support/temp_folder.h"

namespace capstan::checkpoint {

// A byte that depends on its place and on the save it belongs to.
inline std::byte test_byte(std::int64_t at, int version) {
  return static_cast<std::byte>((at * 131 + at / 251 + version * 17) & 0xff);
}

inline std::vector<ColumnSpec> test_columns(std::int64_t rows = 1000) {
  return {
      {kModelColumn,
       {{"a", Element::bf16, {rows, 3}}, {"b", Element::bf16, {7}}, {"empty", Element::bf16, {0}}}},
      {kMasterColumn, {{"a", Element::f32, {rows, 3}}, {"b", Element::f32, {7}}}},
      {"optimizer.exp_avg", {{"a", Element::f32, {rows, 3}}, {"b", Element::f32, {7}}}}};
}

// The rank's share of every tensor: cut anywhere, here on four bytes.
inline std::vector<Piece> test_pieces(const std::vector<ColumnSpec>& columns, int rank, int ranks,
                                      int version) {
  std::vector<Piece> pieces;
  for (const ColumnSpec& column : columns) {
    for (const TensorSpec& tensor : column.tensors) {
      const auto cut = [&](int part) {
        return part == ranks ? tensor.bytes() : tensor.bytes() * part / ranks / 4 * 4;
      };
      if (cut(rank) == cut(rank + 1)) continue;
      pieces.push_back({column.name, tensor.name, cut(rank), cut(rank + 1),
                        [version](std::int64_t begin, std::span<std::byte> into) {
                          for (std::size_t i = 0; i < into.size(); ++i) {
                            into[i] = test_byte(begin + static_cast<std::int64_t>(i), version);
                          }
                        }});
    }
  }
  return pieces;
}

struct TestSave {
  std::filesystem::path folder;
  std::string tag = "step1";
  int ranks = 2;
  int version = 1;
  int keep_last = 0;
  bool latest = true;
  std::int64_t rows = 1000;
  std::int64_t max_file_bytes = 1'000'000'000;
};

// All phases of a save, the ranks one after another.
inline Committed save(const TestSave& how, Disk& disk) {
  const std::vector<ColumnSpec> columns = test_columns(how.rows);
  const FilePlan plan = plan_files(columns, how.max_file_bytes);
  const SaveRequest request{
      .folder = how.folder,
      .tag = how.tag,
      .latest = how.latest,
      .keep_last = how.keep_last,
      .state = {.world_size = how.ranks, .progress = {{"steps", how.version}}},
      .extra_files = {{"config.json", "{}\n"}}};
  const std::filesystem::path partial = begin_save(request, plan, disk);
  for (int rank = 0; rank < how.ranks; ++rank) {
    PieceWriter writer(plan, partial, {.bytes = 64 << 10}, disk);
    for (const Piece& piece : test_pieces(columns, rank, how.ranks, how.version)) {
      writer.write(piece);
    }
    write_part(partial, rank, writer.finish(), disk);
  }
  return commit_save(partial, request, plan, how.ranks, disk);
}

inline Committed save(const TestSave& how) {
  io::DurableCalls calls;
  Disk disk = system_disk(calls);
  return save(how, disk);
}

// The one that a load without a tag takes.
inline std::optional<Found> newest_complete(const std::filesystem::path& folder) {
  std::optional<Choice> choice = choose_newest(folder);
  if (!choice) return std::nullopt;
  return std::move(choice->taken);
}

// Whether every byte of the checkpoint is that of `version`.
inline bool holds_version(const std::filesystem::path& checkpoint, int version) {
  Reader reader(checkpoint);
  bool same = reader.index().state.progress.at("steps") == version;
  for (const Column& column : reader.index().columns) {
    for (const IndexTensor& tensor : column.tensors) {
      reader.read(tensor, 0, tensor.spec.bytes(),
                  [&](std::int64_t begin, std::span<const std::byte> bytes) {
                    for (std::size_t i = 0; i < bytes.size(); ++i) {
                      same = same &&
                             bytes[i] == test_byte(begin + static_cast<std::int64_t>(i), version);
                    }
                  });
    }
  }
  return same;
}

inline void flip_bit(const std::filesystem::path& path, std::int64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

// The text of the error that `body` throws; empty when it throws none.
template <typename Body>
std::string error_text(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace capstan::checkpoint
