#include "capstan/shard/placeholder.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

namespace capstan::shard {

// Its own storage, because the message cannot be taken off again.
at::Tensor make_placeholder(const std::string& param, at::TensorOptions options) {
  at::Tensor empty = at::empty({0}, options);
  empty.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      fmt::format("parameter '{0}' is used while it is sharded\n  fix:   mark the module that uses "
                  "it as a unit (capstan::nn::Unit), or hold a whole_parameters() pin for '{0}' "
                  "while you use it",
                  param));
  return empty;
}

}  // namespace capstan::shard
