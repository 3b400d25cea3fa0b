// The mean over a sequence whose parts are on several ranks.
#pragma once

#include "capstan/sequence_parallel/exchange.h"

namespace capstan::sequence_parallel {

// sum / (the count of all ranks): our share of the mean over all ranks' positions. The shares add
// up to it, and gradients that are summed over the ranks are its gradients. `count` has one
// element. Ranks: collective; backward is local.
at::Tensor share_of_mean(const at::Tensor& sum, const at::Tensor& count, const GroupPtr& group);

}  // namespace capstan::sequence_parallel
