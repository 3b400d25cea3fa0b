#include "capstan/checkpoint/deepspeed/torch_archive.h"

#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/checkpoint/deepspeed/files.h"
#include "capstan/checkpoint/deepspeed/python_json.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {
namespace {

using std::string_literals::operator""s;
using testing::HasSubstr;

template <typename Number>
std::string raw(Number value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// What the directory of a zip file says of its one member, in 64 bits.
struct Said {
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
};

std::string zip_of(const std::string& name, const std::string& contents, const Said& said) {
  std::string file = "PK\3\4"s + std::string(22, '\0') +
                     raw(static_cast<std::uint16_t>(name.size())) + raw(std::uint16_t{0}) + name +
                     contents;
  const auto directory = static_cast<std::uint32_t>(file.size());
  const std::string extra = raw(std::uint16_t{1}) + raw(std::uint16_t{24}) + raw(said.bytes) +
                            raw(said.bytes) + raw(said.offset);
  file += "PK\1\2"s + std::string(16, '\0') + std::string(8, '\xff') +
          raw(static_cast<std::uint16_t>(name.size())) +
          raw(static_cast<std::uint16_t>(extra.size())) + std::string(10, '\0') +
          std::string(4, '\xff') + name + extra;
  const auto size = static_cast<std::uint32_t>(file.size()) - directory;
  return file + "PK\5\6"s + std::string(4, '\0') + raw(std::uint16_t{1}) + raw(std::uint16_t{1}) +
         raw(size) + raw(directory) + raw(std::uint16_t{0});
}

std::string archive_refusal(const std::string& bytes) {
  const test::TempFolder folder;
  std::ofstream(folder / "x.pt", std::ios::binary) << bytes;
  return error_text([&] { const TorchArchive archive(folder / "x.pt"); });
}

TEST(Archive, MembersThatNoFileHoldsAreRefused) {
  const std::string pickle = "N.";
  EXPECT_EQ(archive_refusal(zip_of("x/data.pkl", pickle, {.bytes = 2})), "");
  for (const std::uint64_t bytes :
       {std::uint64_t{1'000}, std::uint64_t{1} << 40U, std::uint64_t{1} << 63U,
        ~std::uint64_t{0} - 30, ~std::uint64_t{0}}) {
    EXPECT_THAT(archive_refusal(zip_of("x/data.pkl", pickle, {.bytes = bytes})),
                HasSubstr("truncated"));
  }
  for (const std::uint64_t offset : {std::uint64_t{1'000}, std::uint64_t{1} << 63U}) {
    EXPECT_THAT(archive_refusal(zip_of("x/data.pkl", pickle, {.bytes = 2, .offset = offset})),
                HasSubstr("the file has only"));
  }
}

TEST(Archive, PartsOfATensorAreInsideIt) {
  const test::TempFolder folder;
  std::ofstream(folder / "x.pt", std::ios::binary) << zip_of("x/data.pkl", "N.", {.bytes = 2});
  const TorchArchive archive(folder / "x.pt");
  constexpr std::int64_t kFar = std::int64_t{1} << 62U;
  EXPECT_THAT(error_text([&] {
                archive.span_of({.storage = "0", .offset = kFar, .shape = {3}, .stride = {1}});
              }),
              HasSubstr("bytes are missing"));
  const PyTensor none{.storage = "0", .shape = {0}, .stride = {1}};
  for (const auto& [begin, elems] : {std::pair<std::int64_t, std::int64_t>{-1, 1},
                                     {0, -1},
                                     {kFar, kFar},
                                     {std::numeric_limits<std::int64_t>::max(), 1}}) {
    EXPECT_THAT(error_text([&] { part_of(archive, none, begin, elems); }),
                HasSubstr("of a tensor that has 0"));
  }
}

TEST(PythonJson, KeysAreTextAndTheLastOfEqualOnesCounts) {
  const PyRef twice = py_dict({{py_text("a"), py_int(1)}, {py_text("a"), py_int(2)}});
  EXPECT_EQ(*to_json(*twice, "x").find("a")->integer(), 2);
  EXPECT_EQ(to_json(*twice, "x").object()->size(), 1U);
  const PyRef none = py_dict({{py_none(), py_int(1)}});
  EXPECT_THAT(error_text([&] { to_json(*none, "client_state.a"); }),
              HasSubstr("'client_state.a' has a key"));
}

}  // namespace
}  // namespace capstan::checkpoint
