#include "capstan/tensor_parallel/collectives.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/WrapDimMinimal.h>
#include <fmt/format.h>

#include "capstan/base/error.h"

namespace capstan::tensor_parallel {
namespace {

// Throws where ranks do not divide the dimension.
std::int64_t part_length(comm::Group& group, const at::Tensor& whole, std::int64_t dim) {
  const std::int64_t length = whole.size(dim);
  if (length % group.size() == 0) return length / group.size();
  throw ConfigError(
      {.what = fmt::format("{} ranks do not divide dimension {} of a tensor, which has length {}",
                           group.size(), dim, length),
       .where = fmt::format("group {}", group.name()),
       .fix = "choose a length that the number of tensor ranks divides, or pad it to one"});
}

}  // namespace

PendingTensor::PendingTensor(comm::PendingOp op, at::Tensor flat, std::vector<std::int64_t> shape)
    : op_(std::move(op)), flat_(std::move(flat)), shape_(std::move(shape)) {}

at::Tensor PendingTensor::wait() {
  op_.wait();
  const at::Tensor result = std::exchange(flat_, {}).view(shape_);
  if (parts_dim_ < 0) return result;
  return result.movedim(0, parts_dim_).flatten(parts_dim_, parts_dim_ + 1).contiguous();
}

PendingTensor start_sum(comm::Group& group, const at::Tensor& own) {
  const at::Tensor flat = own.contiguous().view(-1);
  if (group.size() == 1) return {comm::PendingOp(), flat, own.sizes().vec()};
  return {group.all_reduce(flat, "tensor_parallel"), flat, own.sizes().vec()};
}

PendingTensor start_gather(comm::Group& group, const at::Tensor& part, std::int64_t dim) {
  if (group.size() == 1) {
    return {comm::PendingOp(), part.contiguous().view(-1), part.sizes().vec()};
  }
  const at::Tensor mine = part.contiguous().view(-1);
  const at::Tensor all = at::empty({group.size() * mine.numel()}, mine.options());
  std::vector<std::int64_t> shape = part.sizes().vec();
  shape.insert(shape.begin(), group.size());
  PendingTensor pending(group.all_gather(all, mine, "tensor_parallel"), all, std::move(shape));
  pending.parts_dim_ = c10::maybe_wrap_dim(dim, part.dim());
  return pending;
}

PendingTensor start_reduce_scatter(comm::Group& group, const at::Tensor& whole, std::int64_t dim) {
  dim = c10::maybe_wrap_dim(dim, whole.dim());
  std::vector<std::int64_t> shape = whole.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = part_length(group, whole, dim);
  if (group.size() == 1) return {comm::PendingOp(), whole.contiguous().view(-1), std::move(shape)};
  const at::Tensor parts =
      whole.unflatten(dim, {group.size(), whole.size(dim) / group.size()}).movedim(dim, 0);
  const at::Tensor flat = parts.contiguous().view(-1);
  const at::Tensor mine = at::empty({flat.numel() / group.size()}, flat.options());
  return {group.reduce_scatter(mine, flat, {.label = "tensor_parallel"}), mine, std::move(shape)};
}

at::Tensor own_part(comm::Group& group, const at::Tensor& whole, std::int64_t dim) {
  const std::int64_t length = part_length(group, whole, dim);
  return whole.narrow(dim, group.rank() * length, length);
}

}  // namespace capstan::tensor_parallel
