#include "capstan/checkpoint/deepspeed/pickle_classes.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "capstan/checkpoint/index.h"

namespace capstan::checkpoint {
namespace {

constexpr std::string_view kDictClass = "collections.OrderedDict";
constexpr std::string_view kDefaultDictClass = "collections.defaultdict";
constexpr std::string_view kSizeClass = "torch.Size";
constexpr std::string_view kTensorClass = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kParameterClass = "torch._utils._rebuild_parameter";
// A tensor with attributes: (how to build it, its type, arguments, attributes).
constexpr std::string_view kTypedTensorClass = "torch._tensor._rebuild_from_type_v2";

// Everything a pickle of these files may name. Kept as data: class name, arguments, attributes.
constexpr std::array kPlainClasses = {
    std::string_view("deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    std::string_view("deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    std::string_view("deepspeed.runtime.zero.config.ZeroStageEnum"),
    std::string_view("deepspeed.utils.tensor_fragment.fragment_address"),
    std::string_view("deepspeed.checkpoint.universal_checkpoint.SubparamShape"),
    std::string_view("torch.device"),
    std::string_view("torch.float16"),
    std::string_view("torch.bfloat16"),
    std::string_view("torch.float32"),
    std::string_view("builtins.set"),
    std::string_view("__builtin__.set"),
    kDictClass,
    kDefaultDictClass,
    kSizeClass,
    std::string_view("torch.Tensor"),
    std::string_view("torch.nn.parameter.Parameter"),
    kTensorClass,
    kParameterClass,
    kTypedTensorClass};

constexpr std::array kStorageClasses = {
    std::pair(std::string_view("torch.DoubleStorage"), Element::f64),
    std::pair(std::string_view("torch.FloatStorage"), Element::f32),
    std::pair(std::string_view("torch.HalfStorage"), Element::f16),
    std::pair(std::string_view("torch.BFloat16Storage"), Element::bf16),
    std::pair(std::string_view("torch.LongStorage"), Element::i64),
    std::pair(std::string_view("torch.IntStorage"), Element::i32),
    std::pair(std::string_view("torch.ShortStorage"), Element::i16),
    std::pair(std::string_view("torch.CharStorage"), Element::i8),
    std::pair(std::string_view("torch.ByteStorage"), Element::u8),
    std::pair(std::string_view("torch.BoolStorage"), Element::boolean)};

[[noreturn]] void fail(std::string why) { throw IllFormed{std::move(why)}; }

PyRef tensor(const std::vector<PyRef>& arguments) {
  if (arguments.size() < 4 || arguments[0]->kind != PyKind::tensor) fail("a tensor is ill-formed");
  PyTensor made = arguments[0]->tensor;
  made.offset = arguments[1]->integer;
  for (const PyRef& dim : arguments[2]->items) made.shape.push_back(dim->integer);
  for (const PyRef& step : arguments[3]->items) made.stride.push_back(step->integer);
  if (made.offset < 0 || made.offset > kMostCounted || made.shape.size() != made.stride.size() ||
      !is_countable({.name = "", .element = made.element, .shape = made.shape})) {
    fail("a tensor is ill-formed");
  }
  return py_tensor(std::move(made));
}

}  // namespace

bool is_known_class(const std::string& name) {
  return std::find(kPlainClasses.begin(), kPlainClasses.end(), name) != kPlainClasses.end() ||
         std::any_of(kStorageClasses.begin(), kStorageClasses.end(),
                     [&](const auto& each) { return each.first == name; });
}

PyRef call(const PyValue& callee, const std::vector<PyRef>& arguments) {
  if (callee.kind != PyKind::object) fail("it calls something that is not a class");
  if (callee.text == kDictClass || callee.text == kDefaultDictClass) return py_dict({});
  if (callee.text == kSizeClass) {
    return py_tuple(arguments.empty() ? std::vector<PyRef>{} : arguments[0]->items);
  }
  if (callee.text == kTensorClass) return tensor(arguments);
  if (callee.text == kParameterClass && !arguments.empty()) return arguments[0];
  if (callee.text == kTypedTensorClass && arguments.size() > 2) {
    return call(*arguments[0], arguments[2]->items);
  }
  if (callee.text.ends_with(".set")) {
    return py_list(arguments.empty() ? std::vector<PyRef>{} : arguments[0]->items);
  }
  return py_object(callee.text, arguments);
}

PyRef storage(const PyValue& id) {
  if (id.items.size() < 3 || id.items[0]->text != "storage") fail("a storage is ill-formed");
  PyTensor tensor;
  for (const auto& [name, element] : kStorageClasses) {
    if (id.items[1]->text == name) tensor.element = element;
  }
  tensor.storage = id.items[2]->text;
  return py_tensor(std::move(tensor));
}

}  // namespace capstan::checkpoint
