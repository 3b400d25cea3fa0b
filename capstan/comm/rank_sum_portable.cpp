#include <c10/util/Half.h>

#include "capstan/comm/rank_sum_inl.h"
#include "capstan/comm/rank_sum_loops.h"

namespace capstan::comm {
namespace {

struct PortableHalf {
  static void widen(const Fp16* from, float* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = c10::Half(from[i].bits, c10::Half::from_bits());
    }
  }
  static void narrow(const float* from, Fp16* to, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = {c10::Half(from[i]).x};
    }
  }
};

}  // namespace

SumLoop find_sum_loop_portable(at::ScalarType out, at::ScalarType piece) {
  return find_loop<PortableHalf>(out, piece);
}

}  // namespace capstan::comm
