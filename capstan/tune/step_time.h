// How long a step of a workload takes on a machine: computation, traffic that hides behind it and
// traffic that does not. Pure.
#pragma once

#include "capstan/tune/machine.h"
#include "capstan/tune/workload.h"

namespace capstan::tune {

// Of one step on one rank. What is exposed adds to the length of the step; the rest hides behind
// computation.
struct StepTime {
  Seconds compute{0};    // forward and backward of all micro-batches
  Seconds recompute{0};  // and what is computed again in backward
  Seconds gather{0};     // exposed, as all below
  Seconds reduce{0};
  Seconds update{0};
  Seconds layers{0};  // exchanges between ranks that share layers or sequences
  Seconds bubble{0};  // of a pipeline: stages that wait

  Seconds total() const { return compute + recompute + gather + reduce + update + layers + bubble; }
};

// One rank's traffic in a step, in bytes each way.
struct Traffic {
  double gathered = 0;
  double reduced = 0;
  double layers = 0;  // between tensor and sequence ranks
  double stages = 0;  // between stages of a pipeline
  double host = 0;    // between the device and its host
  double disk_read = 0;
  double disk_written = 0;
};
Traffic traffic_of(const Workload& workload);

StepTime step_time(const Workload& workload, const Machine& machine);

// By all ranks.
double tokens_per_second(const Workload& workload, const StepTime& time);
// Of each rank, for the work that the model needs: 6 N + 12 L h S per token.
double model_flops_per_second(const Workload& workload, const StepTime& time);

}  // namespace capstan::tune
