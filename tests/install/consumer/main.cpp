// Uses the installed headers and library: prints a size, then the three parts of an error.
#include <iostream>

#include <capstan/base/error.h>
#include <capstan/base/text.h>

int main() {
  std::cout << capstan::format_bytes(3LL << 29) << "\n";
  try {
    throw capstan::ConfigError({.what = "no such stage: 7",
                                .where = "zero_optimization.stage",
                                .fix = "choose 0, 1, 2 or 3"});
  } catch (const capstan::Error& error) {
    std::cout << error.what() << "\n";
  }
}
