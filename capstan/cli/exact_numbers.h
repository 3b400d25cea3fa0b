// Numbers on the command line mean what is written: none is cut off at the largest that fits,
// wrapped round, or read as octal.
#pragma once

namespace CLI {
class App;
}

namespace capstan::cli {

// For every option of `app` and its commands that takes a number. Once all are added.
void require_exact_numbers(CLI::App& app);

}  // namespace capstan::cli
