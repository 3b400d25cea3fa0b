#include "capstan/checkpoint/copy.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "capstan/base/error.h"
#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/folder_lock.h"
#include "capstan/checkpoint/part.h"
#include "capstan/checkpoint/piece_writer.h"

namespace capstan::checkpoint {
namespace {

Piece piece_from(Reader& from, const std::string& column, const IndexTensor& tensor) {
  return {column, tensor.spec.name, 0, tensor.spec.bytes(),
          [&from, &tensor](std::int64_t begin, std::span<std::byte> into) {
            from.read(tensor, begin, begin + std::ssize(into),
                      [&](std::int64_t at, std::span<const std::byte> bytes) {
                        std::memcpy(into.data() + (at - begin), bytes.data(), bytes.size());
                      });
          }};
}

// What the saver gave along; the list of files is made anew.
std::vector<ExtraFile> extra_files(const Reader& from) {
  std::vector<ExtraFile> files;
  for (const FileFact& file : from.index().files) {
    const bool text = std::ranges::any_of(
        from.index().text_files, [&](const auto& each) { return each.second == file.name; });
    if (!file.sum || text || file.name.ends_with(".safetensors.index.json")) continue;
    files.push_back({file.name, from.read_extra_file(file.name)});
  }
  return files;
}

}  // namespace

Committed copy_checkpoint(Reader& from, const CopyTarget& to) {
  std::vector<ColumnSpec> columns;
  for (const Column& column : from.index().columns) {
    columns.push_back({column.name, {}});
    for (const IndexTensor& tensor : column.tensors) {
      columns.back().tensors.push_back(tensor.spec);
    }
  }
  const FilePlan plan = plan_files(columns, kMaxFileBytes);
  const SaveRequest request{.folder = to.folder,
                            .tag = to.tag,
                            .latest = to.latest,
                            .state = from.index().state,
                            .extra_files = extra_files(from)};
  const FolderLock lock(to.folder);
  const SaveTurn turn(lock);
  io::DurableCalls calls;
  Disk disk = system_disk(calls);
  const std::filesystem::path partial = begin_save(request, plan, disk);
  try {
    PieceWriter writer(plan, partial, {}, disk);
    for (const Column& column : from.index().columns) {
      for (const IndexTensor& tensor : column.tensors) {
        writer.write(piece_from(from, column.name, tensor));
      }
    }
    write_part(partial, 0, writer.finish(), disk);
  } catch (const Error&) {
    abandon_save(partial);
    throw;
  }
  return commit_save(partial, request, plan, 1, disk);
}

}  // namespace capstan::checkpoint
