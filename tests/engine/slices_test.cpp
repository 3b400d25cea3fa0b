// Parameters that are slices of larger tensors: what ranks of a mesh save together, another mesh
// loads.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/part.h"
#include "capstan/checkpoint/save.h"
#include "capstan/engine/columns_of_all.h"
#include "capstan/engine/stored_tensors.h"
#include "capstan/layout/partition.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace capstan::engine {
namespace {

using checkpoint::ColumnSpec;
using checkpoint::kModelColumn;
using layout::Box;
using layout::ElemRange;
using testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

const Shape kShape = {6, 10};
constexpr std::int64_t kRows = 5;  // that files hold; the last exists inside only

at::Tensor weight() { return torch::arange(60, at::kFloat).view({6, 10}); }
at::Tensor norm() { return torch::arange(7, at::kFloat); }

// Cut along one dimension between ranks of tensor parallelism, and each part between ranks of ZeRO.
struct Cut {
  std::size_t dim = 0;
  int tensor_ranks = 1;
  int zero_ranks = 1;

  int ranks() const { return tensor_ranks * zero_ranks; }
  Box box(int rank) const {
    Box box = layout::whole_box(kShape);
    const std::vector<std::int64_t> cuts = layout::even_cuts(kShape[dim], tensor_ranks);
    const auto part = static_cast<std::size_t>(rank / zero_ranks);
    box.offset[dim] = cuts[part];
    box.length[dim] = cuts[part + 1] - cuts[part];
    return box;
  }
  ElemRange range(std::int64_t elems, int rank) const {
    const std::vector<std::int64_t> cuts = layout::even_cuts(elems, zero_ranks);
    const auto part = static_cast<std::size_t>(rank % zero_ranks);
    return {cuts[part], cuts[part + 1]};
  }
};

at::Tensor part_of(const at::Tensor& whole, const Box& box) {
  return whole.narrow(0, box.offset[0], box.length[0])
      .narrow(1, box.offset[1], box.length[1])
      .contiguous()
      .view(-1);
}

// A weight that is cut, and a norm that every rank of tensor parallelism has.
StoredNames names_of(const Cut& cut, int rank) {
  shard::Plan plan;
  const Box box = cut.box(rank);
  plan.params.push_back({.name = "w", .sizes = box.length});
  if (cut.tensor_ranks > 1) plan.params.back().slice = {kShape, box};
  plan.params.push_back({.name = "norm", .sizes = {7}});
  return {plan, {.stored_as = {{"w", "w", kRows}}}};
}

std::vector<HeldElems> held_by(const Cut& cut, int rank) {
  const at::Tensor mine = part_of(weight(), cut.box(rank));
  const auto part = [&](int param, const at::Tensor& all) {
    const ElemRange range = cut.range(all.numel(), rank);
    return HeldElems{param, range, all.narrow(0, range.begin, range.size())};
  };
  std::vector<HeldElems> held = {part(0, mine)};
  if (rank < cut.zero_ranks) held.push_back(part(1, norm()));
  return held;
}

std::vector<ColumnSpec> columns_by(const Cut& cut, int rank) {
  const StoredNames names = names_of(cut, rank);
  ColumnSpec column{kModelColumn, {}};
  for (const int param : {0, 1}) names.add(param, checkpoint::Element::f32, column);
  return {column};
}

std::filesystem::path save(const std::filesystem::path& folder, const Cut& cut) {
  std::vector<std::vector<ColumnSpec>> columns;
  for (int rank = 0; rank < cut.ranks(); ++rank) columns.push_back(columns_by(cut, rank));
  const auto plan = checkpoint::plan_files(merge_columns(columns), checkpoint::kMaxFileBytes);
  const checkpoint::SaveRequest request{.folder = folder, .tag = "saved"};
  io::DurableCalls calls;
  checkpoint::Disk disk = checkpoint::system_disk(calls);
  const std::filesystem::path partial = checkpoint::begin_save(request, plan, disk);
  for (int rank = 0; rank < cut.ranks(); ++rank) {
    checkpoint::PieceWriter writer(plan, partial, {}, disk);
    for (const checkpoint::Piece& piece :
         pieces_of(kModelColumn, held_by(cut, rank), names_of(cut, rank))) {
      writer.write(piece);
    }
    checkpoint::write_part(partial, rank, writer.finish(), disk);
  }
  return checkpoint::commit_save(partial, request, plan, cut.ranks(), disk).folder;
}

// Elements that files do not hold stay 0.
void expect_loads(checkpoint::Reader& reader, const Cut& cut, int rank) {
  const StoredNames names = names_of(cut, rank);
  at::Tensor stored = weight();
  stored.narrow(0, kRows, 1).zero_();
  const at::Tensor expected = part_of(stored, cut.box(rank));
  const ElemRange range = cut.range(expected.numel(), rank);
  const at::Tensor target = torch::zeros({range.size()});
  const checkpoint::IndexTensor& tensor = *reader.find(kModelColumn, "w");
  EXPECT_EQ(tensor.spec.shape, names.spec(0, {}).shape);
  read_elems(reader, tensor, names.box(0), {0, range, target});
  EXPECT_TRUE(target.equal(expected.narrow(0, range.begin, range.size())));
  EXPECT_TRUE(read_tensor(reader, *reader.find(kModelColumn, "norm")).equal(norm()));
}

TEST(StoredSlices, OfOneMeshLoadIntoAnyOther) {
  const std::vector<Cut> cuts = {{0, 1, 1}, {0, 1, 3}, {0, 2, 1}, {1, 2, 2}, {0, 6, 1}, {1, 3, 3}};
  for (const Cut& from : cuts) {
    const test::TempFolder folder;
    checkpoint::Reader reader(save(folder.path(), from));
    const bool whole = reader.find(kModelColumn, "w")->is_whole();
    EXPECT_EQ(whole, from.tensor_ranks == 1);
    for (const Cut& to : cuts) {
      for (int rank = 0; rank < to.ranks(); ++rank) expect_loads(reader, to, rank);
    }
  }
}

TEST(StoredSlices, AllRanksPlanTheSameFilesFromWhatEachHas) {
  const Cut cut{1, 2, 2};
  run_ranks(4, [&](comm::Group& group) {
    const auto all = columns_of_all(group, at::kCPU, columns_by(cut, group.rank()));
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].tensors,
              (std::vector<checkpoint::TensorSpec>{{"w", checkpoint::Element::f32, {kRows, 10}},
                                                   {"norm", checkpoint::Element::f32, {7}}}));
    EXPECT_EQ(all[0].slices.at("w"),
              (std::vector<Box>{{{0, 0}, {kRows, 5}}, {{0, 5}, {kRows, 5}}}));
    EXPECT_EQ(all[0].slices.size(), 1U);
  });
}

// However many ranks there are: those of the same part of the model say the same.
TEST(StoredSlices, AreToldOnceByRanksThatHaveTheSame) {
  for (const int zero_ranks : {1, 4}) {
    const Cut cut{0, 2, zero_ranks};
    run_ranks(cut.ranks(), [&](comm::Group& group) {
      columns_of_all(group, at::kCPU, columns_by(cut, group.rank()));
      const comm::Counters counters = group.counters();
      EXPECT_EQ(counters[comm::OpKind::broadcast].calls, 2);
    });
  }
}

TEST(StoredSlices, MustBeOfTheParametersOwnShape) {
  run_ranks(1, [](comm::Group& group) {
    test::SmallModel model(4, 1, 3);
    shard::ModelView view = shard::view_model(*model);
    view.slices.resize(view.params.size());
    const auto weight = std::ranges::find(view.names, "entry.weight") - view.names.begin();
    const auto make = [&](const Box& box) {
      view.slices[static_cast<std::size_t>(weight)] = {Shape{8, 4}, box};
      const Engine engine(view, test::fp32_options(0), {.group = &group});
    };
    EXPECT_NO_THROW(make({{4, 0}, {4, 4}}));
    for (const Box& box : {Box{{4, 0}, {4, 3}}, Box{{5, 0}, {4, 4}}, Box{{4}, {4}}}) {
      EXPECT_THROW(make(box), InternalError);
    }
  });
}

TEST(StoredSlices, ATensorOfTwoShapesIsRefusedByAllRanks) {
  run_ranks(2, [](comm::Group& group) {
    const std::vector<ColumnSpec> mine = {
        {kModelColumn, {{"w", checkpoint::Element::f32, {3 + group.rank()}}}}};
    try {
      columns_of_all(group, at::kCPU, mine);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'w' is F32 [3] on one rank and F32 [4] on another"));
    }
  });
}

}  // namespace
}  // namespace capstan::engine
