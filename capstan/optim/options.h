// Which optimizer updates the parameters, with its hyper-parameters and those of parameter groups.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace capstan::optim {

enum class Kind { adam, adamw, sgd, lion, adagrad, lamb };

constexpr std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::adam:
      return "adam";
    case Kind::adamw:
      return "adamw";
    case Kind::sgd:
      return "sgd";
    case Kind::lion:
      return "lion";
    case Kind::adagrad:
      return "adagrad";
    case Kind::lamb:
      break;
  }
  return "lamb";
}

// Only the fields that a kind's equations name are read; config refuses the others.
struct HyperParams {
  double lr = 1e-3;
  double beta1 = 0.9;           // adam, adamw, lion, lamb
  double beta2 = 0.999;         // adam, adamw, lion, lamb
  double eps = 1e-8;            // adam, adamw, adagrad, lamb
  double weight_decay = 0;      // decoupled for adamw and lion; added to the gradient for adam, sgd
  bool bias_correction = true;  // adam, adamw, lamb: without it early steps are too small
  double momentum = 0;          // sgd; above 0 costs one state of the parameters' size
  double dampening = 0;         // sgd
  bool nesterov = false;        // sgd; needs momentum
  double lr_decay = 0;          // adagrad
  double initial_accumulator = 0;  // adagrad
  double max_coeff = 10;           // lamb: bounds of the trust ratio
  double min_coeff = 0.01;         // lamb
  bool eps_inside_sqrt = false;    // lamb: sqrt(v + eps) instead of sqrt(v) + eps
  bool operator==(const HyperParams&) const = default;
};

// What each kind uses where the user says nothing.
constexpr HyperParams default_hyper_params(Kind kind) {
  HyperParams hyper;
  if (kind == Kind::adagrad) {
    hyper.lr = 1e-2;
    hyper.eps = 1e-10;
  }
  return hyper;
}

// Parameters with hyper-parameters of their own. A parameter belongs to the first group of which a
// pattern matches its name ('*' stands for any text), else to the default group.
struct Group {
  std::vector<std::string> patterns;  // e.g. {"*.bias", "*ln_*"}
  HyperParams hyper;
  bool operator==(const Group&) const = default;
};

struct Options {
  Kind kind = Kind::adamw;
  HyperParams hyper;  // of every parameter that no group matches
  std::vector<Group> groups;
  bool operator==(const Options&) const = default;
};

}  // namespace capstan::optim
