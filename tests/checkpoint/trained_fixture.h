// A small checkpoint with all that a run leaves in it, for tests of other layouts.
#pragma once

#include "tests/checkpoint/checkpoint_fixture.h"

namespace capstan::checkpoint {

// Two trained tensors of awkward sizes, a frozen one, a buffer and an alias.
inline SaveRequest trained_request(const std::filesystem::path& folder) {
  SaveRequest request{.folder = folder, .tag = "step5"};
  request.state = {.stage = 2,
                   .world_size = 2,
                   .precision = {{"params", "bf16"}},
                   .progress = {{"steps", 5}, {"optimizer_steps", 5}, {"samples", 40}},
                   .optimizer = "adamw",
                   .optimizer_states = {"exp_avg", "exp_avg_sq"},
                   .optimizer_scalars = {{"lr", 0.01}, {"beta1", 0.8}},
                   .client_state = R"({"epoch": 3})",
                   .aliases = {{"head", "a"}},
                   .frozen = {"frozen"},
                   .buffers = {"offset"}};
  return request;
}

inline std::vector<ColumnSpec> trained_columns() {
  const std::vector<TensorSpec> trained = {{"a", Element::f32, {7, 11}}, {"b", Element::f32, {13}}};
  std::vector<TensorSpec> weights = trained;
  for (TensorSpec& weight : weights) weight.element = Element::bf16;
  weights.push_back({"frozen", Element::bf16, {5}});
  weights.push_back({"offset", Element::f32, {3}});
  return {{kModelColumn, weights},
          {kMasterColumn, trained},
          {"optimizer.exp_avg", trained},
          {"optimizer.exp_avg_sq", trained}};
}

inline std::filesystem::path save_trained(
    const SaveRequest& request, const std::vector<ColumnSpec>& columns = trained_columns()) {
  io::DurableCalls calls;
  Disk disk = system_disk(calls);
  const FilePlan plan = plan_files(columns, kMaxFileBytes);
  const std::filesystem::path partial = begin_save(request, plan, disk);
  PieceWriter writer(plan, partial, {}, disk);
  for (const Piece& piece : test_pieces(columns, 0, 1, 3)) writer.write(piece);
  write_part(partial, 0, writer.finish(), disk);
  return commit_save(partial, request, plan, 1, disk).folder;
}

inline std::filesystem::path save_trained(const std::filesystem::path& folder) {
  return save_trained(trained_request(folder));
}

}  // namespace capstan::checkpoint
