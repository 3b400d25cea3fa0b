#include "capstan/shard/placeholder.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

namespace capstan::shard {

// Its own storage, because the message cannot be taken off again.
at::Tensor make_placeholder(const std::string& param, at::TensorOptions options) {
  at::Tensor empty = at::empty({0}, options);
  empty.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      fmt::format("parameter '{}' is used while it is sharded\n  fix:   use it inside the forward "
                  "of its module (in C++ an nn::Unit), or hold it whole: capstan.gathered() in "
                  "Python, whole_parameters() in C++; convert a model before you create the engine",
                  param));
  return empty;
}

}  // namespace capstan::shard
