// Adds to what each stage computes the loads, transfers, reductions and the step.
#pragma once

#include <vector>

#include "capstan/pipeline/instruction.h"

namespace capstan::pipeline {

// `work` has each stage's forwards and backwards in their order. Requires that no stage waits for
// ever if it works in this order.
//
// Everything gets a moment in one run on paper: computing its end, a transfer the end of what it
// sends; each stage's list is in the order of these moments. So all lists are parts of one order of
// everything, which is why none waits for ever even on a transport that stops both sides; and a
// receive stands before the work during which its data arrives, so that the transfer hides behind
// it.
Schedule with_transfers(const Shape& shape, bool training,
                        const std::vector<std::vector<Instruction>>& work);

}  // namespace capstan::pipeline
