#include "capstan/launch/run.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "capstan/base/error.h"
#include "capstan/base/guard.h"
#include "capstan/base/job_signals.h"
#include "capstan/base/text.h"
#include "capstan/launch/links.h"
#include "capstan/launch/network.h"
#include "capstan/launch/ranks.h"
#include "capstan/launch/screen.h"

namespace capstan::launch {
namespace {

using std::chrono::milliseconds;
using Clock = ProcessSet::Clock;

// After its ranks have ended an agent needs only to say so and leave.
constexpr milliseconds kCarrierGrace{5000};

// Between two questions to RunOptions::enough.
constexpr milliseconds kAsking{100};

class Job final : public ProcessEvents {
 public:
  Job(const Plan& plan, const RunOptions& options)
      : plan_(plan),
        options_(options),
        own_signals_(options.signals == nullptr ? std::make_unique<SignalWatch>() : nullptr),
        signals_(options.signals == nullptr ? *own_signals_ : *options.signals),
        screen_(poller_, options, plan.world_size()),
        processes_(poller_, signals_, *this),
        redraws_(!options.on_line && isatty(options.out_fd) == 1),
        endings_(static_cast<std::size_t>(plan.world_size())) {}

  Result run();

  void on_output(std::size_t index, Stream stream, std::string_view line, char end) override;
  void on_exit(std::size_t index, const Ending& ending) override;

 private:
  const Process& process(std::size_t index) const { return plan_.processes[index]; }
  bool is_rank(int number) const { return number >= 0 && number < plan_.world_size(); }
  bool is_local() const { return plan_.processes.front().channel == Channel::output; }

  void start();
  void turn();  // one round of waiting and reacting
  void handle_signals();
  void pass_on(int number);  // to all ranks
  void stop(int number);
  void tell_agents(const Message& message);
  void fail(int rank, int exit_code, std::string sentence);

  void on_message(const Message& message);
  void on_hello(const Hello& hello);
  void on_agent_lost(int rank);
  void on_rank_end(int rank, const Ending& ending);
  void judge_carriers();
  bool is_over() const;
  milliseconds patience() const;
  void report(int left_behind);

  const Plan& plan_;
  const RunOptions& options_;
  Poller poller_;
  std::unique_ptr<SignalWatch> own_signals_;
  SignalWatch& signals_;
  Screen screen_;
  ProcessSet processes_;
  bool redraws_;  // on a terminal: progress bars of ranks move
  std::unique_ptr<Links> links_;
  std::optional<HeldPort> port_;

  std::vector<std::optional<Ending>> endings_;  // by rank
  std::vector<int> link_ranks_;                 // first rank of each link
  std::set<std::size_t> greeted_pipes_;         // processes whose agent has said hello
  std::map<std::size_t, Ending> carrier_endings_;
  std::map<std::size_t, std::string> carrier_lines_;  // the last thing each carrier said
  int agents_greeted_ = 0;
  Master master_;
  bool agents_started_ = false;

  const Clock::time_point began_ = Clock::now();
  bool stopping_ = false;
  std::optional<Clock::time_point> carriers_due_;  // when carriers that linger are stopped
  std::optional<Clock::time_point> links_due_;     // how long links may outlive their carriers
  Result result_;
};

void Job::start() {
  std::vector<Process> processes = plan_.processes;
  if (is_local()) {
    // Several hosts by hand, or an outer launcher: the port was agreed on beforehand.
    if (plan_.master_port == 0 && plan_.hosts.size() == 1) port_.emplace();
    const int port = port_ ? port_->number() : plan_.master_port;
    if (port > 0) set_master(processes, {plan_.master_addr, port});
  }
  if (processes.front().channel == Channel::agents_on_link) {
    const bool here_only = plan_.launcher == Launcher::mpi && plan_.hosts.size() == 1;
    links_ = std::make_unique<Links>(
        poller_, here_only,
        [this](std::size_t link, const Message& message) {
          if (message.verb == "hello" && is_rank(message.number)) {
            link_ranks_.resize(std::max(link_ranks_.size(), link + 1), -1);
            link_ranks_[link] = message.number;
            on_hello(hello_from_message(message));
          } else {
            on_message(message);
          }
        },
        [this](std::size_t link) { on_agent_lost(link_ranks_[link]); });
    for (Process& process : processes) {
      process.env["CAPSTAN_LINK"] = links_->address();
      process.env["CAPSTAN_LINK_TOKEN"] = links_->token();
    }
  }
  processes_.split_at_return(redraws_ && is_local());  // agents do it themselves
  for (const Process& process : processes) processes_.start(process);
}

void Job::on_output(std::size_t index, Stream stream, std::string_view line, char end) {
  const Process& from = process(index);
  if (from.channel == Channel::output) {
    screen_.rank_line(from.rank, stream, line, end);
    return;
  }
  const bool on_wire = from.channel == Channel::agent_on_pipe && stream == Stream::out;
  if (on_wire && greeted_pipes_.contains(index)) {
    on_message(decode(line));
    return;
  }
  if (on_wire && line.starts_with("hello ")) {
    greeted_pipes_.insert(index);
    for (const auto& [name, value] : from.sent) {
      processes_.send(index, encode(variable_message(name, value)));
    }
    on_hello(hello_from_message(decode(line)));
    return;
  }
  // Before the hello it is the remote shell's start-up files that talk; on the error stream it is
  // ssh, srun or mpirun. What they say about ranks that are being stopped is noise.
  if (stopping_) return;
  const std::string_view said = trim(line);  // ssh ends its lines with "\r\n"
  if (!said.empty()) carrier_lines_[index] = std::string(said);
  screen_.note(from.name, said);
}

void Job::on_hello(const Hello& hello) {
  ++agents_greeted_;
  if (hello.first_rank == 0) {
    master_ = {plan_.master_addr.empty() ? hello.addr : plan_.master_addr,
               plan_.master_port > 0 ? plan_.master_port : hello.port};
  }
  const int expected = links_ ? plan_.world_size() : static_cast<int>(plan_.processes.size());
  if (stopping_) {
    tell_agents({"stop", SIGTERM, ""});
  } else if (agents_greeted_ == expected) {
    agents_started_ = true;
    if (redraws_) tell_agents({"redraw", 1, ""});
    tell_agents({"start", master_.port, master_.addr});
  }
}

void Job::on_message(const Message& message) {
  const int rank = message.number;
  const bool known = is_rank(rank);
  const bool redrawn = message.verb == "outbar" || message.verb == "errbar";
  if (known && (message.verb == "out" || message.verb == "err" || redrawn)) {
    const Stream stream = message.verb.starts_with("out") ? Stream::out : Stream::err;
    screen_.rank_line(rank, stream, message.text, redrawn ? '\r' : '\n');
  } else if (known && message.verb == "ended") {
    on_rank_end(rank, ending_from_message(message));
  } else if (known && message.verb == "failed") {
    fail(rank, kExitUserError, fmt::format("rank {} could not be started: {}", rank, message.text));
  } else {
    throw CommError({.what = fmt::format("an agent says \"{} {}\"", message.verb, message.number),
                     .where = "connection between launcher and agent",
                     .fix = "use one version of capstan on all hosts"});
  }
}

void Job::on_exit(std::size_t index, const Ending& ending) {
  if (process(index).channel == Channel::output) {
    on_rank_end(process(index).rank, ending);
  } else {
    carrier_endings_[index] = ending;
    links_due_ = Clock::now() + milliseconds(2000);
  }
}

void Job::on_rank_end(int rank, const Ending& ending) {
  endings_[static_cast<std::size_t>(rank)] = ending;
  result_.ended_after[static_cast<std::size_t>(rank)] =
      std::chrono::duration_cast<milliseconds>(Clock::now() - began_);
  screen_.rank_ended(rank);
  if (ending.failed()) fail(rank, ending.code(), fmt::format("rank {} {}", rank, describe(ending)));
}

void Job::on_agent_lost(int rank) {
  if (rank < 0 || endings_[static_cast<std::size_t>(rank)]) return;
  fail(rank, 1,
       fmt::format("rank {} was lost: its agent closed the connection (was its host or its "
                   "capstan process killed?)",
                   rank));
}

// A carrier that ends before its ranks did has failed, whatever it returned.
void Job::judge_carriers() {
  if (carrier_endings_.empty() || result_.exit_code != 0 || stopping_) return;
  if (links_ && links_->open_count() > 0 && links_due_ && Clock::now() < *links_due_) return;
  for (const auto& [index, ending] : carrier_endings_) {
    const Process& carrier = process(index);
    int rank = 0;
    int end = plan_.world_size();
    if (carrier.channel == Channel::agent_on_pipe) {
      const Share share = share_of_node(plan_.hosts, static_cast<int>(index), false);
      rank = share.first_rank;
      end = share.first_rank + share.local_world_size;
    }
    while (rank < end && endings_[static_cast<std::size_t>(rank)]) ++rank;
    if (rank == end) continue;
    std::string said = carrier_lines_[index];
    if (!said.empty()) said.insert(0, ": ");
    const std::string hint = carrier.name.starts_with("ssh ") && ending.exit_code == 255
                                 ? fmt::format(
                                       ". Check that this works without a password: ssh -o "
                                       "BatchMode=yes {} true",
                                       carrier.name.substr(4))
                                 : std::string();
    fail(-1, ending.failed() ? ending.code() : 1,
         fmt::format("{} {} before rank {} had ended{}{}", carrier.name, describe(ending), rank,
                     said, hint));
    return;
  }
}

void Job::fail(int rank, int exit_code, std::string sentence) {
  if (stopping_) return;
  result_.exit_code = exit_code;
  result_.first_failed_rank = rank;
  result_.sentence = std::move(sentence);
  if (rank >= 0) result_.last_lines = screen_.last_lines(rank);
  pass_on(kPeerFailedSignal);
  stop(SIGTERM);
}

void Job::tell_agents(const Message& message) {
  if (links_) links_->send_all(message);
  for (const std::size_t index : greeted_pipes_) processes_.send(index, encode(message));
}

void Job::pass_on(int number) {
  if (is_local()) processes_.signal_all(number);
  tell_agents({"signal", number, ""});
}

void Job::stop(int number) {
  const bool again = stopping_;
  stopping_ = true;
  if (is_local()) {
    processes_.stop(number, plan_.grace);
    return;
  }
  tell_agents({"stop", number, ""});
  // Agents stop their ranks and then leave; only where they are not all there yet is it up to the
  // carriers. A carrier that is stopped too early would take the agents' reports with it.
  if (!agents_started_) {
    processes_.stop(SIGTERM, kCarrierGrace);
  } else if (!carriers_due_ || again) {
    carriers_due_ =
        Clock::now() + kCarrierGrace + (number == SIGKILL ? milliseconds(0) : plan_.grace);
  }
}

void Job::handle_signals() {
  while (const std::optional<int> number = signals_.take()) {
    if (*number == SIGCHLD) {
      processes_.reap();
    } else if (*number == SIGUSR1 || *number == SIGUSR2) {
      pass_on(*number);
    } else if (stopping_) {
      stop(SIGKILL);
    } else {
      result_.exit_code = 128 + *number;
      result_.stopped_by = *number;
      result_.sentence = *number == SIGINT ? "stopped by Ctrl-C; all ranks have ended"
                                           : fmt::format("stopped by SIG{}; all ranks have ended",
                                                         sigabbrev_np(*number));
      stop(*number == SIGQUIT ? SIGTERM : *number);
    }
  }
}

bool Job::is_over() const {
  if (processes_.alive() > 0) return false;
  return !links_ || links_->open_count() == 0 || (links_due_ && Clock::now() >= *links_due_);
}

milliseconds Job::patience() const {
  const bool asks = options_.enough && !stopping_;
  Clock::time_point until = Clock::now() + (asks ? kAsking : std::chrono::hours(1));
  const auto strangers_due = links_ ? links_->next_due() : std::nullopt;
  for (const auto& due :
       {processes_.next_due(), carriers_due_, links_due_, strangers_due, screen_.next_due()}) {
    if (due) until = std::min(until, *due);
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  return std::clamp(left, milliseconds(0), milliseconds(3600'000));
}

void Job::turn() {
  poller_.wait(patience());
  handle_signals();
  processes_.tick();
  if (links_) links_->tick();
  screen_.tick();
  if (carriers_due_ && Clock::now() >= *carriers_due_) {
    carriers_due_.reset();
    processes_.stop(SIGTERM, milliseconds(2000));
  }
  judge_carriers();
  if (options_.enough && !stopping_ && options_.enough()) {
    pass_on(kPeerFailedSignal);  // nobody is to finish anything
    stop(SIGTERM);
  }
  if (screen_.is_broken() && !stopping_) {
    const bool unread = screen_.error() == EPIPE;
    result_.exit_code = unread ? 128 + SIGPIPE : kExitUserError;
    result_.sentence = unread ? "stopped: nobody reads the output any more"
                              : fmt::format("stopped: the output cannot be written: {}",
                                            std::generic_category().message(screen_.error()));
    stop(SIGTERM);
  }
  processes_.pause_output(screen_.is_full());
  if (links_) links_->pause_output(screen_.is_full());
}

void Job::report(int left_behind) {
  screen_.finish();
  std::string text;
  if (left_behind > 0) {
    text += fmt::format("capstan: stopped {} that ranks had left behind\n",
                        counted(left_behind, "process"));
  }
  const int failed = result_.first_failed_rank;
  const std::vector<std::string>& last = result_.last_lines;
  if (!last.empty() && !screen_.still_shows(failed, last.size())) {
    text += fmt::format("capstan: rank {} failed first. Its last lines:\n", failed);
    for (const std::string& line : last) text += fmt::format("[rank {}] {}\n", failed, line);
  }
  if (const int others = screen_.said_the_same(); others > 0) {
    text += fmt::format("capstan: {} said the same\n", counted(others, "other rank"));
  }
  if (!result_.sentence.empty()) {
    const bool others = result_.first_failed_rank >= 0 && plan_.world_size() > 1;
    text += fmt::format("capstan: {}{}\n", result_.sentence,
                        others ? "; the other ranks were stopped" : "");
  }
  screen_.report(text);
  // As long as somebody may still read; a signal ends the waiting.
  bool asked_again = false;
  while (!screen_.is_empty() && !asked_again) {
    poller_.wait(std::chrono::hours(1));
    while (const std::optional<int> number = signals_.take()) asked_again |= *number != SIGCHLD;
  }
}

Result Job::run() {
  result_.ended_after.resize(endings_.size());
  poller_.watch_readable(signals_.fd(), [this] { handle_signals(); });
  start();
  while (!is_over()) turn();
  const int left_behind = processes_.finish(kCarrierGrace);
  poller_.watch_readable(signals_.fd(), [] {});
  report(left_behind);
  poller_.unwatch_readable(signals_.fd());
  for (int rank = 0; rank < plan_.world_size(); ++rank) {
    result_.endings.push_back(endings_[static_cast<std::size_t>(rank)].value_or(Ending{}));
    result_.lines_of_ranks.push_back(screen_.last_lines(rank));
  }
  return std::move(result_);
}

}  // namespace

Result run(const Plan& plan, const RunOptions& options) { return Job(plan, options).run(); }

}  // namespace capstan::launch
