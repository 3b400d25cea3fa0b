// Starts receives earlier, for transports that keep the two directions of a link apart.
#pragma once

#include "capstan/pipeline/instruction.h"

namespace capstan::pipeline {

// Each receive moves up by so many forwards and backwards, so that transfers hide behind them even
// where the stages are not in step. Two stages still agree on the order in each direction, not on
// that of both together: only for transports on which a receive stops neither its stage nor a send.
Schedule with_early_receives(const Schedule& schedule, int works);

}  // namespace capstan::pipeline
