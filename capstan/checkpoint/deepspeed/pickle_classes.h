// The classes that a pickle of torch.save and DeepSpeed may name, and the data that stands for what
// they would build. Nothing of theirs is called.
#pragma once

#include <string>
#include <vector>

#include "capstan/checkpoint/deepspeed/python_value.h"

namespace capstan::checkpoint {

// Thrown inside the reader of pickles, which says where.
struct IllFormed {
  std::string why;
};

bool is_known_class(const std::string& name);

// What calling the class with these arguments gives. Throws IllFormed.
PyRef call(const PyValue& callee, const std::vector<PyRef>& arguments);

// What the persistent id of a storage stands for: a tensor without a shape.
PyRef storage(const PyValue& id);

}  // namespace capstan::checkpoint
