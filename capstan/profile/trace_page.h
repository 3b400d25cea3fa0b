// The page of a timeline but for its data, which stands between the two as JSON.
#pragma once

#include <string_view>

namespace capstan::profile {

extern const std::string_view kPageHead;
extern const std::string_view kPageTail;

}  // namespace capstan::profile
