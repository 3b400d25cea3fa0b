// The element-wise optimizers, once, for every instruction set: small function objects over a
// vector type (cpu/vec_scalar.h shows what that offers) with the order of roundings written out
// (explicit fma, IEEE division and square root): the same bits everywhere, save a NaN's payload.
// constexpr lets nvcc --expt-relaxed-constexpr use this text over a type with constexpr __device__
// operations.
#pragma once

namespace capstan::optim {

// One vector of elements on its way through an update.
template <typename Vec>
struct Lanes {
  Vec grad;
  Vec master;
  Vec states[2];
};

// Constants of one step, rounded to fp32 once (constants.h), so that CPU and GPU start from the
// same bits. All are products of what the user set; names say which.
struct AdamConstants {
  float grad_factor;     // unscale and clip
  float l2_decay;        // weight decay added to the gradient; 0 when decoupled
  float minus_lr_decay;  // -lr * weight decay; 0 when not decoupled
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float inv_sqrt_correction2;  // 1 / sqrt(1 - beta2^step)
  float eps;
  float minus_lr_per_correction1;  // -lr / (1 - beta1^step)
};

struct SgdConstants {
  float grad_factor;
  float l2_decay;
  float momentum;
  float one_minus_dampening;
  float minus_lr;
  bool nesterov;
  bool first_step;  // the buffer starts as the gradient, without dampening
};

struct LionConstants {
  float grad_factor;
  float minus_lr_decay;
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float minus_lr;
};

struct AdagradConstants {
  float grad_factor;
  float l2_decay;
  float eps;
  float minus_lr;  // with lr_decay applied
};

struct LambConstants {
  float grad_factor;
  float decay;
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float eps;
  bool eps_inside_sqrt;
};

struct AdamRule {
  static constexpr int kStates = 2;
  AdamConstants c;

  template <typename Vec>
  constexpr void operator()(Lanes<Vec>& x) const {
    Vec g = x.grad * Vec::splat(c.grad_factor);
    if (c.l2_decay != 0.0f) g = fma(Vec::splat(c.l2_decay), x.master, g);
    Vec& m = x.states[0];
    Vec& v = x.states[1];
    m = fma(Vec::splat(c.beta1), m, Vec::splat(c.one_minus_beta1) * g);
    v = fma(Vec::splat(c.beta2), v, (Vec::splat(c.one_minus_beta2) * g) * g);
    const Vec root = fma(sqrt(v), Vec::splat(c.inv_sqrt_correction2), Vec::splat(c.eps));
    if (c.minus_lr_decay != 0.0f) {
      x.master = fma(Vec::splat(c.minus_lr_decay), x.master, x.master);
    }
    x.master = fma(Vec::splat(c.minus_lr_per_correction1), m / root, x.master);
  }
};

struct SgdRule {
  static constexpr int kStates = 0;
  SgdConstants c;

  template <typename Vec>
  constexpr void operator()(Lanes<Vec>& x) const {
    Vec g = x.grad * Vec::splat(c.grad_factor);
    if (c.l2_decay != 0.0f) g = fma(Vec::splat(c.l2_decay), x.master, g);
    x.master = fma(Vec::splat(c.minus_lr), g, x.master);
  }
};

struct SgdMomentumRule {
  static constexpr int kStates = 1;
  SgdConstants c;

  template <typename Vec>
  constexpr void operator()(Lanes<Vec>& x) const {
    Vec g = x.grad * Vec::splat(c.grad_factor);
    if (c.l2_decay != 0.0f) g = fma(Vec::splat(c.l2_decay), x.master, g);
    Vec& buffer = x.states[0];
    const Vec momentum = Vec::splat(c.momentum);
    buffer = c.first_step ? g : fma(momentum, buffer, Vec::splat(c.one_minus_dampening) * g);
    const Vec direction = c.nesterov ? fma(momentum, buffer, g) : buffer;
    x.master = fma(Vec::splat(c.minus_lr), direction, x.master);
  }
};

// An element whose blended direction is exactly zero (padding, unused parameters) does not move.
struct LionRule {
  static constexpr int kStates = 1;
  LionConstants c;

  template <typename Vec>
  constexpr void operator()(Lanes<Vec>& x) const {
    const Vec g = x.grad * Vec::splat(c.grad_factor);
    Vec& m = x.states[0];
    const Vec blend = fma(Vec::splat(c.beta1), m, Vec::splat(c.one_minus_beta1) * g);
    if (c.minus_lr_decay != 0.0f) {
      x.master = fma(Vec::splat(c.minus_lr_decay), x.master, x.master);
    }
    x.master = fma(Vec::splat(c.minus_lr), sign(blend), x.master);
    m = fma(Vec::splat(c.beta2), m, Vec::splat(c.one_minus_beta2) * g);
  }
};

struct AdagradRule {
  static constexpr int kStates = 1;
  AdagradConstants c;

  template <typename Vec>
  constexpr void operator()(Lanes<Vec>& x) const {
    Vec g = x.grad * Vec::splat(c.grad_factor);
    if (c.l2_decay != 0.0f) g = fma(Vec::splat(c.l2_decay), x.master, g);
    Vec& sum = x.states[0];
    sum = fma(g, g, sum);
    x.master = fma(Vec::splat(c.minus_lr), g / (sqrt(sum) + Vec::splat(c.eps)), x.master);
  }
};

// LAMB's first phase: the moments. The parameters move in the second, by the direction below.
template <typename Vec>
constexpr void update_lamb_moments(const LambConstants& c, Lanes<Vec>& x) {
  const Vec g = x.grad * Vec::splat(c.grad_factor);
  Vec& m = x.states[0];
  Vec& v = x.states[1];
  m = fma(Vec::splat(c.beta1), m, Vec::splat(c.one_minus_beta1) * g);
  v = fma(Vec::splat(c.beta2), v, (Vec::splat(c.one_minus_beta2) * g) * g);
}

// The direction of a LAMB step from the stored moments: both phases compute it from the same bytes,
// so no buffer has to keep it between them.
template <typename Vec>
constexpr Vec lamb_direction(const LambConstants& c, const Lanes<Vec>& x) {
  const Vec eps = Vec::splat(c.eps);
  const Vec v = x.states[1];
  const Vec root = c.eps_inside_sqrt ? sqrt(v + eps) : sqrt(v) + eps;
  return fma(Vec::splat(c.decay), x.master, x.states[0] / root);
}

// LAMB's second phase.
struct LambApplyRule {
  LambConstants c;
  float minus_step;  // -(bias-corrected lr) * trust ratio

  template <typename Vec>
  constexpr void operator()(Lanes<Vec>& x) const {
    x.master = fma(Vec::splat(minus_step), lamb_direction(c, x), x.master);
  }
};

}  // namespace capstan::optim
