#include "capstan/checkpoint/safetensors.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

std::filesystem::path write_file(const test::TempFolder& folder, const std::string& bytes) {
  std::filesystem::path path = folder / "x.safetensors";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string refusal(const test::TempFolder& folder, const std::string& bytes) {
  const auto path = write_file(folder, bytes);
  return error_text([&] { read_safetensors(io::File::open(path, {})); });
}

TEST(Safetensors, WhatIsLaidOutIsReadBack) {
  const test::TempFolder folder;
  const std::vector<TensorSpec> specs = {{"a", Element::f32, {2, 3}},
                                         {"scalar", Element::i64, {}},
                                         {"none", Element::u8, {0, 4}},
                                         {"quote\"d", Element::bf16, {5}}};
  const Safetensors made = lay_out(specs, {{"format", "pt"}});
  EXPECT_EQ(made.tensors.front().begin % 64, 0);
  EXPECT_EQ(made.file_bytes, made.tensors.back().end());
  std::string bytes = made.header;
  bytes.resize(static_cast<std::size_t>(made.file_bytes), 'x');
  const auto path = write_file(folder, bytes);
  const Safetensors read = read_safetensors(io::File::open(path, {}));
  EXPECT_EQ(read.tensors, made.tensors);
  EXPECT_EQ(read.metadata, made.metadata);
}

TEST(Safetensors, DamagedFilesAreRefusedWithTheReason) {
  const test::TempFolder folder;
  const Safetensors made = lay_out({{"a", Element::f32, {2}}}, {});
  std::string whole = made.header + std::string(8, 'x');
  EXPECT_EQ(refusal(folder, whole), "");
  EXPECT_THAT(refusal(folder, ""), testing::HasSubstr("ends before its header"));
  EXPECT_THAT(refusal(folder, whole.substr(0, 20)), testing::HasSubstr("the header should have"));
  EXPECT_THAT(refusal(folder, whole + "y"), testing::HasSubstr("its header says"));
  EXPECT_THAT(refusal(folder, whole.substr(0, whole.size() - 1)),
              testing::HasSubstr("its header says"));
  std::string wrong = whole;
  wrong[8] = '[';
  EXPECT_THAT(refusal(folder, wrong), testing::HasSubstr("not JSON"));
  wrong = whole;
  wrong.replace(wrong.find("F32"), 3, "F99");
  EXPECT_THAT(refusal(folder, wrong), testing::HasSubstr("unknown type F99"));
  wrong = whole;
  wrong.replace(wrong.find("[2]"), 3, "[3]");
  EXPECT_THAT(refusal(folder, wrong), testing::HasSubstr("has 8 bytes"));
}

TEST(FilePlan, LargeColumnsAreSplitAndListedForHuggingFace) {
  const std::vector<ColumnSpec> columns = test_columns();
  const FilePlan one = plan_files(columns, 1'000'000);
  EXPECT_EQ(one.files.size(), 3U);
  EXPECT_EQ(one.files.front().name, "model.safetensors");
  EXPECT_EQ(weights_index(one), "");
  const FilePlan many = plan_files(columns, 6000);
  EXPECT_EQ(many.files.front().name, "model-00001-of-00002.safetensors");
  EXPECT_THAT(weights_index(many),
              testing::HasSubstr(R"("b": "model-00002-of-00002.safetensors")"));
  EXPECT_EQ(many.stored(many.place(kMasterColumn, "b")).spec.elems(), 7);
}

}  // namespace
}  // namespace capstan::checkpoint
