// Writes plain data as a pickle (protocol 2, as torch.save does).
#pragma once

#include <string>

#include "capstan/checkpoint/deepspeed/python_value.h"

namespace capstan::checkpoint {

// Dicts become plain dicts. Objects are made by calling their class with the arguments, or, where
// they have attributes, made empty and given those.
std::string write_pickle(const PyValue& value);

}  // namespace capstan::checkpoint
