// Loads an engine's state from a checkpoint: any saved stage, number of ranks and precision into
// any other.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "capstan/checkpoint/folder.h"
#include "capstan/engine/common.h"
#include "capstan/engine/saver.h"

namespace capstan::checkpoint {
class Reader;
}

namespace capstan::engine {

struct LoadPlan;
class StoredNames;

// Owns:    nothing: it fills what `common` names.
// Threads: one caller at a time.
// Ranks:   load() is collective: an error on one rank is thrown by all.
class Loader {
 public:
  // What `common` names and `saver` must outlive this.
  Loader(const Common& common, Saver& saver) : common_(common), saver_(saver) {}

  // See Engine::load_checkpoint().
  std::optional<Loaded> load(const std::filesystem::path& folder, const LoadOptions& how);

 private:
  struct Chosen {
    std::filesystem::path folder;             // empty: there is none
    std::optional<checkpoint::Found> newest;  // where it was chosen among several
  };
  std::filesystem::path named_checkpoint(const std::filesystem::path& folder,
                                         const std::string& tag, bool only_weights);
  Chosen find_checkpoint(const std::filesystem::path& folder, const LoadOptions& how,
                         std::vector<checkpoint::Found>& passed_over);
  Loaded load_from(const std::filesystem::path& chosen, const LoadOptions& how);
  void read_unit(checkpoint::Reader& reader, const LoadPlan& plan, const StoredNames& names,
                 int unit);
  void read_weights(checkpoint::Reader& reader, const LoadPlan& plan, const StoredNames& names);
  void read_optimizer(checkpoint::Reader& reader, const StoredNames& names);
  void restore_run(checkpoint::Reader& reader, const LoadOptions& how, bool optimizer);
  void restore_rng(checkpoint::Reader& reader);

  Common common_;
  Saver& saver_;
};

}  // namespace capstan::engine
