#include "capstan/checkpoint/deepspeed/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "capstan/base/error.h"
#include "capstan/checkpoint/deepspeed/pickle_classes.h"
#include "capstan/json/scanner.h"

namespace capstan::checkpoint {
namespace {

// Deeper or larger than any checkpoint's; a pickle that wants more is made to hurt.
constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxValues = 50'000'000;
// One list may stand in many places. What a reader finds when it walks through all of them is no
// more than so many values for each byte of the pickle, and some.
constexpr std::int64_t kMaxRepeats = 16;
constexpr std::int64_t kFreeValues = 100'000;

class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, const std::string& source)
      : bytes_(bytes), source_(source) {}

  PyRef run() {
    try {
      while (true) {
        const auto code = static_cast<unsigned char>(take(1).front());
        if (code == '.') break;  // STOP
        if (!constant(code) && !container(code) && !memory(code)) make(code);
        if (++values_ > kMaxValues) fail("it is too large");
      }
      return pop();
    } catch (const IllFormed& error) {
      fail(error.why);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw IoError({.what = "the pickle cannot be read: " + why,
                   .where = fmt::format("{}, byte {}", source_, at_),
                   .fix = "give a checkpoint that DeepSpeed wrote, with client_state of numbers, "
                          "texts, lists, dicts and tensors"});
  }

  std::string_view take(std::size_t count) {
    if (count > bytes_.size() - at_) fail("it ends too early");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  template <typename Number>
  Number number() {
    Number value{};
    const std::string_view bytes = take(sizeof(Number));
    std::memcpy(&value, bytes.begin(), bytes.size());  // little-endian, as we are
    return value;
  }
  std::string line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("it ends too early");
    std::string text(take(end - at_));
    take(1);
    return text;
  }

  void push(PyRef value) { stack_.push_back(std::move(value)); }
  PyRef pop() {
    if (stack_.empty()) fail("its stack is empty");
    PyRef value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  PyValue& top() {
    if (stack_.empty() || !stack_.back()) fail("its stack is empty");
    return *stack_.back();
  }
  std::vector<PyRef> pop_to_mark() {
    if (marks_.empty() || marks_.back() > stack_.size()) fail("a mark is missing");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PyRef> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  std::vector<PyRef> pop_items(std::size_t count) {
    std::vector<PyRef> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  PyRef long_integer(std::size_t bytes) {
    if (bytes > 8) fail("an integer has more than 64 bits");
    const std::string_view digits = take(bytes);
    std::uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    std::memcpy(&value, digits.data(), bytes);
    return py_int(static_cast<std::int64_t>(value));
  }

  // Big-endian, alone among the numbers of a pickle.
  PyRef real_number() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8U | static_cast<unsigned char>(c);
    return py_real(std::bit_cast<double>(bits));
  }

  bool constant(unsigned char code) {
    switch (code) {
      case 0x80:
        take(1);
        return true;  // PROTO
      case 0x95:
        take(8);
        return true;  // FRAME
      case 'N':
        push(py_none());
        return true;
      case 0x88:
        push(py_bool(true));
        return true;
      case 0x89:
        push(py_bool(false));
        return true;
      case 'J':
        push(py_int(number<std::int32_t>()));
        return true;
      case 'K':
        push(py_int(number<std::uint8_t>()));
        return true;
      case 'M':
        push(py_int(number<std::uint16_t>()));
        return true;
      case 0x8a:
        push(long_integer(number<std::uint8_t>()));
        return true;
      case 0x8b:
        push(long_integer(number<std::uint32_t>()));
        return true;
      case 'G':
        push(real_number());
        return true;
      case 'X':
        push(text(number<std::uint32_t>()));
        return true;
      case 0x8c:
        push(text(number<std::uint8_t>()));
        return true;
      case 0x8d:
        push(text(number<std::uint64_t>()));
        return true;
      default:
        return false;
    }
  }
  PyRef text(std::uint64_t bytes) {
    PyRef made = py_text(std::string(take(bytes)));
    if (!json::is_utf8(made->text)) fail("a text is not UTF-8");
    made->size += static_cast<std::int64_t>(bytes / sizeof(PyValue));
    return made;
  }

  // `parent` gets `child`, which is complete from then on: what changed later, or held itself,
  // would be deeper than anybody counted.
  void hold(PyValue& parent, PyValue& child) const {
    child.held = true;
    if (parent.held) fail("a value contains itself, or changes after it was stored elsewhere");
    parent.depth = std::max(parent.depth, child.depth + 1);
    parent.size += child.size;
    if (parent.depth > kMaxDepth) fail(fmt::format("it is nested deeper than {}", kMaxDepth));
    const auto bytes = static_cast<std::int64_t>(bytes_.size());
    if (parent.size > kMaxRepeats * bytes + kFreeValues) fail("it repeats itself too often");
  }
  // A new value with all that is in it.
  PyRef holding(PyRef parent) const {
    for (const PyRef& item : parent->items) hold(*parent, *item);
    for (const auto& [key, value] : parent->dict) {
      hold(*parent, *key);
      hold(*parent, *value);
    }
    return parent;
  }

  bool container(unsigned char code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ']':
        push(py_list({}));
        return true;
      case ')':
        push(py_tuple({}));
        return true;
      case '}':
        push(py_dict({}));
        return true;
      case 0x8f:
        push(py_list({}));
        return true;  // EMPTY_SET
      case 't':
        push(holding(py_tuple(pop_to_mark())));
        return true;
      case 0x85:
        push(holding(py_tuple(pop_items(1))));
        return true;
      case 0x86:
        push(holding(py_tuple(pop_items(2))));
        return true;
      case 0x87:
        push(holding(py_tuple(pop_items(3))));
        return true;
      case 'a':
        append(pop_items(1));
        return true;
      case 'e':
      case 0x90:  // ADDITEMS
        append(pop_to_mark());
        return true;
      case 's':
        set_items(pop_items(2));
        return true;
      case 'u':
        set_items(pop_to_mark());
        return true;
      default:
        return false;
    }
  }
  void append(std::vector<PyRef> items) {
    if (top().kind != PyKind::list) fail("something is appended to a value that is not a list");
    for (PyRef& item : items) {
      hold(top(), *item);
      top().items.push_back(std::move(item));
    }
  }
  void set_items(std::vector<PyRef> items) {
    if (top().kind != PyKind::dict || items.size() % 2 != 0) fail("a dict is ill-formed");
    for (std::size_t i = 0; i < items.size(); i += 2) {
      hold(top(), *items[i]);
      hold(top(), *items[i + 1]);
      top().dict.emplace_back(std::move(items[i]), std::move(items[i + 1]));
    }
  }

  bool memory(unsigned char code) {
    switch (code) {
      case 'q':
        remember(number<std::uint8_t>());
        return true;
      case 'r':
        remember(number<std::uint32_t>());
        return true;
      case 0x94:
        remember(memo_.size());
        return true;
      case 'h':
        recall(number<std::uint8_t>());
        return true;
      case 'j':
        recall(number<std::uint32_t>());
        return true;
      case '0':
        pop();
        return true;
      default:
        return false;
    }
  }
  void remember(std::uint64_t index) {
    top();
    memo_[index] = stack_.back();
  }
  void recall(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("it refers to a value that was never stored");
    push(found->second);
  }

  void make(unsigned char code) {
    switch (code) {
      case 'c': {
        const std::string module = line();
        push(class_named(module + "." + line()));
        break;
      }
      case 0x93: {
        const std::vector<PyRef> names = pop_items(2);
        push(class_named(names[0]->text + "." + names[1]->text));
        break;
      }
      case 'R':
      case 0x81: {  // REDUCE, NEWOBJ
        const std::vector<PyRef> parts = pop_items(2);
        push(call(*parts[0], parts[1]->items));
        if (stack_.back()->depth == 1) holding(stack_.back());
        break;
      }
      case 'b': {
        const PyRef state = pop();
        if (state->kind != PyKind::dict || top().kind == PyKind::tensor) {
          fail("an object's state is not a dict");
        }
        if (top().kind == PyKind::object) {
          for (const auto& [key, value] : state->dict) {
            hold(top(), *key);
            hold(top(), *value);
          }
          top().dict = state->dict;
        }
        break;
      }
      case 'Q':
        push(storage(*pop()));
        break;
      default:
        fail(fmt::format("it uses operation {:#x}", code));
    }
  }

  PyRef class_named(const std::string& name) const {
    if (!is_known_class(name)) fail("it contains the class " + name + ", which is not allowed");
    return py_object(name, {});
  }

  std::string_view bytes_;
  const std::string& source_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;
  std::vector<PyRef> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, PyRef> memo_;
};

}  // namespace

PyRef read_pickle(std::string_view bytes, const std::string& source) {
  return PickleMachine(bytes, source).run();
}

}  // namespace capstan::checkpoint
