// Whether a schedule does what a training step has to do, in an order that can work.
#pragma once

#include <string>
#include <vector>

#include "capstan/pipeline/instruction.h"

namespace capstan::pipeline {

// What two stages send each other: all of it in one order, or each direction in its own.
enum class Link { shared, per_direction };

// One sentence per problem; none for a sound schedule, in which
// - every micro-batch has one forward and one backward (whole, or both halves) in every part, one
//   load in the first and one in the last, one reduction per chunk after all of its backwards, and
//   one reduction of tied weights and one step per stage at the end;
// - every send has its receive, once; it stands after what makes it, the receive before what needs
//   it;
// - two stages have the transfers of a link in the same order.
// Whether stages end up waiting for each other is simulate()'s to tell.
std::vector<std::string> problems_of(const Schedule& schedule, Link link = Link::shared);

}  // namespace capstan::pipeline
