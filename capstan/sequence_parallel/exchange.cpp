#include "capstan/sequence_parallel/exchange.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include "capstan/base/error.h"
#include "capstan/base/text.h"

namespace capstan::sequence_parallel {
namespace {

using Sizes = std::vector<std::int64_t>;

// One tensor's way: cut into [ranks, part...] on its way out, and back on its way in.
struct Way {
  Dims dims;
  Sizes part;  // what one rank sends to another, in the order of the tensor's dimensions
  std::int64_t elems = 0;
};

[[noreturn]] void refuse(std::string what, std::string fix) {
  throw ConfigError(
      {.what = std::move(what), .where = "sequence parallelism", .fix = std::move(fix)});
}

int counted_from_start(int dim, const at::Tensor& tensor) {
  const int dims = static_cast<int>(tensor.dim());
  if (dim < -dims || dim >= dims) {
    refuse(fmt::format("a tensor of {} has no dimension {}", counted(dims, "dimension"), dim),
           "name two of its dimensions, the one to cut and the one to put together");
  }
  return dim < 0 ? dim + dims : dim;
}

Way way_of(const at::Tensor& tensor, Dims dims, int ranks) {
  dims = {.split = counted_from_start(dims.split, tensor),
          .join = counted_from_start(dims.join, tensor)};
  if (dims.split == dims.join) {
    refuse(fmt::format("dimension {} would be both cut and put together", dims.split),
           "name two different dimensions");
  }
  Way way{.dims = dims, .part = tensor.sizes().vec()};
  if (way.part[dims.split] % ranks != 0) {
    refuse(fmt::format("dimension {} of a tensor of shape [{}] cannot be cut into {} equal parts",
                       dims.split, fmt::join(way.part, ", "), ranks),
           fmt::format("make its length a multiple of {}", ranks));
  }
  way.part[dims.split] /= ranks;
  way.elems = tensor.numel() / ranks;
  return way;
}

// Views [ranks, part...] of one tensor's columns in a buffer whose rows belong to ranks.
at::Tensor columns(const at::Tensor& buffer, std::int64_t first, const Way& way) {
  Sizes sizes{buffer.size(0)};
  sizes.insert(sizes.end(), way.part.begin(), way.part.end());
  Sizes strides(sizes.size(), 1);
  for (std::size_t i = sizes.size() - 1; i > 1; --i) strides[i - 1] = strides[i] * sizes[i];
  strides[0] = buffer.size(1);
  return buffer.as_strided(sizes, strides, buffer.storage_offset() + first);
}

at::Tensor cut(const at::Tensor& tensor, const Way& way, int ranks) {
  return tensor.unflatten(way.dims.split, {ranks, way.part[way.dims.split]})
      .movedim(way.dims.split, 0);
}

at::Tensor put_together(const at::Tensor& parts, const Way& way) {
  return parts.movedim(0, way.dims.join).flatten(way.dims.join, way.dims.join + 1).contiguous();
}

Tensors move(const Tensors& tensors, Dims dims, comm::Group& group) {
  std::vector<Way> ways;
  std::int64_t elems = 0;
  for (const at::Tensor& tensor : tensors) {
    ways.push_back(way_of(tensor, dims, group.size()));
    elems += ways.back().elems;
  }
  const at::Tensor sent = at::empty({group.size(), elems}, tensors.front().options());
  const at::Tensor received = at::empty_like(sent);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    columns(sent, first, ways[i]).copy_(cut(tensors[i], ways[i], group.size()));
    first += ways[i].elems;
  }
  group.all_to_all(received.view(-1), sent.view(-1), "sequence parallelism").wait();
  Tensors whole;
  first = 0;
  for (const Way& way : ways) {
    whole.push_back(put_together(columns(received, first, way), way));
    first += way.elems;
  }
  return whole;
}

struct Exchange : torch::autograd::Function<Exchange> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList tensors, Dims dims,
                                                const std::shared_ptr<comm::Group>& group) {
    context->saved_data["split"] = dims.split;
    context->saved_data["join"] = dims.join;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(group));
    return move(tensors.vec(), dims, *group);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Dims back{.split = static_cast<int>(context->saved_data["join"].toInt()),
                    .join = static_cast<int>(context->saved_data["split"].toInt())};
    const auto held = context->saved_data["group"].toCapsule();
    Tensors moved = exchange(gradients, back, static_cast<Held&>(*held).group);
    moved.emplace_back();  // of dims
    moved.emplace_back();  // of the group
    return moved;
  }

 private:
  struct Held : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<comm::Group> kept) : group(std::move(kept)) {}
    std::shared_ptr<comm::Group> group;
  };
};

}  // namespace

Tensors exchange(const Tensors& tensors, Dims dims, const std::shared_ptr<comm::Group>& group) {
  if (tensors.empty()) return {};
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dtype() != tensors.front().dtype() || tensor.device() != tensors.front().device()) {
      refuse(fmt::format("tensors of {} on {} and of {} on {} cannot travel together",
                         comm::dtype_name(tensors.front().scalar_type()),
                         tensors.front().device().str(), comm::dtype_name(tensor.scalar_type()),
                         tensor.device().str()),
             "bring them to one dtype and one device");
    }
    way_of(tensor, dims, group->size());
  }
  if (group->size() == 1) return tensors;
  return Exchange::apply(at::TensorList(tensors), dims, group);
}

at::Tensor exchange(const at::Tensor& tensor, Dims dims,
                    const std::shared_ptr<comm::Group>& group) {
  return exchange(Tensors{tensor}, dims, group).front();
}

}  // namespace capstan::sequence_parallel
