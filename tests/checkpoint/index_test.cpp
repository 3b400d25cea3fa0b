#include "capstan/checkpoint/index.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/checkpoint/checksum.h"
#include "capstan/checkpoint/copy.h"
#include "capstan/checkpoint/deepspeed/export.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/hugging_face.h"
#include "capstan/checkpoint/verify.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

using testing::HasSubstr;

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// The index with `old` replaced, under the checksum that it then has: somebody made it so.
void forge_index(const std::filesystem::path& checkpoint, const std::string& old,
                 const std::string& replacement) {
  std::string text = read_text_file(checkpoint / kIndexFile);
  const std::size_t at = text.find(old);
  ASSERT_NE(at, std::string::npos) << old << "\n" << text;
  text.replace(at, old.size(), replacement);
  write_file(checkpoint / kIndexFile, text);
  write_file(checkpoint / kIndexChecksumFile,
             checksum_text(checksum(std::as_bytes(std::span(text)))) + "\n");
}

// What a reader and `verify` say of a checkpoint whose index was changed so; both must refuse it.
std::string refusal(const std::string& old, const std::string& replacement) {
  const test::TempFolder folder;
  const auto checkpoint = save({.folder = folder.path()}).folder;
  forge_index(checkpoint, old, replacement);
  const auto problems = verify(checkpoint).problems;
  EXPECT_FALSE(problems.empty()) << replacement;
  return error_text([&] { const Reader reader(checkpoint); });
}

TEST(Index, IsTheSameAfterWritingAndReading) {
  const test::TempFolder folder;
  Index index = read_index(save({.folder = folder.path()}).folder);
  index.state.loss_scale = {{"scale", 65536.0}, {"tolerance", 2}, {"last_overflow", -1}};
  index.state.client_state = R"({"epoch": 3, "name": "x\"y", "list": [1, 2.5, null]})";
  index.state.aliases = {{"head", "embedding"}};
  index.state.frozen = {"b"};
  index.state.data = R"({"position": 7})";
  const Index read = index_from_json(to_json(index), "test");
  EXPECT_EQ(read, index);
}

TEST(Index, NumbersThatNoRunHasAreRefusedByTheirKey) {
  EXPECT_THAT(refusal("\"steps\": 1", "\"steps\": -7"), HasSubstr("'steps'"));
  EXPECT_THAT(refusal("\"world_size\": 2", "\"world_size\": 1000000000000000000"),
              HasSubstr("'world_size'"));
  EXPECT_THAT(refusal("\"world_size\": 2", "\"world_size\": 0"), HasSubstr("'world_size'"));
  EXPECT_THAT(refusal("\"stage\": 0", "\"stage\": 4"), HasSubstr("'stage'"));
  EXPECT_THAT(refusal("\"sequence\": 1", "\"sequence\": 9223372036854775807"),
              HasSubstr("'sequence'"));
  EXPECT_THAT(refusal("\"data\": null", "\"data\": {\"position\": -5}"), HasSubstr("'position'"));
  EXPECT_THAT(refusal("\"loss_scale\": {}", "\"loss_scale\": {\"scale\": 0}"),
              HasSubstr("'loss_scale'"));
  EXPECT_THAT(refusal("\"loss_scale\": {}", "\"loss_scale\": {\"steps\": 1e300}"),
              HasSubstr("'loss_scale'"));
  EXPECT_THAT(refusal("\"begin\": ", "\"begin\": -"), HasSubstr("'begin'"));
  EXPECT_THAT(refusal("\"begin\": ", "\"begin\": 9"), HasSubstr("past the end of model"));
}

TEST(Index, SizesThatNoDiskHasAreRefused) {
  EXPECT_THAT(refusal("1000,\n      3", "4611686018427387904,\n 4611686018427387904"),
              HasSubstr("'shape'"));
  // A block of 8 EiB would be allocated to be checked.
  EXPECT_THAT(refusal("1000,\n      3", "1000000000000000,\n 3"), HasSubstr("'blocks'"));
  const std::string huge = refusal("\"bytes\": ", "\"bytes\": 46116860184273");
  EXPECT_EQ(huge, "") << "only the file's own size tells that it is wrong, and verify saw it";
}

TEST(Index, ABlockIsNeverLargerThanTheFormatAllows) {
  const test::TempFolder folder;
  Index index = read_index(save({.folder = folder.path()}).folder);
  IndexTensor& tensor = index.columns.front().tensors.front();
  tensor = IndexTensor::whole({"a", Element::bf16, {(kBlockBytes + 2) / 2}}, "model.safetensors",
                              tensor.slices.front().begin, {{kBlockBytes + 2, 0}});
  index.files.front().bytes = 2 * kBlockBytes;
  EXPECT_THAT(error_text([&] { index_from_json(to_json(index), "test"); }),
              HasSubstr("blocks of at most 16 MiB"));
  tensor.slices.front().blocks = {{kBlockBytes, 0}, {kBlockBytes + 2, 0}};
  EXPECT_EQ(error_text([&] { index_from_json(to_json(index), "test"); }), "");
}

TEST(Index, NothingIsListedTwiceAndWeightsAreThere) {
  const test::TempFolder folder;
  const Index good = read_index(save({.folder = folder.path()}).folder);
  const auto refused = [&](const std::function<void(Index&)>& change) {
    Index index = good;
    change(index);
    return error_text([&] { index_from_json(to_json(index), "test"); });
  };
  EXPECT_EQ(refused([](Index&) {}), "");
  EXPECT_THAT(refused([](Index& index) { index.columns.clear(); }), HasSubstr("no weights"));
  EXPECT_THAT(refused([](Index& index) { index.columns.front().tensors.clear(); }),
              HasSubstr("no weights"));
  EXPECT_THAT(refused([](Index& index) { index.columns.push_back(index.columns.back()); }),
              HasSubstr("column 'optimizer.exp_avg' is listed twice"));
  EXPECT_THAT(refused([](Index& index) { index.files.push_back(index.files.front()); }),
              HasSubstr("file 'model.safetensors' is listed twice"));
  EXPECT_THAT(refused([](Index& index) {
                auto& tensors = index.columns.front().tensors;
                tensors.push_back(tensors.front());
              }),
              HasSubstr("tensor 'a' is listed twice"));
  EXPECT_THAT(refused([](Index& index) { index.files.erase(index.files.begin()); }),
              HasSubstr("not listed as a file of tensors"));
}

TEST(Index, NamesAreNeverPathsToElsewhere) {
  for (const std::string name :
       {"../../evil.safetensors", "/etc/passwd", "..", "", ".hidden", "sub/model.safetensors"}) {
    EXPECT_THAT(refusal("\"file\": \"model.safetensors\"", "\"file\": \"" + name + "\""),
                HasSubstr("'file'"));
    EXPECT_THAT(refusal("\"name\": \"model.safetensors\"", "\"name\": \"" + name + "\""),
                HasSubstr("'name'"));
    EXPECT_THAT(refusal("\"name\": \"optimizer.exp_avg\"", "\"name\": \"" + name + "\""),
                HasSubstr("'name'"));
    EXPECT_THAT(refusal("\"tag\": \"step1\"", "\"tag\": \"" + name + "\""), HasSubstr("'tag'"));
  }
}

// A layout of others is read without an index of ours: what it names is checked where it is
// written.
TEST(Index, ACopyOrExportWritesNothingOutsideItsFolder) {
  const test::TempFolder folder;
  const Index good = read_index(save({.folder = folder.path()}).folder);
  const auto empty = [](const IndexTensor&, std::int64_t, std::span<std::byte>) {};
  const auto copy = [&](const std::function<void(Index&)>& change) {
    Index index = good;
    change(index);
    Reader reader(folder / "step1", index, empty);
    return error_text([&] { copy_checkpoint(reader, {folder / "copies", "copy"}); });
  };
  EXPECT_EQ(copy([](Index&) {}), "");
  EXPECT_THAT(copy([](Index& index) { index.columns.back().name = "../../x"; }),
              HasSubstr("'../../x.safetensors' cannot be the name of a file"));
  EXPECT_THAT(copy([](Index& index) {
                index.files.back().name = "../step1/config.json";  // there, so that it is read
              }),
              HasSubstr("cannot be the name of a file"));
  Index named = good;
  named.tag = "../outside";
  Reader reader(folder / "step1", named, empty);
  EXPECT_THAT(error_text([&] { export_deepspeed(reader, folder / "theirs", {}); }),
              HasSubstr("cannot be a checkpoint's tag"));
  EXPECT_FALSE(std::filesystem::exists(folder / "outside"));
}

TEST(HuggingFace, FilesOfTheListAreNamesInItsFolder) {
  const test::TempFolder folder;
  for (const std::string name : {"../model.safetensors", "/etc/hostname"}) {
    write_file(folder / "model.safetensors.index.json",
               R"({"weight_map": {"a": ")" + name + R"("}})");
    EXPECT_THAT(error_text([&] { open_hugging_face(folder.path()); }),
                HasSubstr("is a path, not the name of a file"));
  }
}

}  // namespace
}  // namespace capstan::checkpoint
