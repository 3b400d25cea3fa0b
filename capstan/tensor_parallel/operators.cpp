#include "capstan/tensor_parallel/operators.h"

#include <torch/csrc/autograd/custom_function.h>

#include "capstan/tensor_parallel/collectives.h"
#include "capstan/tensor_parallel/function_state.h"

namespace capstan::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What an operator does in forward, or in backward.
enum class Motion { keep, sum, part, gather, sum_part };

// Everything but what an autograd graph does with it.
struct Movement {
  comm::Group* group;
  std::int64_t dim;
  Motion forward;
  Motion backward;
};

at::Tensor move(const Movement& movement, Motion motion, const at::Tensor& x) {
  comm::Group& group = *movement.group;
  switch (motion) {
    case Motion::keep:
      return x;
    // A copy: others may hold the tensor, or it may be an expanded one.
    case Motion::sum:
      return sum(group, x.clone(at::MemoryFormat::Contiguous));
    case Motion::part:
      return own_part(group, x, movement.dim).contiguous();
    case Motion::gather:
      return gather(group, x, movement.dim);
    case Motion::sum_part:
      return reduce_scatter(group, x, movement.dim);
  }
  throw InternalError({.what = "no such motion"});
}

class Move : public torch::autograd::Function<Move> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const Movement& movement) {
    remember(*context, movement);
    return move(movement, movement.forward, x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto movement = remembered<Movement>(*context);
    return {move(movement, movement.backward, gradients[0]), at::Tensor()};
  }
};

at::Tensor apply(const Movement& movement, const at::Tensor& x) {
  return movement.group->size() == 1 ? x : Move::apply(x, movement);
}

}  // namespace

at::Tensor copy_in(comm::Group& group, const at::Tensor& x) {
  return apply({&group, 0, Motion::keep, Motion::sum}, x);
}

at::Tensor reduce_out(comm::Group& group, const at::Tensor& x) {
  return apply({&group, 0, Motion::sum, Motion::keep}, x);
}

at::Tensor scatter_last(comm::Group& group, const at::Tensor& x) {
  return apply({&group, -1, Motion::part, Motion::gather}, x);
}

at::Tensor gather_last(comm::Group& group, const at::Tensor& x) {
  return apply({&group, -1, Motion::gather, Motion::part}, x);
}

at::Tensor gather_sequence(comm::Group& group, const at::Tensor& x, std::int64_t dim) {
  return apply({&group, dim, Motion::gather, Motion::sum_part}, x);
}

at::Tensor reduce_scatter_sequence(comm::Group& group, const at::Tensor& x, std::int64_t dim) {
  return apply({&group, dim, Motion::sum_part, Motion::gather}, x);
}

at::Tensor scatter_sequence(comm::Group& group, const at::Tensor& x, std::int64_t dim) {
  return apply({&group, dim, Motion::part, Motion::gather}, x);
}

at::Tensor leave(const Region& region, const at::Tensor& x) {
  if (!region.sequence_dim) return reduce_out(*region.group, x);
  return reduce_scatter_sequence(*region.group, x, *region.sequence_dim);
}

at::Tensor outside(const Region& region, const at::Tensor& parameter) {
  return region.sequence_dim ? copy_in(*region.group, parameter) : parameter;
}

}  // namespace capstan::tensor_parallel
