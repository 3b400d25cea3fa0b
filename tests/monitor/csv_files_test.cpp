#include "capstan/monitor/csv_files.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"
#include "tests/support/temp_folder.h"

namespace capstan::monitor {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(CsvFiles, HaveAFilePerFigureWithAHeaderAndRowsBySamples) {
  const test::TempFolder folder;
  const auto run = folder.path() / "out" / "a run";
  CsvFiles files(run);
  files.write({{"Train/Samples/lr", 0.001, 8}, {"Train/Samples/some thing", 2, 8}});
  files.write({{"Train/Samples/lr", 1e-5, 16}});
  EXPECT_EQ(text_of(run / "Train_Samples_lr.csv"), "step,lr\n8,0.001\n16,1e-05\n");
  EXPECT_EQ(text_of(run / "Train_Samples_some_thing.csv"), "step,some thing\n8,2\n");
}

TEST(CsvFiles, GoOnWithoutASecondHeader) {
  const test::TempFolder folder;
  for (const std::int64_t samples : {8, 16}) {
    CsvFiles(folder.path()).write({{"lr", 0.5, samples}});
  }
  EXPECT_EQ(text_of(folder.path() / "lr.csv"), "step,lr\n8,0.5\n16,0.5\n");
}

TEST(CsvFiles, SayWhenTheirFolderCannotBeMadeOrHasGone) {
  const test::TempFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_THROW(CsvFiles(folder.path() / "file" / "inside"), IoError);
  CsvFiles files(folder.path() / "run");
  files.write({{"lr", 0.5, 8}});
  std::filesystem::remove_all(folder.path() / "run");
  EXPECT_THROW(files.write({{"lr", 0.5, 16}}), IoError);
}

}  // namespace
}  // namespace capstan::monitor
