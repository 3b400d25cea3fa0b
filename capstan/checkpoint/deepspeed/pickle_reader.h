// Reads a pickle as data. The machine knows how containers, numbers and texts are put together and
// a short list of classes; any other class is refused by its name, and nothing is ever called.
#pragma once

#include <string>
#include <string_view>

#include "capstan/checkpoint/deepspeed/python_value.h"

namespace capstan::checkpoint {

// `source` is for messages. Throws IoError for a pickle that is cut off, ill-formed, or names a
// class that is not on the list.
PyRef read_pickle(std::string_view bytes, const std::string& source);

}  // namespace capstan::checkpoint
