#include "capstan/checkpoint/deepspeed/pickle_writer.h"

#include <bit>
#include <cstring>
#include <limits>

#include "capstan/base/error.h"

namespace capstan::checkpoint {
namespace {

std::string_view storage_class(Element element) {
  switch (element) {
    case Element::f64:
      return "DoubleStorage";
    case Element::f16:
      return "HalfStorage";
    case Element::bf16:
      return "BFloat16Storage";
    case Element::i64:
      return "LongStorage";
    case Element::i32:
      return "IntStorage";
    case Element::i16:
      return "ShortStorage";
    case Element::i8:
      return "CharStorage";
    case Element::u8:
      return "ByteStorage";
    case Element::boolean:
      return "BoolStorage";
    case Element::f32:
      break;
  }
  return "FloatStorage";
}

class PickleText {
 public:
  std::string take() { return std::move(out_); }

  void write(const PyValue& value) {
    switch (value.kind) {
      case PyKind::none:
        out_ += 'N';
        break;
      case PyKind::boolean:
        out_ += value.boolean ? '\x88' : '\x89';
        break;
      case PyKind::integer:
        integer(value.integer);
        break;
      case PyKind::real:
        real(value.real);
        break;
      case PyKind::text:
        text(value.text);
        break;
      case PyKind::list:
        items(']', value.items, 'e');
        break;
      case PyKind::tuple:
        out_ += '(';
        for (const PyRef& item : value.items) write(*item);
        out_ += 't';
        break;
      case PyKind::dict:
        out_ += '}';
        entries(value.dict);
        break;
      case PyKind::tensor:
        tensor(value.tensor);
        break;
      case PyKind::object:
        object(value);
        break;
    }
  }

 private:
  template <typename Number>
  void number(Number value) {
    char bytes[sizeof(Number)];
    std::memcpy(bytes, &value, sizeof value);  // little-endian, as we are
    out_.append(bytes, sizeof value);
  }
  void integer(std::int64_t value) {
    if (value >= std::numeric_limits<std::int32_t>::min() &&
        value <= std::numeric_limits<std::int32_t>::max()) {
      out_ += 'J';
      number(static_cast<std::int32_t>(value));
    } else {
      out_ += "\x8a\x08";
      number(value);
    }
  }
  void real(double value) {
    out_ += 'G';
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift & 0xffU);
  }
  void text(const std::string& value) {
    out_ += 'X';
    number(static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }
  void items(char open, const std::vector<PyRef>& all, char close) {
    out_ += open;
    out_ += '(';
    for (const PyRef& item : all) write(*item);
    out_ += close;
  }
  void entries(const std::vector<std::pair<PyRef, PyRef>>& all) {
    out_ += '(';
    for (const auto& [key, value] : all) {
      write(*key);
      write(*value);
    }
    out_ += 'u';
  }
  void global(const std::string& name) {
    const std::size_t dot = name.rfind('.');
    out_ += 'c' + name.substr(0, dot) + '\n' + name.substr(dot + 1) + '\n';
  }
  void integers(const std::vector<std::int64_t>& values) {
    out_ += '(';
    for (const std::int64_t value : values) integer(value);
    out_ += 't';
  }
  void tensor(const PyTensor& value) {
    global("torch._utils._rebuild_tensor_v2");
    out_ += "((";
    text("storage");
    global("torch." + std::string(storage_class(value.element)));
    text(value.storage);
    text("cpu");
    integer(value.elems());
    out_ += "tQ";
    integer(value.offset);
    integers(value.shape);
    integers(value.stride);
    out_ += '\x89';
    global("collections.OrderedDict");
    out_ += ")RtR";
  }
  void object(const PyValue& value) {
    global(value.text);
    if (value.items.empty() && value.dict.empty()) return;
    out_ += '(';
    for (const PyRef& item : value.items) write(*item);
    out_ += 't';
    if (value.dict.empty()) {
      out_ += 'R';
      return;
    }
    out_ += "\x81}";
    entries(value.dict);
    out_ += 'b';
  }

  std::string out_ = "\x80\x02";
};

}  // namespace

std::string write_pickle(const PyValue& value) {
  PickleText text;
  text.write(value);
  return text.take() + '.';
}

}  // namespace capstan::checkpoint
