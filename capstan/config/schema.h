// The complete schema: every section and key that a configuration may hold.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "capstan/config/key.h"

namespace capstan::config {

// Immutable once made.
class Schema {
 public:
  // All sections, in the order of the document.
  explicit Schema(std::vector<Section> sections);

  const std::vector<Section>& sections() const { return sections_; }

  // The sections at `path` that hold for this "type" beside them (empty: there is none).
  std::vector<const Section*> at(std::string_view path, std::string_view type) const;
  // Whether any section lies at `path`, for whatever type.
  bool has(std::string_view path) const;
  // Whether the keys at `path` depend on the "type" beside it.
  bool depends_on_type(std::string_view path) const;
  // The name under which `name` is known below `parent` when it is another spelling of a section.
  std::string section_name(std::string_view parent, std::string_view name) const;
  // Names of keys and sections directly below `path` for this type, for suggestions.
  std::vector<std::string> names_below(std::string_view path, std::string_view type) const;
  // Paths of sections ("" for the top level) that know a key or a section of this name.
  std::vector<std::string> owners_of(std::string_view name) const;

 private:
  std::vector<Section> sections_;
};

// A section's feature comes before the key's own standing.
Standing standing_of(const Section& section, const Key& key);
std::string standing_reason_of(const Section& section, const Key& key);

// "a.b"; just the name at the top level.
std::string join_path(std::string_view path, std::string_view name);

const Schema& schema();

// The parts of the schema, one function per schema_*.cpp.
std::vector<Section> batch_sections();
std::vector<Section> diagnostics_sections();
std::vector<Section> optimizer_sections();
std::vector<Section> scheduler_sections();
std::vector<Section> precision_sections();
std::vector<Section> zero_sections();
std::vector<Section> offload_sections();
std::vector<Section> capstan_sections();
std::vector<Section> checkpoint_sections();
std::vector<Section> profiling_sections();
std::vector<Section> tuning_sections();
std::vector<Section> data_sections();
std::vector<Section> compression_sections();
std::vector<Section> parallel_sections();

}  // namespace capstan::config
