// capstan generate: starts the ranks that make text, or becomes one.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/cli/command.h"
#include "capstan/cli/exec_engine.h"
#include "capstan/cli/generate/arguments.h"
#include "capstan/cli/generate/prompts.h"
#include "capstan/cli/start_ranks.h"

namespace capstan::cli {
namespace {

// Prompts from our stdin, which the ranks do not have, as a file that goes with this.
class PromptFile {
 public:
  explicit PromptFile(const generate::Arguments& arguments) {
    const std::vector<std::string> prompts = generate::read_prompts(arguments);
    const int fd = ::mkstemp(path_.data());
    if (fd >= 0) ::close(fd);
    std::ofstream file(path_);
    for (const std::string& prompt : prompts) file << prompt << "\n";
    if (fd >= 0 && file.flush()) return;
    throw IoError({.what = "cannot write the prompts for the ranks to read",
                   .where = path_,
                   .fix = "make room in the folder for temporary files, or set TMPDIR"});
  }
  ~PromptFile() { ::unlink(path_.c_str()); }
  PromptFile(const PromptFile&) = delete;
  PromptFile& operator=(const PromptFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "capstan-prompts-XXXXXX").string();
};

}  // namespace

void add_generate_command(CLI::App& app, int argc, char** argv, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "generate", "Go on from prompts with a trained GPT-2, its parameters wherever they fit");
  const auto arguments = std::make_shared<generate::Arguments>();
  generate::add_options(*command, *arguments);
  command->callback([arguments, argc, argv, &exit_code] {
    std::vector<std::string> words = own_words(argc, argv, "generate");
    const int ranks = arguments->ranks > 0 ? arguments->ranks : default_ranks(arguments->device, 1);
    calm_openmp_threads(arguments->config);
    if (generate::reads_stdin(*arguments) && ::isatty(STDIN_FILENO) != 0) {
      std::fputs("capstan: type prompts, one per line; Ctrl-D ends them\n", stderr);
    }
    if (started_as_rank() || ranks == 1) exec_engine(words);
    std::unique_ptr<PromptFile> file;
    if (generate::reads_stdin(*arguments)) {
      file = std::make_unique<PromptFile>(*arguments);
      words.insert(words.end(), {"--prompts", file->path()});
    }
    exit_code = start_ranks(ranks, words, [](int, bool) {});
  });
}

}  // namespace capstan::cli
