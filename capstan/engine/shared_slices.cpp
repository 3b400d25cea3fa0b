#include "capstan/engine/shared_slices.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "capstan/base/text.h"
#include "capstan/engine/counts_text.h"
#include "capstan/engine/together.h"

namespace capstan::engine {
namespace {

using layout::Box;
using layout::TensorSlice;

constexpr char kFieldEnd = '\0';  // in no name

// Slices of the same tensor have the same name and shape.
using TensorId = std::pair<std::string, std::string>;

TensorId id_of(const shard::ParamSpec& param) {
  return {param.name, counts_text(param.slice->shape)};
}

// A slice takes four fields.
constexpr std::size_t kSliceFields = 4;

std::string to_text(const shard::Plan& plan) {
  std::string text;
  for (const shard::ParamSpec& param : plan.params) {
    if (!param.slice) continue;
    const auto& [name, shape] = id_of(param);
    for (const std::string& field : {name, shape, counts_text(param.slice->box.offset),
                                     counts_text(param.slice->box.length)}) {
      text += field + kFieldEnd;
    }
  }
  return text;
}

}  // namespace

void count_slices_once(shard::Plan& plan, comm::Group& tensor_ranks, c10::Device device) {
  const std::string mine = to_text(plan);
  std::map<TensorId, std::vector<Box>> before;  // of the ranks before this one
  for (int rank = 0; rank + 1 < tensor_ranks.size(); ++rank) {
    const std::vector<std::string> fields =
        split(text_from(tensor_ranks, device, mine, rank), kFieldEnd);
    if (rank >= tensor_ranks.rank()) continue;
    for (std::size_t i = 0; i + kSliceFields <= fields.size(); i += kSliceFields) {
      before[{fields[i], fields[i + 1]}].push_back(
          {read_counts(fields[i + 2]), read_counts(fields[i + 3])});
    }
  }
  for (shard::ParamSpec& param : plan.params) {
    if (!param.slice) continue;
    const auto others = before.find(id_of(param));
    if (others == before.end()) continue;
    std::vector<layout::ElemRange> left = layout::left_by(others->second, param.slice->box);
    const layout::ElemRange all{0, param.numel()};
    if (left != std::vector<layout::ElemRange>{all}) param.counted = std::move(left);
  }
}

}  // namespace capstan::engine
