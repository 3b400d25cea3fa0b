// Tensors that are saved in slices, as the ranks of a mesh own them, and read in any other way.
#include <cstring>
#include <numeric>
#include <random>

#include <gmock/gmock.h>

#include "capstan/checkpoint/copy.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/verify.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

using layout::Box;
using layout::ElemRange;
using testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

// The elements of a box of a tensor whose elements are counted: the slow way.
std::vector<std::int32_t> numbers_of(const Box& box, const Shape& shape) {
  std::vector<std::int32_t> numbers = {0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::int32_t> longer;
    for (const std::int32_t each : numbers) {
      for (std::int64_t i = 0; i < box.length[d]; ++i) {
        longer.push_back(static_cast<std::int32_t>(each * shape[d] + box.offset[d] + i));
      }
    }
    numbers = std::move(longer);
  }
  return numbers;
}

// Each slice is written by several ranks, each of which has a range of its elements.
Committed save_slices(const std::filesystem::path& folder, const TensorSpec& tensor,
                      const std::vector<Box>& boxes, int ranks, std::int64_t max_file_bytes) {
  const TensorSpec other{"other", Element::i32, {3}};
  const std::vector<ColumnSpec> columns = {
      {kModelColumn, {other, tensor, {"last", Element::i32, {3}}}, {{tensor.name, boxes}}}};
  const FilePlan plan = plan_files(columns, max_file_bytes);
  const SaveRequest request{.folder = folder, .tag = "step1", .state = {.world_size = ranks}};
  io::DurableCalls calls;
  Disk disk = system_disk(calls);
  const std::filesystem::path partial = begin_save(request, plan, disk);
  for (int rank = 0; rank < ranks; ++rank) {
    PieceWriter writer(plan, partial, {.bytes = 64 << 10}, disk);
    const auto write = [&](const std::string& name, const std::vector<std::int32_t>& numbers) {
      const auto cut = [&](int part) { return 4 * (std::ssize(numbers) * part / ranks); };
      writer.write({kModelColumn, name, cut(rank), cut(rank + 1),
                    [&](std::int64_t begin, std::span<std::byte> into) {
                      std::memcpy(into.data(), numbers.data() + begin / 4, into.size());
                    }});
    };
    write("other", {7, 8, 9});
    for (const Box& box : boxes) {
      write(slice_spec(tensor, box).name, numbers_of(box, tensor.shape));
    }
    write("last", {7, 8, 9});
    write_part(partial, rank, writer.finish(), disk);
  }
  return commit_save(partial, request, plan, ranks, disk);
}

std::vector<std::int32_t> read_numbers(Reader& reader, const IndexTensor& tensor, const Box& box,
                                       ElemRange elems) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(elems.size()));
  reader.read(tensor, box, 4 * elems.begin, 4 * elems.end,
              [&](std::int64_t begin, std::span<const std::byte> bytes) {
                std::memcpy(numbers.data() + begin / 4 - elems.begin, bytes.data(), bytes.size());
              });
  return numbers;
}

int draw(std::mt19937& random, std::int64_t from, std::int64_t to) {
  return static_cast<int>(from + static_cast<std::int64_t>(random() % (to - from + 1)));
}

std::vector<Box> cut(const Shape& shape, int cuts, std::mt19937& random) {
  std::vector<Box> boxes = {layout::whole_box(shape)};
  for (int i = 0; i < cuts; ++i) {
    Box& box = boxes[random() % boxes.size()];
    const std::size_t dim = random() % shape.size();
    if (box.length[dim] < 2) continue;
    Box rest = box;
    box.length[dim] = draw(random, 1, box.length[dim] - 1);
    rest.offset[dim] += box.length[dim];
    rest.length[dim] -= box.length[dim];
    boxes.push_back(rest);
  }
  return boxes;
}

TEST(Slices, AnyPartOfATensorIsReadHoweverItWasCut) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    Shape shape(static_cast<std::size_t>(draw(random, 1, 3)));
    for (std::int64_t& dim : shape) dim = draw(random, 1, 40);
    const TensorSpec spec{"w", Element::i32, shape};
    const test::TempFolder folder;
    const std::vector<Box> boxes = cut(shape, draw(random, 0, 6), random);
    const Committed saved = save_slices(folder.path(), spec, boxes, draw(random, 1, 3),
                                        round % 2 == 0 ? 1 << 30 : 2000);
    EXPECT_EQ(verify(saved.folder).problems, std::vector<std::string>{});
    Reader reader(saved.folder);
    const IndexTensor& tensor = reader.index().tensor(kModelColumn, "w");
    EXPECT_EQ(tensor.spec, spec);
    for (int part = 0; part < 10; ++part) {
      const Box box = cut(shape, 3, random).back();
      const int begin = draw(random, 0, box.elems());
      const ElemRange elems{begin, draw(random, begin, box.elems())};
      const std::vector<std::int32_t> all = numbers_of(box, shape);
      const std::vector<std::int32_t> expected(all.begin() + elems.begin, all.begin() + elems.end);
      ASSERT_EQ(read_numbers(reader, tensor, box, elems), expected);
    }
    const Box last = layout::whole_box(Shape{3});
    EXPECT_EQ(read_numbers(reader, reader.index().tensor(kModelColumn, "last"), last, {0, 3}),
              (std::vector<std::int32_t>{7, 8, 9}));
  }
}

// More than is put together at a time, in blocks that end elsewhere.
TEST(Slices, ALargeTensorIsPutTogetherPieceByPiece) {
  const Shape shape = {3000, 2500};
  const test::TempFolder folder;
  const std::vector<Box> columns = {{{0, 0}, {3000, 1100}}, {{0, 1100}, {3000, 1400}}};
  Reader reader(save_slices(folder.path(), {"w", Element::i32, shape}, columns, 2, 1 << 30).folder);
  const IndexTensor& tensor = reader.index().tensor(kModelColumn, "w");
  ASSERT_GT(tensor.spec.bytes(), kBlockBytes);
  for (const Box& box :
       {layout::whole_box(shape), Box{{1000, 0}, {2000, 2500}}, Box{{0, 600}, {3000, 1900}}}) {
    EXPECT_EQ(read_numbers(reader, tensor, box, {0, box.elems()}), numbers_of(box, shape));
  }
}

TEST(Slices, OnlyATensorThatIsCutMakesAnIndexOfTheThirdVersion) {
  const auto index_of = [](const std::vector<Box>& boxes) {
    const test::TempFolder folder;
    const Committed saved =
        save_slices(folder.path(), {"w", Element::i32, {4, 6}}, boxes, 2, 1 << 30);
    return read_text_file(saved.folder / kIndexFile);
  };
  const std::string whole = index_of({layout::whole_box(Shape{4, 6})});
  EXPECT_THAT(whole, HasSubstr("\"version\": 1"));
  EXPECT_EQ(whole.find("slices"), std::string::npos);
  const std::string cut = index_of({{{0, 0}, {4, 3}}, {{0, 3}, {4, 3}}});
  EXPECT_THAT(cut, HasSubstr("\"version\": 3"));
  EXPECT_THAT(cut, HasSubstr("\"offset\""));
  EXPECT_EQ(to_json(index_from_json(cut, "test")), cut);
}

TEST(Slices, ThatOverlapOrLeaveAGapAreRefused) {
  const std::vector<Box> halves = {{{0, 0}, {4, 3}}, {{0, 3}, {4, 3}}};
  const auto planned = [](const std::vector<Box>& boxes) {
    return error_text([&] {
      plan_files({{kModelColumn, {{"w", Element::i32, {4, 6}}}, {{"w", boxes}}}}, 1 << 30);
    });
  };
  EXPECT_EQ(planned(halves), "");
  EXPECT_THAT(planned({halves[0]}),
              HasSubstr("element [0, 3] of tensor 'w' is held by 0 slices instead of 1"));
  EXPECT_THAT(planned({halves[0], halves[1], {{2, 3}, {2, 1}}}),
              HasSubstr("element [2, 3] of tensor 'w' is held by 2 slices"));
  EXPECT_THAT(planned({halves[0], {{0, 3}, {4, 4}}}), HasSubstr("[0:4, 3:7] is not inside"));

  const test::TempFolder folder;
  const Index good = read_index(
      save_slices(folder.path(), {"w", Element::i32, {4, 6}}, halves, 2, 1 << 30).folder);
  const auto refused = [&](const std::function<void(std::vector<StoredSlice>&)>& change) {
    Index index = good;
    change(index.columns.front().tensors[1].slices);
    return error_text([&] { index_from_json(to_json(index), "test"); });
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_THAT(refused([](auto& slices) { slices.pop_back(); }), HasSubstr("held by 0 slices"));
  EXPECT_THAT(refused([](auto& slices) { slices.push_back(slices[0]); }),
              HasSubstr("held by 2 slices"));
  EXPECT_THAT(refused([](auto& slices) { slices[1].box.offset[1] = 4; }), HasSubstr("'offset'"));
  EXPECT_THAT(refused([](auto& slices) { slices[1].box.length[0] = 3; }), HasSubstr("'blocks'"));
  EXPECT_THAT(refused([](auto& slices) { slices[1].begin = 1 << 20; }),
              HasSubstr("extends past the end"));
  EXPECT_THAT(refused([](auto& slices) { slices[1].file = "other"; }),
              HasSubstr("not listed as a file of tensors"));
}

TEST(Slices, ADamagedOneIsNamed) {
  const test::TempFolder folder;
  const std::vector<Box> halves = {{{0, 0}, {4, 3}}, {{0, 3}, {4, 3}}};
  const Committed saved =
      save_slices(folder.path(), {"w", Element::i32, {4, 6}}, halves, 2, 1 << 30);
  Reader before(saved.folder);
  const StoredSlice slice = before.index().tensor(kModelColumn, "w").slices[1];
  flip_bit(saved.folder / slice.file, slice.begin + 5);
  Reader reader(saved.folder);
  const IndexTensor& tensor = reader.index().tensor(kModelColumn, "w");
  EXPECT_THAT(error_text([&] { read_numbers(reader, tensor, halves[1], {0, 12}); }),
              HasSubstr("tensor 'w[0:4, 3:6]' is damaged"));
  EXPECT_EQ(read_numbers(reader, tensor, halves[0], {0, 12}), numbers_of(halves[0], {4, 6}));
  EXPECT_EQ(verify(saved.folder).problems.size(), 1U);
}

TEST(Slices, ACopyPutsTheTensorTogether) {
  const test::TempFolder folder;
  const std::vector<Box> halves = {{{0, 0}, {4, 3}}, {{0, 3}, {4, 3}}};
  Reader from(save_slices(folder.path(), {"w", Element::i32, {4, 6}}, halves, 2, 1 << 30).folder);
  const Committed copied = copy_checkpoint(from, {folder / "copies", "copy"});
  Reader reader(copied.folder);
  const IndexTensor& tensor = reader.index().tensor(kModelColumn, "w");
  EXPECT_TRUE(tensor.is_whole());
  const Box whole = layout::whole_box(Shape{4, 6});
  EXPECT_EQ(read_numbers(reader, tensor, whole, {0, 24}), numbers_of(whole, {4, 6}));
}

}  // namespace
}  // namespace capstan::checkpoint
