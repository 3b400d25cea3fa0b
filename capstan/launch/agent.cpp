#include "capstan/launch/agent.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "capstan/base/rank_env.h"
#include "capstan/base/text.h"
#include "capstan/launch/network.h"
#include "capstan/launch/process_set.h"
#include "capstan/launch/ranks.h"
#include "capstan/launch/wire.h"

namespace capstan::launch {
namespace {

using std::chrono::milliseconds;

class Agent final : public ProcessEvents {
 public:
  // `in` and `out` may be the same; both stay open while this lives.
  Agent(const AgentOptions& options, const Share& share, Machine machine, int in, int out)
      : options_(options),
        share_(share),
        machine_(std::move(machine)),
        in_(in),
        out_(poller_, out),
        processes_(poller_, signals_, *this) {}

  int run(const std::string& token);

  void on_output(std::size_t index, Stream stream, std::string_view line, char end) override {
    const std::string verb = stream == Stream::out ? "out" : "err";
    out_.add(encode({end == '\r' ? verb + "bar" : verb, rank_of(index), std::string(line)}));
  }
  void on_exit(std::size_t index, const Ending& ending) override {
    endings_.emplace_back(rank_of(index), ending);
  }

 private:
  int rank_of(std::size_t index) const {
    return share_.first_rank + share_.begin + static_cast<int>(index);
  }
  void read_orders();
  void obey(const Message& order);
  void start(const Master& master);
  void stop(int number);
  void handle_signals();
  void turn();
  std::string own_address() const;

  const AgentOptions& options_;
  Share share_;
  Machine machine_;
  int in_;
  Poller poller_;
  SignalWatch signals_;
  OutputQueue out_;
  ProcessSet processes_;
  LineSplitter orders_{false, kMaxVariableBytes + 64};
  std::vector<std::pair<int, Ending>> endings_;
  bool started_ = false;
  bool stopping_ = false;
};

// The address under which ssh reached this host works for other hosts as well, which a nickname
// from the user's ssh configuration does not.
std::string Agent::own_address() const {
  const auto ssh = machine_.env.find("SSH_CONNECTION");
  if (ssh != machine_.env.end()) {
    const std::vector<std::string> words = split(ssh->second, ' ');
    if (words.size() == 4) return words[2];
  }
  return machine_.host_name;
}

void Agent::read_orders() {
  std::array<char, 4096> buffer;  // NOLINT: filled by read()
  const ssize_t got = ::read(in_, buffer.data(), buffer.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    // The launcher is gone: nobody will ever ask for these ranks again.
    poller_.unwatch_readable(in_);
    stop(SIGTERM);
    return;
  }
  orders_.feed({buffer.data(), static_cast<std::size_t>(got)},
               [&](std::string_view line, char) { obey(decode(line)); });
}

void Agent::obey(const Message& order) {
  if (order.verb == "start" && !started_ && !stopping_) {
    start({order.text, order.number});
  } else if (order.verb == "env") {
    const auto [name, value] = variable_from_message(order);
    machine_.env[name] = value;
  } else if (order.verb == "redraw") {
    processes_.split_at_return(order.number != 0);
  } else if (order.verb == "signal") {
    processes_.signal_all(order.number);
  } else if (order.verb == "stop") {
    stop(order.number);
  }
}

void Agent::start(const Master& master) {
  started_ = true;
  try {
    std::vector<Process> processes =
        rank_processes(share_, options_.program, options_.command, machine_.env);
    set_master(processes, master);
    assign_cores(processes, share_, options_.binding, machine_);
    for (const Process& process : processes) processes_.start(process);
  } catch (const Error& error) {
    out_.add(encode({"failed", rank_of(0), error.what()}));
    stop(SIGTERM);
  }
}

void Agent::stop(int number) {
  processes_.stop(stopping_ ? SIGKILL : number, options_.grace);
  stopping_ = true;
}

void Agent::handle_signals() {
  while (const std::optional<int> number = signals_.take()) {
    if (*number == SIGCHLD) {
      processes_.reap();
    } else if (*number == SIGUSR1 || *number == SIGUSR2) {
      processes_.signal_all(*number);
    } else if (!stopping_) {
      stop(*number == SIGQUIT ? SIGTERM : *number);
    }
  }
}

void Agent::turn() {
  milliseconds patience(3600'000);
  if (const auto due = processes_.next_due()) {
    const auto left = std::chrono::ceil<milliseconds>(*due - ProcessSet::Clock::now());
    patience = std::clamp(left, milliseconds(0), patience);
  }
  poller_.wait(patience);
  handle_signals();
  processes_.tick();
  if (out_.is_broken() && !stopping_) stop(SIGTERM);
  processes_.pause_output(out_.is_full());
  // Told only now, after the output that came before.
  for (const auto& [rank, ending] : endings_) out_.add(encode(ended_message(rank, ending)));
  endings_.clear();
}

int Agent::run(const std::string& token) {
  std::optional<HeldPort> port;
  const bool has_rank_0 = share_.first_rank + share_.begin == 0;
  if (has_rank_0) port.emplace();
  poller_.watch_readable(signals_.fd(), [this] { handle_signals(); });
  poller_.watch_readable(in_, [this] { read_orders(); });
  out_.add(encode(hello_message({.first_rank = rank_of(0),
                                 .token = token,
                                 .port = port ? port->number() : 0,
                                 .addr = own_address()})));
  while (!(started_ || stopping_) || processes_.alive() > 0) turn();
  processes_.finish(milliseconds(5000));
  poller_.unwatch_readable(in_);
  while (!out_.is_empty()) poller_.wait(milliseconds(3600'000));  // until sent, or nobody is there
  poller_.unwatch_readable(signals_.fd());
  return 0;
}

Share share_from_environment(const AgentOptions& options, const RankEnv& env) {
  const int world_size = count_slots(options.pool);
  if (env.world_size != world_size) {
    throw ConfigError(
        {.what = fmt::format("the plan has {}, but {} started {}", counted(world_size, "rank"),
                             env.launcher, env.world_size),
         .where = "capstan launch-agent",
         .fix = "leave the number of ranks to capstan launch (-n), not to "
                "--launcher_args"});
  }
  return share_of_rank(options.pool, env.rank, options.slots_are_devices);
}

// SLURM gives a task cores of its own where it is set up to: then there is nothing to share out.
void keep_cores_of_slurm(Share& share, const Machine& machine, const RankEnv& env) {
  const bool restricted = machine.cores < sysconf(_SC_NPROCESSORS_ONLN);
  if (env.launcher != "slurm" || !restricted) return;
  share.local_world_size = std::min(share.local_world_size, machine.cores);
}

}  // namespace

int run_agent(const AgentOptions& options) {
  Machine machine = this_machine();
  const auto link = machine.env.find("CAPSTAN_LINK");
  const bool by_pipe = link == machine.env.end() || options.node_rank >= 0;
  if (by_pipe) {
    machine.env = without_launcher_variables(std::move(machine.env));
    machine.env["CAPSTAN_LAUNCHER"] = to_string(Launcher::ssh);
    const Share share = share_of_node(options.pool, options.node_rank, options.slots_are_devices);
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    return Agent(options, share, std::move(machine), STDIN_FILENO, STDOUT_FILENO).run("-");
  }
  const RankEnv env = read_rank_env(process_env());
  Share share = share_from_environment(options, env);
  if (options.binding.bind) keep_cores_of_slurm(share, machine, env);
  const Fd socket = connect_to(link->second);
  const std::string token = machine.env["CAPSTAN_LINK_TOKEN"];
  machine.env.erase("CAPSTAN_LINK");
  machine.env.erase("CAPSTAN_LINK_TOKEN");
  machine.env["CAPSTAN_LAUNCHER"] =
      to_string(env.launcher == "slurm" ? Launcher::slurm : Launcher::mpi);
  return Agent(options, share, std::move(machine), socket.get(), socket.get()).run(token);
}

}  // namespace capstan::launch
