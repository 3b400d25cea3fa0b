#include "capstan/io/throughput.h"

#include <limits>

#include <gmock/gmock.h>

#include "capstan/base/error.h"
#include "capstan/io/space.h"
#include "tests/support/temp_folder.h"

namespace capstan::io {
namespace {

using testing::HasSubstr;

TEST(Throughput, MeasuresEveryPathAndLeavesNothingBehind) {
  const test::TempFolder folder;
  const Throughput measured =
      measure_throughput({.folder = folder.path(), .bytes = (3 << 20) + 5, .rounds = 2});
  EXPECT_GT(measured.plain.write_gb_per_s, 0);
  EXPECT_GT(measured.plain.read_gb_per_s, 0);
  ASSERT_EQ(measured.paths.size(), 2u);
  for (const PathRates& path : measured.paths) {
    EXPECT_EQ(path.unavailable.empty(), path.rates.read_gb_per_s > 0);
    EXPECT_EQ(path.unavailable.empty(), path.rates.write_gb_per_s > 0);
  }
  EXPECT_TRUE(measured.paths[1].unavailable.empty()) << "threads work everywhere";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Throughput, AMissingFolderIsAnErrorThatSaysHowToMakeIt) {
  const test::TempFolder folder;
  try {
    (void)measure_throughput({.folder = folder / "none", .bytes = 4096});
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.info().fix, HasSubstr("mkdir -p " + (folder / "none").string()));
  }
}

TEST(Throughput, MoreBytesThanTheDiskHasAreRefusedBeforeTheFirstWrite) {
  const test::TempFolder folder;
  try {
    (void)measure_throughput({.folder = folder.path(), .bytes = std::int64_t{1} << 60});
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.info().what, HasSubstr("are needed for the measurement"));
  }
}

TEST(Space, TellsWhatIsFreeAndRefusesWhatIsNot) {
  const test::TempFolder folder;
  const std::int64_t free = free_bytes(folder.path());
  EXPECT_GT(free, 0);
  EXPECT_NO_THROW(require_free_bytes(folder.path(), 0, "nothing"));
  EXPECT_THROW(
      require_free_bytes(folder.path(), std::numeric_limits<std::int64_t>::max(), "everything"),
      IoError);
  EXPECT_THROW((void)free_bytes(folder / "none"), IoError);
}

}  // namespace
}  // namespace capstan::io
