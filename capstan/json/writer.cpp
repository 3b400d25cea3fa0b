#include "capstan/json/writer.h"

#include <cmath>

#include <fmt/format.h>

namespace capstan::json {
namespace {

class Writer {
 public:
  explicit Writer(int indent) : indent_(indent) {}

  std::string take() { return std::move(out_); }

  void write(const Value& value, int depth) {
    switch (value.kind()) {
      case Kind::null:
        out_ += "null";
        break;
      case Kind::boolean:
        out_ += *value.boolean() ? "true" : "false";
        break;
      case Kind::integer:
        out_ += fmt::to_string(*value.integer());
        break;
      case Kind::real:
        write_real(*value.real());
        break;
      case Kind::text:
        write_text(*value.text());
        break;
      case Kind::array:
        write_array(*value.array(), depth);
        break;
      case Kind::object:
        write_object(*value.object(), depth);
        break;
    }
  }

 private:
  void write_real(double value) {
    if (std::isnan(value)) {
      out_ += "NaN";
    } else if (std::isinf(value)) {
      out_ += value > 0 ? "Infinity" : "-Infinity";
    } else {
      const std::string digits = fmt::format("{}", value);
      out_ += digits;
      // Without point or exponent it would read back as an integer.
      if (digits.find_first_of(".e") == std::string::npos) out_ += ".0";
    }
  }

  void write_text(const std::string& text) {
    out_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += c;
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (static_cast<unsigned char>(c) < 0x20) {
        out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      } else {
        out_ += c;
      }
    }
    out_ += '"';
  }

  void write_array(const Array& items, int depth) {
    out_ += '[';
    bool first = true;
    for (const Value& item : items) {
      if (!first) out_ += ',';
      break_line(depth + 1, first);
      first = false;
      write(item, depth + 1);
    }
    if (!items.empty()) break_line(depth, true);
    out_ += ']';
  }

  void write_object(const Object& members, int depth) {
    out_ += '{';
    bool first = true;
    for (const Member& member : members) {
      if (!first) out_ += ',';
      break_line(depth + 1, first);
      first = false;
      write_text(member.key);
      out_ += ": ";
      write(member.value, depth + 1);
    }
    if (!members.empty()) break_line(depth, true);
    out_ += '}';
  }

  // On one line, a space after a comma stands for the line break, and nothing at the brackets.
  void break_line(int depth, bool at_bracket) {
    if (indent_ > 0) {
      out_ += '\n';
      out_.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(depth), ' ');
    } else if (!at_bracket) {
      out_ += ' ';
    }
  }

  std::string out_;
  int indent_;
};

}  // namespace

std::string write(const Value& value, const WriteOptions& options) {
  Writer writer(options.indent);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace capstan::json
