// The table of kernels over one vector type. Each kernel source instantiates it with its own.
#pragma once

#include "capstan/optim/cpu/sum_loops.h"
#include "capstan/optim/cpu/update_loops.h"

namespace capstan::optim {

// Tail is the vector type for what does not fill a Vec.
template <typename Vec, typename Tail>
constexpr KernelTable make_kernel_table() {
  return {.adam = run_update<Vec, Tail, AdamRule>,
          .sgd = run_update<Vec, Tail, SgdRule>,
          .sgd_momentum = run_update<Vec, Tail, SgdMomentumRule>,
          .lion = run_update<Vec, Tail, LionRule>,
          .adagrad = run_update<Vec, Tail, AdagradRule>,
          .lamb_prepare = run_lamb_prepare<Vec, Tail>,
          .lamb_apply = run_lamb_apply<Vec, Tail>,
          .sum_squares = run_sum_squares<Vec, Tail>,
          .convert = run_convert<Vec, Tail>,
          .accumulate = run_accumulate<Vec, Tail>};
}

}  // namespace capstan::optim
