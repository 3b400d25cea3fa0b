// What a checkpoint of an engine holds: the tensors of all ranks, and this rank's pieces of them.
#pragma once

#include <vector>

#include "capstan/checkpoint/file_plan.h"
#include "capstan/checkpoint/piece_writer.h"
#include "capstan/checkpoint/training_state.h"
#include "capstan/engine/common.h"

namespace capstan::engine {

struct SaveContents {
  std::vector<checkpoint::ColumnSpec> columns;  // for the plan of files
  std::vector<checkpoint::Piece> pieces;
  checkpoint::TrainingState state;
};

// Collective. Pieces read the memory of parameters and states when they are written.
SaveContents save_contents(const Common& common, const SaveOptions& how);

// Weights and states alone, as a save would read them now: how much memory copies of them need.
std::vector<checkpoint::Piece> state_pieces(const Common& common);

}  // namespace capstan::engine
