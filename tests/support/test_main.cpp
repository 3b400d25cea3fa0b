// The main() of every test program.
#include <gmock/gmock.h>

#include "capstan/base/cpu_isa.h"

int main(int argc, char** argv) {
  capstan::avoid_broken_amx();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
