// The GPU's kernels against the scalar reference: the same bits, whatever the lengths, dtypes,
// alignments and values.
#include <cstring>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "capstan/device/facts.h"
#include "capstan/optim/cuda/update.h"
#include "capstan/optim/lamb.h"
#include "capstan/optim/update.h"
#include "tests/optim/kernel_cases.h"

namespace capstan::optim {
namespace {

// Device memory with guards around it, at the alignment that the host's column has.
class DeviceCopy {
 public:
  DeviceCopy(const void* host, std::size_t bytes)
      : host_(const_cast<void*>(host)),
        bytes_(bytes),
        shift_(kGuard + reinterpret_cast<std::uintptr_t>(host) % kAlign) {
    cudaMalloc(reinterpret_cast<void**>(&memory_), shift_ + bytes + kGuard);
    cudaMemset(memory_, kGuardByte, shift_ + bytes + kGuard);
    cudaMemcpy(data(), host_, bytes_, cudaMemcpyHostToDevice);
  }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  ~DeviceCopy() { cudaFree(memory_); }

  unsigned char* data() const { return memory_ + shift_; }
  void read_back() const {
    EXPECT_EQ(cudaMemcpy(host_, data(), bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    std::vector<unsigned char> guards(shift_ + kGuard);
    cudaMemcpy(guards.data(), memory_, shift_, cudaMemcpyDeviceToHost);
    cudaMemcpy(guards.data() + shift_, data() + bytes_, kGuard, cudaMemcpyDeviceToHost);
    for (const unsigned char byte : guards) ASSERT_EQ(byte, kGuardByte);
  }

 private:
  static constexpr std::size_t kAlign = 64;
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kGuardByte = 0xa5;
  void* host_;
  std::size_t bytes_;
  std::size_t shift_;
  unsigned char* memory_ = nullptr;
};

// A span's columns in device memory; columns that are one on the host are one there too.
class DeviceSpan {
 public:
  explicit DeviceSpan(const Span& host) : span(host) {
    move(span.master);
    move(span.states[0]);
    if (host.states[1].data == host.states[0].data) {
      span.states[1] = span.states[0];
    } else {
      move(span.states[1]);
    }
    move(span.param);
    Column grad{const_cast<void*>(host.grad.data), host.grad.dtype};
    move(grad);
    span.grad = {grad.data, grad.dtype};
  }
  ~DeviceSpan() {
    for (const auto& copy : copies_) copy->read_back();
  }

  Span span;

 private:
  void move(Column& column) {
    const auto bytes = static_cast<std::size_t>(span.elems * size_bytes(column.dtype));
    copies_.push_back(std::make_unique<DeviceCopy>(column.data, bytes));
    column.data = copies_.back()->data();
  }
  std::vector<std::unique_ptr<DeviceCopy>> copies_;
};

double step_on_device(const Case& c, const StepScalars& scalars, const Span& host) {
  const DeviceSpan device(host);
  if (c.variant.kind != Kind::lamb) {
    update(c.variant.kind, c.variant.hyper, scalars, device.span, CudaRun{});
    return 1.0;
  }
  LambSums sums;
  std::vector<double> scratch(static_cast<std::size_t>(2 * sum_block_count(c.elems)) + 2);
  if (c.elems > 0) {
    const DeviceCopy blocks(scratch.data(), scratch.size() * sizeof(double));
    const DeviceCopy out(&sums, sizeof sums);
    lamb_prepare(c.variant.hyper, scalars, device.span, reinterpret_cast<double*>(blocks.data()),
                 reinterpret_cast<double*>(out.data()), CudaRun{});
    out.read_back();
  }
  const double ratio = lamb_trust_ratio(c.variant.hyper, sums);
  lamb_apply(c.variant.hyper, scalars, ratio, device.span, CudaRun{});
  return ratio;
}

class CudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (device::list_devices().empty()) GTEST_SKIP() << "no GPU: " << device::why_no_devices();
  }
  void expect_equal(const Case& c) {
    WorkerPool pool(1);
    const CpuRun reference = {.pool = pool, .simd = Simd::scalar};
    EXPECT_EQ(run_case(c, step_on_device), run_case(c, cpu_stepper(reference))) << text_of(c);
  }
};

TEST_F(CudaKernels, GiveTheReferencesBitsAtEveryLength) {
  for (const Variant& variant : variants()) {
    for (const std::int64_t elems : {0, 1, 3, 4, 5, 31, 32, 33, 127, 1000, 16'384, 40'001}) {
      expect_equal(
          {variant, {DType::fp32, DType::bf16, DType::fp32, DType::bf16}, elems, 0, false});
    }
  }
}

TEST_F(CudaKernels, GiveTheReferencesBitsAtEveryMisalignment) {
  for (const Case& c : misaligned_cases(9)) expect_equal(c);
}

TEST_F(CudaKernels, GiveTheReferencesBitsForZerosInfinitiesNansAndDenormals) {
  for (const Case& c : awkward_cases()) expect_equal(c);
}

TEST_F(CudaKernels, GiveTheReferencesBitsForEveryCombinationOfDtypes) {
  for (const Variant& variant : variants()) {
    for (const DType master : kAllDtypes) {
      for (const DType grad : kAllDtypes) {
        for (const DType state : kAllDtypes) {
          expect_equal({variant, {master, grad, state, DType::bf16}, 83, 0, false});
        }
      }
    }
  }
}

TEST_F(CudaKernels, AddSquaresInTheOrderOfTheCpu) {
  std::vector<TestColumn> columns;
  unsigned seed = 0;
  for (const std::int64_t elems : {1, 31, 32, 100, 16'383, 16'384, 16'385, 700'001}) {
    for (const DType dtype : kAllDtypes) {
      columns.emplace_back(dtype, normal_values(elems, ++seed, 100.0f), 0);
    }
  }
  std::vector<SumPiece> pieces;
  std::vector<std::unique_ptr<DeviceCopy>> copies;
  std::vector<double> expected;
  WorkerPool pool(1);
  SumWork work;
  for (TestColumn& column : columns) {
    const auto elems = static_cast<std::int64_t>(column.values().size());
    const auto bytes = static_cast<std::size_t>(elems * size_bytes(column.view().dtype));
    copies.push_back(std::make_unique<DeviceCopy>(column.view().data, bytes));
    pieces.push_back({.column = {copies.back()->data(), column.view().dtype},
                      .elems = elems,
                      .first_block = work.block_count});
    work.block_count += sum_block_count(elems);
    expected.push_back(sum_squares(column.view(), elems, {.pool = pool, .simd = Simd::scalar}));
  }
  work.piece_count = static_cast<std::int64_t>(pieces.size());
  std::vector<double> blocks(static_cast<std::size_t>(work.block_count));
  std::vector<double> sums(pieces.size());
  const DeviceCopy table(pieces.data(), pieces.size() * sizeof(SumPiece));
  const DeviceCopy scratch(blocks.data(), blocks.size() * sizeof(double));
  const DeviceCopy out(sums.data(), sums.size() * sizeof(double));
  work.pieces = reinterpret_cast<const SumPiece*>(table.data());
  work.blocks = reinterpret_cast<double*>(scratch.data());
  sum_squares(work, reinterpret_cast<double*>(out.data()), CudaRun{});
  out.read_back();
  EXPECT_EQ(sums, expected);
}

GateResult decide(std::vector<GradFindings> of_ranks, const GateRule& rule) {
  GateResult result;
  const DeviceCopy in(of_ranks.data(), of_ranks.size() * sizeof(GradFindings));
  const DeviceCopy out(&result, sizeof result);
  decide_gate(reinterpret_cast<const GradFindings*>(in.data()), static_cast<int>(of_ranks.size()),
              rule, reinterpret_cast<GateResult*>(out.data()), CudaRun{});
  out.read_back();
  return result;
}

TEST_F(CudaKernels, ClipByTheNormOfAllRanks) {
  const GateResult result =
      decide({{9.0, -1}, {16.0, -1}}, {.gradient_factor = 0.5, .clip_norm = 0.25});
  EXPECT_EQ(result.gate.apply, 1);
  EXPECT_EQ(result.all.squares, 25.0);
  EXPECT_EQ(result.gate.grad_factor, static_cast<float>(0.5 / ((2.5 + 1e-6) / 0.25)));
}

TEST_F(CudaKernels, SkipAStepAndNameTheFirstBadParameter) {
  const double inf = std::numeric_limits<double>::infinity();
  const GateRule look = {.gradient_factor = 0.5, .skip_non_finite = true};
  EXPECT_EQ(decide({{1.0, -1}, {inf, 7}, {inf, 3}}, look).gate.apply, 0);
  EXPECT_EQ(decide({{1.0, -1}, {inf, 7}, {inf, 3}}, look).all.first_bad, 3.0);
  EXPECT_EQ(decide({{1.0, -1}, {inf, 7}}, {.gradient_factor = 0.5}).gate.apply, 1);
}

TEST_F(CudaKernels, ChangeNothingBehindAClosedGate) {
  const StepGate closed = {.grad_factor = 1.0f, .apply = 0};
  StepGate host = closed;
  const DeviceCopy gate(&host, sizeof host);
  const Case c = {{"adamw", Kind::adamw, {.weight_decay = 0.1}},
                  {DType::fp32, DType::bf16, DType::fp32, DType::bf16},
                  1000,
                  0,
                  false};
  const auto nothing = [](const Case&, const StepScalars&, const Span&) { return 1.0; };
  const auto gated = [&](const Case& c, const StepScalars& scalars, const Span& span) {
    const DeviceSpan device(span);
    update(c.variant.kind, c.variant.hyper, scalars, device.span,
           CudaRun{.gate = reinterpret_cast<const StepGate*>(gate.data())});
    return 1.0;
  };
  EXPECT_EQ(run_case(c, gated), run_case(c, nothing));
}

}  // namespace
}  // namespace capstan::optim
