#include "tests/support/comm_cases.h"

#include <stdexcept>
#include <string>

#include <ATen/ATen.h>

namespace capstan {
namespace {

void expect_equal(const at::Tensor& got, const at::Tensor& expected, comm::OpKind kind) {
  if (!got.cpu().equal(expected)) {
    throw std::runtime_error(std::string(comm::to_string(kind)) + " of " +
                             std::string(comm::dtype_name(got.scalar_type())) +
                             " gave other values than expected");
  }
}

void check_gather_and_scatter(comm::Group& group, std::int64_t n, at::ScalarType dtype,
                              at::Device device) {
  const int size = group.size();
  const at::Tensor whole = at::zeros({n * size}, at::TensorOptions(dtype).device(device));
  group.all_gather(whole, numbers_of_rank(n, group.rank(), dtype).to(device)).wait();
  for (int rank = 0; rank < size; ++rank) {
    expect_equal(whole.narrow(0, rank * n, n), numbers_of_rank(n, rank, dtype),
                 comm::OpKind::all_gather);
  }
  const at::Tensor mine = at::zeros({n}, at::TensorOptions(dtype).device(device));
  group.reduce_scatter(mine, numbers_of_rank(n * size, group.rank(), dtype).to(device)).wait();
  expect_equal(mine, sum_over_ranks(size, n * size, dtype, dtype).narrow(0, group.rank() * n, n),
               comm::OpKind::reduce_scatter);
  if (dtype == at::kHalf || dtype == at::kBFloat16) {
    const at::Tensor wide = at::full({n}, 3.0, at::TensorOptions(at::kFloat).device(device));
    group
        .reduce_scatter(wide, numbers_of_rank(n * size, group.rank(), dtype).to(device),
                        {.accumulate = true})
        .wait();
    const at::Tensor sum = sum_over_ranks(size, n * size, dtype, at::kFloat);
    expect_equal(wide, sum.narrow(0, group.rank() * n, n).add(3.0), comm::OpKind::reduce_scatter);
  }
}

void check_all_to_all(comm::Group& group, std::int64_t n, at::ScalarType dtype, at::Device device) {
  const int size = group.size();
  const at::Tensor received = at::zeros({n * size}, at::TensorOptions(dtype).device(device));
  group.all_to_all(received, numbers_of_rank(n * size, group.rank(), dtype).to(device)).wait();
  for (int rank = 0; rank < size; ++rank) {
    expect_equal(received.narrow(0, rank * n, n),
                 numbers_of_rank(n * size, rank, dtype).narrow(0, group.rank() * n, n),
                 comm::OpKind::all_to_all);
  }
}

void check_ring(comm::Group& group, std::int64_t n, at::ScalarType dtype, at::Device device) {
  const int size = group.size();
  if (size == 1) {
    return;  // nobody else to send to
  }
  const int before = (group.rank() + size - 1) % size;
  const at::Tensor in = at::zeros({n}, at::TensorOptions(dtype).device(device));
  comm::PendingOp send =
      group.send(numbers_of_rank(n, group.rank(), dtype).to(device), (group.rank() + 1) % size);
  group.recv(in, before).wait();
  send.wait();
  expect_equal(in, numbers_of_rank(n, before, dtype), comm::OpKind::recv);
}

}  // namespace

at::Tensor numbers_of_rank(std::int64_t n, int rank, at::ScalarType dtype) {
  at::Tensor values = at::arange(n, at::kLong).mul(7 + rank).add(rank * 3).remainder(19);
  if (at::isFloatingType(dtype)) {
    return values.to(at::kDouble).div(7).to(dtype);
  }
  return values.to(dtype);
}

at::Tensor sum_over_ranks(int ranks, std::int64_t n, at::ScalarType dtype, at::ScalarType out) {
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  at::Tensor sum = numbers_of_rank(n, 0, dtype).to(narrow ? at::kFloat : dtype);
  for (int rank = 1; rank < ranks; ++rank) {
    sum = sum.add(numbers_of_rank(n, rank, dtype).to(sum.scalar_type()));
  }
  return sum.to(out);
}

void check_collectives(comm::Group& group, std::int64_t n, at::Device device) {
  for (const at::ScalarType dtype : kCommDtypes) {
    check_gather_and_scatter(group, n, dtype, device);
    check_all_to_all(group, n, dtype, device);
    check_ring(group, n, dtype, device);
    const at::Tensor sum = numbers_of_rank(n, group.rank(), dtype).to(device);
    group.all_reduce(sum).wait();
    expect_equal(sum, sum_over_ranks(group.size(), n, dtype, dtype), comm::OpKind::all_reduce);
    for (int root = 0; root < group.size(); ++root) {
      const at::Tensor tensor = numbers_of_rank(n, group.rank(), dtype).to(device);
      group.broadcast(tensor, root).wait();
      expect_equal(tensor, numbers_of_rank(n, root, dtype), comm::OpKind::broadcast);
    }
  }
  group.barrier().wait();
}

}  // namespace capstan
