#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/json/reader.h"

namespace capstan::json {
namespace {

using ::testing::HasSubstr;

class SourceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "capstan_json_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file(const std::string& text) const {
    const auto path = folder_ / "run.json";
    std::ofstream(path) << text;
    return path;
  }

  std::filesystem::path folder_;
};

TEST_F(SourceFile, IsReadWithItsNameInEveryMessage) {
  const auto path = file("{\"stage\": 2}");
  EXPECT_EQ(*read_file(path).root.find("stage")->integer(), 2);
  EXPECT_EQ(*read_argument(path.string()).root.find("stage")->integer(), 2);
  try {
    read_file(file("{"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.info().where, HasSubstr("run.json:1:2"));
  }
}

TEST_F(SourceFile, MissingOrAFolderIsAConfigError) {
  EXPECT_THROW(read_file(folder_ / "none.json"), ConfigError);
  EXPECT_THROW(read_file(folder_), ConfigError);
  EXPECT_THROW(read_argument(folder_.string()), ConfigError);
  try {
    read_argument("no_such_run.json");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.info().what, "there is no such file");
  }
}

TEST(ReadArgument, TakesTextAndBothKindsOfBase64) {
  EXPECT_EQ(*read_argument(" {\"a\": 1}").root.find("a")->integer(), 1);
  // The text holds two question marks and two '>': letters that differ between the two alphabets.
  EXPECT_EQ(*read_argument("eyJhIjogIj8/Pj4ifQ==").root.find("a")->text(),
            std::string(2, '?') + ">>");
  EXPECT_EQ(*read_argument("eyJhIjogIj8_Pj4ifQ").root.find("a")->text(),
            std::string(2, '?') + ">>");
}

TEST(ReadArgument, NamesTheThreeFormsItTakes) {
  for (const std::string& bad :
       {std::string("nothing"), std::string(""), std::string("YWJj"), std::string(100000, 'A')}) {
    try {
      read_argument(bad);
      FAIL() << bad.substr(0, 20);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.info().fix, HasSubstr("base64"));
      EXPECT_LT(error.info().what.size(), 100U);
    }
  }
}

}  // namespace
}  // namespace capstan::json
