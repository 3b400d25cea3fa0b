// What all ranks save, from what each of them has: a tensor that several have slices of is one.
#pragma once

#include <vector>

#include <c10/core/Device.h>

#include "capstan/checkpoint/file_plan.h"
#include "capstan/comm/group.h"

namespace capstan::engine {

// The tensors of all, those of the first rank first; slices that several ranks have count once.
// Throws ConfigError for a tensor that has another dtype or shape on another rank.
std::vector<checkpoint::ColumnSpec> merge_columns(
    const std::vector<std::vector<checkpoint::ColumnSpec>>& ranks);

// Collective: merge_columns() of every rank's. Costs one number per rank and, where they are not
// all the same, one text of each kind: ranks that differ only in their data have the same, so that
// there are as many as the mesh has pipe x tensor, however many ranks that are.
std::vector<checkpoint::ColumnSpec> columns_of_all(comm::Group& group, c10::Device device,
                                                   std::vector<checkpoint::ColumnSpec> mine);

}  // namespace capstan::engine
