// The keys behind the options that messages of the folders below name.
#pragma once

#include "capstan/base/option_names.h"

namespace capstan::config {

OptionNames option_names();

}  // namespace capstan::config
