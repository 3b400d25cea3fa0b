// What a sharded parameter of a model holds between its uses.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace capstan::shard {

// Shape [0]; touching its data is an error that names the parameter.
at::Tensor make_placeholder(const std::string& param, at::TensorOptions options);

}  // namespace capstan::shard
