// The scalars of a text: quoted strings with escapes, and what stands without quotes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "capstan/json/scanner.h"
#include "capstan/json/value.h"

namespace capstan::json {

// At a quote: "…", '…' or '''…'''. `open_keys` names the object around it, for a message.
std::string read_quoted(Scanner& scan, const std::function<std::string()>& open_keys);

// A number, true, false, null (also as Python writes them: True, None, Infinity, NaN), or else a
// string up to the end of the line with `quoted` false.
Value read_unquoted(Scanner& scan);

// At most 40 bytes of `text`, cut between characters, control characters as '?'.
std::string quote_for_message(std::string_view text);

}  // namespace capstan::json
