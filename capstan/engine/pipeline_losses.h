// What the last stages of a pipeline come to, for all ranks.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "capstan/comm/mesh_groups.h"

namespace capstan::engine {

// Means over the micro-batches of a step, of each of several losses; the same on all ranks but for
// `own`, which is the same on those that see the same data.
struct LossMeans {
  std::vector<double> own;  // over our data-parallel rank's data
  std::vector<double> all;  // over all data
};

// `losses` of the micro-batches, one element each, on the last stage, and other losses beside each.
// What other stages give does not count, but for the number of the others. Collective over the
// mesh; its tensors are on `device`.
LossMeans mean_losses(comm::MeshGroups& mesh, c10::Device device,
                      const std::vector<at::Tensor>& losses,
                      const std::vector<std::vector<double>>& others);

// Over the first dimension, the micro-batches, and the data-parallel ranks of this stage, in fp32.
// Collective among them.
at::Tensor mean_over_data(comm::MeshGroups& mesh, c10::Device device, const at::Tensor& stacked);

}  // namespace capstan::engine
