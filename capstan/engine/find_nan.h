// Names what is not finite first: for runs that asked for it.
#pragma once

#include <string>
#include <vector>

#include "capstan/engine/common.h"
#include "capstan/shard/hooks.h"

namespace capstan::engine {

// Of each step, the first output of a unit and the first gradient of a parameter on this rank: in a
// warning, and in the rank's notes.
// Threads: as the hooks.
class FindNan final : public shard::FiniteWatcher {
 public:
  // What `common` names must outlive this.
  FindNan(const Common& common, const shard::ModelView& view);

  void output_not_finite(int boundary) override;
  void gradient_not_finite(int param) override;

 private:
  void tell(const std::string& what, std::int64_t& last);

  Common common_;
  std::vector<std::string> units_;
  std::int64_t last_output_ = -1;    // the step of the last one that was told
  std::int64_t last_gradient_ = -1;  // likewise
};

}  // namespace capstan::engine
