// Each collective between two ranks over MPI, against the memory copies that it cannot do without,
// made by the same two ranks at the same time.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/base/guard.h"
#include "capstan/base/rank_env.h"
#include "capstan/base/text.h"
#include "capstan/comm/rank_sum.h"
#include "capstan/comm/world.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;
using comm::Group;
using comm::PendingOp;

struct Case {
  std::string name;
  std::int64_t bytes;  // what this rank must copy at least
  std::function<PendingOp(Group&)> start;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Other programs only ever slow a run down: the fastest tells about the code.
double fastest(const std::vector<double>& values) { return std::ranges::min(values); }

double time_copies(Group& group, std::int64_t bytes, int repeats) {
  const at::Tensor from = at::ones({bytes}, at::kByte);
  const at::Tensor to = at::ones({bytes}, at::kByte);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    group.barrier().wait();  // both ranks copy at the same time, as they do in a collective
    const auto begin = Clock::now();
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), bytes);
    times.push_back(seconds_since(begin));
  }
  return fastest(times);
}

struct Times {
  double whole = 0;  // from issue to the end of wait()
  double issue = 0;  // the caller's part of starting it
};

Times time_case(Group& group, const Case& what, int repeats) {
  std::vector<double> whole;
  std::vector<double> issue;
  for (int i = 0; i < repeats + 3; ++i) {
    group.barrier().wait();
    const auto begin = Clock::now();
    PendingOp op = what.start(group);
    const double issued = seconds_since(begin);
    op.wait();
    if (i >= 3) {  // the first ones make buffers and connections
      whole.push_back(seconds_since(begin));
      issue.push_back(issued);
    }
  }
  return {fastest(whole), fastest(issue)};
}

std::vector<Case> make_cases(const Group& group, std::int64_t part_bytes) {
  const std::int64_t part = part_bytes / 4;
  const at::Tensor mine = at::ones({part});
  const at::Tensor whole = at::ones({part * group.size()});
  const at::Tensor other = at::ones({part * group.size()});
  const at::Tensor narrow = whole.to(at::kBFloat16);
  const at::Tensor in_place = whole.narrow(0, group.rank() * part, part);
  const int peer = 1 - group.rank();
  const auto exchange = [=](Group& g) {
    return g.rank() == 0 ? g.send(mine, peer) : g.recv(mine, peer);
  };
  return {
      {"all_gather, in place", part_bytes, [=](Group& g) { return g.all_gather(whole, in_place); }},
      {"all_gather", 2 * part_bytes, [=](Group& g) { return g.all_gather(whole, mine); }},
      {"reduce_scatter fp32", part_bytes, [=](Group& g) { return g.reduce_scatter(mine, whole); }},
      {"reduce_scatter bf16->fp32", part_bytes / 2,
       [=](Group& g) { return g.reduce_scatter(mine, narrow); }},
      {"all_reduce (both parts)", 2 * part_bytes, [=](Group& g) { return g.all_reduce(whole); }},
      {"broadcast", part_bytes, [=](Group& g) { return g.broadcast(mine, 0); }},
      {"all_to_all", 2 * part_bytes, [=](Group& g) { return g.all_to_all(other, whole); }},
      {"send / recv", part_bytes, exchange},
  };
}

void report_sum(Group& group, std::int64_t bytes) {
  const std::int64_t n = bytes / 4;
  const std::vector<at::Tensor> wide = {at::ones({n}), at::ones({n})};
  const std::vector<at::Tensor> narrow = {wide[0].to(at::kBFloat16), wide[1].to(at::kBFloat16)};
  at::Tensor out = at::ones({n});
  const auto time_sum = [&](const std::vector<at::Tensor>& pieces) {
    std::vector<double> times;
    for (int i = 0; i < 20; ++i) {
      group.barrier().wait();
      const auto begin = Clock::now();
      comm::sum_in_rank_order(out, pieces, false);
      times.push_back(seconds_since(begin));
    }
    return fastest(times);
  };
  const double copy = time_copies(group, bytes, 20);
  const double fp32 = time_sum(wide);
  const double bf16 = time_sum(narrow);
  if (group.rank() == 0) {
    // A copy moves 2 bytes per byte (one read, one written); the sums 3 x 4 and 2 x 2 + 4 per
    // value.
    fmt::print(
        "local sum of 2 x {}: fp32 {:.0f} us = {:.2f} x its share of a copy; "
        "bf16 to fp32 {:.0f} us = {:.2f} x\n",
        format_bytes(bytes), fp32 * 1e6, fp32 / (copy * 1.5), bf16 * 1e6, bf16 / copy);
  }
}

int run(int, char**) {
  const RankEnv env = read_rank_env(process_env());
  const auto world = comm::make_world(env, {.backend = comm::BackendKind::mpi});
  Group& group = world->group();
  if (group.size() != 2) {
    throw ConfigError({.what = "this benchmark is for two ranks",
                       .where = "comm_bench",
                       .fix = "start it with `capstan launch -n 2`"});
  }
  for (const std::int64_t part_bytes : {4L << 10, 256L << 10, 4L << 20, 64L << 20}) {
    const int repeats = part_bytes > (8 << 20) ? 20 : 200;
    if (group.rank() == 0) {
      fmt::print("parts of {}:\n  {:<28}{:>12}{:>12}{:>12}{:>8}{:>12}\n", format_bytes(part_bytes),
                 "", "time us", "GB/s", "copies us", "ratio", "issue us");
    }
    for (const Case& what : make_cases(group, part_bytes)) {
      const Times times = time_case(group, what, repeats);
      const double copies = time_copies(group, what.bytes, repeats);
      if (group.rank() == 0) {
        fmt::print("  {:<28}{:>12.1f}{:>12.2f}{:>12.1f}{:>8.2f}{:>12.1f}\n", what.name,
                   times.whole * 1e6, static_cast<double>(what.bytes) / times.whole / 1e9,
                   copies * 1e6, times.whole / copies, times.issue * 1e6);
        std::fflush(stdout);
      }
    }
  }
  report_sum(group, 64 << 20);
  world->close();
  return 0;
}

void report(const std::string& text) { std::fputs((text + "\n").c_str(), stderr); }

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  return capstan::run_guarded<capstan::report>(capstan::run, argc, argv);
}
