#include "capstan/checkpoint/deepspeed/exported_groups.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/file_plan.h"

namespace capstan::checkpoint {
namespace {

// Everything that is neither frozen nor a buffer.
ParamGroup group_of_all(const Index& index) {
  std::set<std::string> others(index.state.frozen.begin(), index.state.frozen.end());
  others.insert(index.state.buffers.begin(), index.state.buffers.end());
  ParamGroup group;
  for (const IndexTensor& tensor : index.find(kModelColumn)->tensors) {
    if (!others.contains(tensor.spec.name)) group.params.push_back(tensor.spec.name);
  }
  return group;
}

ExportedGroup exported_group(Reader& reader, const ParamGroup& from) {
  const TrainingState& state = reader.index().state;
  ExportedGroup group{.params = {}, .masters = {}, .hyper = from.hyper};
  group.hyper.insert(state.optimizer_scalars.begin(), state.optimizer_scalars.end());
  for (const std::string& name : from.params) {
    group.params.push_back(&reader.index().tensor(kModelColumn, name));
    const IndexTensor* const master = reader.find(kMasterColumn, name);
    group.masters.push_back(master != nullptr ? master : group.params.back());
    if (group.masters.back()->spec.element == Element::f32 && !state.optimizer_states.empty()) {
      continue;
    }
    throw ConfigError({.what = fmt::format("'{}' has no fp32 master or no optimizer state", name),
                       .where = reader.folder().string(),
                       .fix = "export a checkpoint that was saved with its optimizer"});
  }
  return group;
}

PyRef torch_group(const ExportedGroup& group, std::vector<PyRef> params, bool decoupled) {
  const auto number = [&](const char* name, double otherwise) {
    const auto found = group.hyper.find(name);
    return py_real(found == group.hyper.end() ? otherwise : found->second);
  };
  return py_dict({{py_text("lr"), number("lr", 1e-3)},
                  {py_text("betas"), py_tuple({number("beta1", 0.9), number("beta2", 0.999)})},
                  {py_text("eps"), number("eps", 1e-8)},
                  {py_text("weight_decay"), number("weight_decay", 0)},
                  {py_text("amsgrad"), py_bool(false)},
                  {py_text("maximize"), py_bool(false)},
                  {py_text("foreach"), py_none()},
                  {py_text("capturable"), py_bool(false)},
                  {py_text("differentiable"), py_bool(false)},
                  {py_text("fused"), py_none()},
                  {py_text("bias_correction"), py_bool(true)},
                  {py_text("decoupled_weight_decay"), py_bool(decoupled)},
                  {py_text("params"), py_list(std::move(params))}});
}

}  // namespace

std::vector<ExportedGroup> exported_groups(Reader& reader) {
  const std::vector<ParamGroup>& known = reader.index().state.param_groups;
  if (known.empty()) return {exported_group(reader, group_of_all(reader.index()))};
  std::vector<ExportedGroup> groups;
  groups.reserve(known.size());
  for (const ParamGroup& group : known) groups.push_back(exported_group(reader, group));
  return groups;
}

PyRef torch_state(const std::vector<ExportedGroup>& groups,
                  const std::vector<std::vector<Entries>>& states, bool decoupled_weight_decay) {
  Entries by_index;
  std::vector<PyRef> torch_groups;
  std::int64_t next = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<PyRef> params;
    params.reserve(states[g].size());
    for (const Entries& each : states[g]) {
      by_index.emplace_back(py_int(next), py_dict(each));
      params.push_back(py_int(next++));
    }
    torch_groups.push_back(torch_group(groups[g], std::move(params), decoupled_weight_decay));
  }
  return py_dict({{py_text("state"), py_dict(std::move(by_index))},
                  {py_text("param_groups"), py_list(std::move(torch_groups))}});
}

}  // namespace capstan::checkpoint
