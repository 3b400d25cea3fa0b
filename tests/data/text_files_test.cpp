#include "capstan/data/text_files.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/support/temp_folder.h"

namespace capstan::data {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

TEST(ReadText, GathersTextInTheOrderOfPaths) {
  const test::TempFolder folder;
  const fs::path root = folder.path() / "root";
  write(root / "b.txt", "second");
  write(root / "a/z.md", "first");
  write(root / ".git/config", "hidden");
  write(root / "build/x.txt", "built");
  write(root / "picture.png", std::string("\x89PNG\0\1", 6));
  write(root / "empty.txt", "");
  write(root / "latin1.txt", "caf\xe9");
  write(root / "c.txt", "é ok");
  std::vector<std::string> texts;
  for (const Document& document : read_text(root)) texts.push_back(document.text);
  EXPECT_THAT(texts, testing::ElementsAre("first", "second", "é ok"));
}

TEST(ReadText, TakesFilesWithTheNamesAskedFor) {
  const test::TempFolder folder;
  write(folder.path() / "a/b.md", "one");
  write(folder.path() / "a/b.svg", "two");
  write(folder.path() / "c.txt", "three");
  std::vector<std::string> texts;
  for (const Document& document : read_text(folder.path(), {"*.md", "c.*"})) {
    texts.push_back(document.text);
  }
  EXPECT_THAT(texts, testing::ElementsAre("one", "three"));
  EXPECT_THROW(read_text(folder.path(), {"*.py"}), ConfigError);
}

TEST(ReadText, TakesASingleFileAsItIs) {
  const test::TempFolder folder;
  write(folder.path() / "latin1.txt", "caf\xe9");
  EXPECT_EQ(read_text(folder.path() / "latin1.txt")[0].text, "caf\xe9");
}

TEST(ReadText, SaysWhenThereIsNoText) {
  const test::TempFolder folder;
  EXPECT_THROW(read_text(folder.path()), ConfigError);
  EXPECT_THROW(read_text(folder.path() / "absent.txt"), IoError);
}

TEST(Tokenize, EndsEachDocument) {
  ByteTokenizer bytes;
  EXPECT_THAT(tokenize({{"x", "ab"}, {"y", "c"}}, bytes),
              testing::ElementsAre('a', 'b', 0, 'c', 0));
}

}  // namespace
}  // namespace capstan::data
