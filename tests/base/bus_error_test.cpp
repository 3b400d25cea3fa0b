#include "capstan/base/bus_error.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "capstan/base/guard.h"
#include "tests/support/temp_folder.h"

namespace capstan {
namespace {

void report(const std::string& /*text*/) {}

// A file that ends before the memory that it is used as: what a failed read looks like too.
int use_memory_without_file(int /*argc*/, char** argv) {
  std::ofstream(argv[0]) << "short";
  const int file = open(argv[0], O_RDWR);
  auto* const memory = static_cast<volatile char*>(
      mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  memory[1 << 19] = 1;
  return 0;
}

TEST(BusErrorDeathTest, InAProgramOfOursNamesTheFile) {
  const test::TempFolder folder;
  std::string path = (folder / "swap file").string();
  char* words[] = {path.data()};
  EXPECT_EXIT(run_guarded<report>(use_memory_without_file, 1, words),
              testing::ExitedWithCode(kExitUserError), "SIGBUS.*\n  where: .*/swap file\n  fix: ");
}

TEST(BusErrorDeathTest, ThatNoFileCausedEndsAsEver) {
  EXPECT_EXIT(
      {
        explain_bus_errors();
        raise(SIGBUS);
        raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace capstan
