// One function per command of the `capstan` program; main.cpp and engine_main.cpp are the lists of them.
#pragma once

namespace CLI {
class App;
}

namespace capstan::cli {

// Each adds its subcommand to `app`; when that subcommand was chosen, its callback runs inside
// app.parse() and leaves the exit code in `exit_code`, which must outlive the app.

}  // namespace capstan::cli
