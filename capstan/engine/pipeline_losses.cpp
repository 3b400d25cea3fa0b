#include "capstan/engine/pipeline_losses.h"

#include <ATen/Functions.h>

namespace capstan::engine {
namespace {

// Of the micro-batches of this rank: the mean loss, in fp32 at least, and those of the others.
std::vector<double> means_of(const std::vector<at::Tensor>& losses,
                             const std::vector<std::vector<double>>& others) {
  const std::size_t extra = others.empty() ? 0 : others.front().size();
  std::vector<double> means(1 + extra);
  if (losses.empty()) return means;
  const at::ScalarType dtype = c10::promoteTypes(losses.front().scalar_type(), at::kFloat);
  at::Tensor sum = losses.front().detach().to(dtype, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t i = 1; i < losses.size(); ++i) sum += losses[i].detach();
  means[0] = (sum / static_cast<double>(losses.size())).item<double>();
  for (const std::vector<double>& row : others) {
    for (std::size_t i = 0; i < extra; ++i) {
      means[i + 1] += row.at(i) / static_cast<double>(others.size());
    }
  }
  return means;
}

}  // namespace

LossMeans mean_losses(comm::MeshGroups& mesh, c10::Device device,
                      const std::vector<at::Tensor>& losses,
                      const std::vector<std::vector<double>>& others) {
  const std::vector<double> mine = means_of(losses, others);
  const int ranks = mesh.mesh().size(layout::kDataAxes);
  const int here = mesh.place(layout::kDataAxes);
  const auto count = static_cast<std::int64_t>(mine.size());
  const at::Tensor rows = at::zeros({ranks, count}, at::kDouble);
  // One rank speaks for those that share its data.
  const bool last = mesh.place(layout::Axis::pipe) + 1 == mesh.mesh().size(layout::Axis::pipe);
  if (last && mesh.place({layout::Axis::sequence, layout::Axis::tensor}) == 0) {
    rows[here].copy_(at::tensor(mine, at::kDouble));
  }
  const at::Tensor sum = rows.to(device);
  mesh.all().all_reduce(sum.view({-1}), "what the last stages say").wait();
  const at::Tensor told = sum.cpu();
  LossMeans means{.own = std::vector<double>(mine.size()), .all = std::vector<double>(mine.size())};
  for (int rank = 0; rank < ranks; ++rank) {
    const double* const row = told.const_data_ptr<double>() + rank * count;
    if (rank == here) means.own.assign(row, row + count);
    for (std::size_t i = 0; i < mine.size(); ++i) means.all[i] += row[i];
  }
  for (double& mean : means.all) mean /= ranks;
  return means;
}

at::Tensor mean_over_data(comm::MeshGroups& mesh, c10::Device device, const at::Tensor& stacked) {
  comm::Group& data = mesh.over(layout::kDataAxes);
  const at::Tensor sum = stacked.detach().to(device, at::kFloat).mean(0);
  data.all_reduce(sum.view({-1}), "the mean of outputs").wait();
  return sum.div_(data.size());
}

}  // namespace capstan::engine
