// Types of a section that only the caller has: classes of torch.optim, for example.
#pragma once

#include <string>

#include "capstan/config/context.h"
#include "capstan/config/convert.h"
#include "capstan/config/key.h"

namespace capstan::config {

// The value of a key "type": one of its choices, or a name of `others` in whatever case.
Converted convert_type(const Key& key, const OtherTypes& others, const json::Value& value);

}  // namespace capstan::config
