// The files page.html, page.css and *.js, as they are in the source.
#pragma once

#include <string_view>

namespace capstan::cli::page {

std::string_view page_html();
std::string_view page_css();
std::string_view page_js();

}  // namespace capstan::cli::page
