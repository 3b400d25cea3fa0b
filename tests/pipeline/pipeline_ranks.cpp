// One stage of a pipeline per process: trains over MPI with every schedule, and compares the bits
// with a run without a pipeline.
#include <cstdio>
#include <exception>

#include <unistd.h>

#include "capstan/comm/world.h"
#include "capstan/pipeline/executor.h"
#include "capstan/pipeline/schedules.h"
#include "tests/pipeline/test_stage.h"

namespace capstan::pipeline {
namespace {

bool same_bits(Kind kind, const Shape& shape, comm::Group& group) {
  const Trained expected = without_pipeline(shape.parts(), shape.micro_batches);
  TestStage stage(shape, group.rank());
  Executor executor(make_schedule(kind, shape), group, stage, at::kCPU);
  for (int step = 0; step < kSteps; ++step) executor.run();
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const Tensors& params = expected.params.at(shape.part(group.rank(), chunk));
    const Tensors mine = stage.layers[static_cast<std::size_t>(chunk)]->parameters();
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (!at::equal(mine[i], params[i])) return false;
    }
  }
  return true;
}

int run() {
  const auto world =
      comm::make_world(read_rank_env(process_env()), {.backend = comm::BackendKind::mpi});
  comm::Group& group = world->group();
  bool same = true;
  for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zb_h1, Kind::deepspeed}) {
    same = same_bits(kind, {.stages = group.size(), .micro_batches = 6}, group) && same;
  }
  const Shape chunks = {.stages = group.size(), .micro_batches = 2 * group.size(), .chunks = 2};
  same = same_bits(Kind::interleaved, chunks, group) && same;
  world->close();
  std::printf("%s\n", same ? "same bits" : "other bits");
  return same ? 0 : 1;
}

}  // namespace
}  // namespace capstan::pipeline

int main() {
  int code = 1;
  try {
    code = capstan::pipeline::run();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  // At once: what Open MPI's unloaded modules have kept would be called ours by the leak sanitizer.
  std::fflush(stdout);
  _exit(code);
}
