#include "capstan/cli/launch_flags.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include "capstan/base/error.h"
#include "capstan/base/rank_env.h"
#include "capstan/base/text.h"
#include "capstan/cli/doctor/job_record.h"
#include "capstan/launch/plan.h"
#include "capstan/launch/ranks.h"
#include "capstan/launch/run.h"

namespace capstan::cli {
namespace {

std::string read_text_file(const std::string& path, const std::string& flag) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) {
    throw ConfigError({.what = fmt::format("cannot read the file \"{}\"", path),
                       .where = flag,
                       .fix = "check the path and the read permission"});
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// A file with this process's number, for scripts that stop the job later; removed at the end.
class PidFile {
 public:
  PidFile() : path_(std::filesystem::temp_directory_path() / fmt::format("{}.capstan", getpid())) {
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    const std::string text = fmt::format("{}\n", getpid());
    const bool written =
        fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (fd >= 0) close(fd);
    if (!written) {
      throw IoError({.what = fmt::format("cannot write \"{}\"", path_.string()),
                     .where = "--save_pid",
                     .fix = "remove that file, or set TMPDIR to a folder that can be written"});
    }
  }
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;
  ~PidFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

void add_place_flags(CLI::App& command, LaunchFlags& flags) {
  launch::Options& options = flags.options;
  command.add_option("-n,--num_gpus,--num_accelerators", options.ranks_per_host,
                     "Ranks per host (default: one per GPU, or one if there is none)");
  command.add_option("--num_nodes", options.host_count, "Use only the first N hosts");
  command.add_option("-H,--hostfile", flags.hostfile,
                     "A file with lines \"host slots=N\" (default: /job/hostfile if it exists)");
  command.add_option("-i,--include", options.include,
                     "Hosts and slots to use: host1@host2:0,2 (no slots: the whole host)");
  command.add_option("-e,--exclude", options.exclude, "Hosts and slots to leave out");
  command.add_option("--master_addr", options.master_addr, "The address of rank 0's host");
  command.add_option("--master_port", options.master_port,
                     "The port on that host (default: a free one)");
  const std::map<std::string, launch::Launcher> launchers = {
      {"auto", launch::Launcher::automatic}, {"local", launch::Launcher::local},
      {"ssh", launch::Launcher::ssh},        {"slurm", launch::Launcher::slurm},
      {"mpi", launch::Launcher::mpi},        {"openmpi", launch::Launcher::mpi},
      {"pdsh", launch::Launcher::ssh}};
  command.add_option("--launcher", options.launcher, "What starts the ranks")
      ->transform(CLI::Transformer(launchers, CLI::ignore_case).description(""))
      ->type_name("NAME:{auto,local,ssh,slurm,mpi}");
  command.add_option("--launcher_args", flags.launcher_args,
                     "Further arguments for ssh, srun or mpirun, in one quoted string");
  command.add_option("--ssh_port", options.ssh_port, "Port of the ssh servers");
  command.add_option("--node_rank", options.node_rank,
                     "This host's number, counted from 0; needed with --no_ssh");
  command.add_flag("--no_ssh", flags.no_ssh,
                   "Start only this host's ranks; run the same command on every host, each with "
                   "its --node_rank");
}

void add_rank_flags(CLI::App& command, LaunchFlags& flags) {
  launch::Options& options = flags.options;
  command.add_flag("--module", options.program.module, "Run a Python module instead of a script");
  command.add_flag("--no_python", flags.no_python, "Run a program that is not Python");
  command.add_flag("--no_local_rank", flags.no_local_rank,
                   "Do not insert --local_rank=N before the script's arguments");
  command.add_flag("--bind_cores_to_rank", options.bind_cores, "Bind each rank to its own cores");
  command.add_option("--bind_core_list", options.core_list,
                     "The cores to share among the ranks: 0,2-4,6");
  command.add_option("--env-file,--env_file", flags.env_file,
                     "A file with lines NAME=VALUE, environment variables for every rank");
  command.add_option("--grace", flags.grace_seconds,
                     "Seconds between asking a rank to stop and killing it (default: 15)");
  command.add_flag("--save_pid", flags.save_pid, "Write the launcher's process id to a file");
  command.add_option("--enable_each_rank_log", flags.log_folder,
                     "Also write one log file per rank into this folder");
  command.add_option("--log-dir,--log_dir", flags.run_folder,
                     "Leave in this folder what `capstan doctor` reads: each rank's log, how it "
                     "ended and what it waited for");
  command.add_flag("--no_prefix", flags.no_prefix, "Do not write [rank N] before each line");
  command.add_flag("--dry-run,--dry_run", flags.dry_run, "Show what would be started, and stop");
  command.add_flag("-q,--quiet", flags.quiet, "Print only the output of the ranks, and errors");
  command.footer("Everything after the script or program is passed to it as it is.");
}

namespace {

// Flags of other launchers that mean something we do differently: said by name, never ignored.
std::string fix_for_unknown_flag(const std::string& flag, const CLI::App& command) {
  if (flag.starts_with("--elastic") || flag.ends_with("elastic_nodes")) {
    return "elastic jobs are not available yet; start with a fixed number of ranks";
  }
  if (flag.starts_with("--nproc")) return "the number of ranks per host is -n N";
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string near = nearest_name(flag.substr(0, flag.find('=')), known);
  if (!near.empty()) return fmt::format("did you mean {}?", near);
  return "see capstan launch --help; a program's own flags come after its name";
}

}  // namespace

void take_program(const std::vector<std::string>& words, const CLI::App& command,
                  launch::Program& program) {
  program.words = words;
  if (words.empty() || !words.front().starts_with('-')) return;
  throw ConfigError({.what = fmt::format("capstan launch has no flag {}", words.front()),
                     .where = "capstan launch",
                     .fix = fix_for_unknown_flag(words.front(), command)});
}

std::chrono::milliseconds to_grace(double seconds) {
  constexpr double kMaxSeconds = 86400;
  if (!(seconds >= 0 && seconds <= kMaxSeconds)) {
    throw ConfigError({.what = fmt::format("the grace time is {} seconds", seconds),
                       .where = "--grace",
                       .fix = "use 0 to 86400"});
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void complete_options(LaunchFlags& flags) {
  launch::Options& options = flags.options;
  options.program.python = !flags.no_python;
  options.program.local_rank_argument = !flags.no_local_rank;
  options.grace = to_grace(flags.grace_seconds);
  options.launcher_args = launch::shell_split(flags.launcher_args, "--launcher_args");
  if (flags.no_ssh != (options.node_rank >= 0)) {
    throw ConfigError(
        {.what = "--no_ssh and --node_rank are used together",
         .where = flags.no_ssh ? "--no_ssh" : "--node_rank",
         .fix = "give both: every host runs the same command with its own --node_rank"});
  }
  const std::string usual_hostfile = "/job/hostfile";
  if (flags.hostfile.empty() && std::filesystem::exists(usual_hostfile)) {
    flags.hostfile = usual_hostfile;
  }
  if (!flags.hostfile.empty()) {
    options.hosts =
        launch::parse_hostfile(read_text_file(flags.hostfile, "--hostfile"), flags.hostfile);
  }
  if (!flags.env_file.empty()) {
    options.extra_env =
        launch::parse_env_file(read_text_file(flags.env_file, "--env-file"), flags.env_file);
  }
}

namespace {

// Where ranks leave their notes; empty: nobody asked.
std::string take_run_folder(LaunchFlags& flags) {
  if (flags.run_folder.empty()) return "";
  const std::filesystem::path folder = std::filesystem::absolute(flags.run_folder);
  if (flags.log_folder.empty()) flags.log_folder = folder / "logs";
  const std::string notes = folder / doctor::kFolder;
  flags.options.extra_env[kNotesVariable] = notes;
  return notes;
}

}  // namespace

int run_launch(LaunchFlags& flags) {
  complete_options(flags);
  const std::string notes = take_run_folder(flags);
  const launch::Machine machine = launch::this_machine();
  const launch::Plan plan = launch::make_plan(flags.options, machine);
  if (flags.dry_run) {
    std::fputs(launch::describe(plan, machine.env).c_str(), stdout);
    return 0;
  }
  const bool one_by_default = flags.options.ranks_per_host < 0 && flags.options.hosts.empty() &&
                              machine.devices.empty() && plan.world_size() == 1;
  if (one_by_default && !flags.quiet) {
    std::fputs("capstan: this machine has no visible GPU; starting one rank (-n N starts N)\n",
               stderr);
  }
  std::unique_ptr<PidFile> pid_file;
  if (flags.save_pid) {
    pid_file = std::make_unique<PidFile>();
    std::fprintf(stderr, "capstan: process %d, written to %s\n", getpid(),
                 pid_file->path().c_str());
  }
  launch::RunOptions run_options;
  run_options.prefix = !flags.no_prefix;
  run_options.log_folder = flags.log_folder;
  if (notes.empty()) return launch::run(plan, run_options).exit_code;
  return doctor::run_and_record(plan, run_options, notes,
                                launch::shell_join(flags.options.program.words));
}

void open_missing_standard_files() {
  for (int fd = 0; fd < 3; ++fd) {
    if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) < 0) return;
  }
}

}  // namespace capstan::cli
