// Runs a schedule on paper: when each stage computes, and when it waits.
#pragma once

#include <cstdint>
#include <vector>

#include "capstan/pipeline/instruction.h"

namespace capstan::pipeline {

// Of one part for one micro-batch, in any unit of time.
struct Costs {
  std::int64_t forward = 1;
  std::int64_t backward_inputs = 1;
  std::int64_t backward_weights = 1;
  std::int64_t transfer = 0;  // of what the part sends, either way
};

// How sends and receives behave. `asynchronous`: they return at once, a transfer begins when both
// sides have been reached, and only who needs it waits. `rendezvous`: both sides stop until the
// transfer is over; the worst that a transport can do.
enum class Transport { asynchronous, rendezvous };

struct Span {
  Instruction instruction;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct Simulation {
  std::vector<std::vector<Span>> stages;  // forwards and backwards, in the order of time
  std::int64_t length = 0;                // until the last stage has ended

  std::int64_t busy(int stage) const;  // how long it computes
  // Of all stages' time, the share in which they compute.
  double efficiency() const;
};

// `costs` has one entry per part, or one for all. Throws InternalError if stages wait for each
// other for ever, naming what each of them waits in. Reductions and steps take no time. Requires
// instructions within the shape.
Simulation simulate(const Schedule& schedule, const std::vector<Costs>& costs,
                    Transport transport = Transport::asynchronous);

}  // namespace capstan::pipeline
