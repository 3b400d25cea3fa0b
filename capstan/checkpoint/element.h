// The element types of stored tensors, by the names that safetensors files give them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace capstan::checkpoint {

enum class Element { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

struct ElementFacts {
  Element element;
  std::string_view name;
  std::int64_t bytes;
};

inline constexpr std::array kElements = {
    ElementFacts{Element::f64, "F64", 8}, ElementFacts{Element::f32, "F32", 4},
    ElementFacts{Element::f16, "F16", 2}, ElementFacts{Element::bf16, "BF16", 2},
    ElementFacts{Element::i64, "I64", 8}, ElementFacts{Element::i32, "I32", 4},
    ElementFacts{Element::i16, "I16", 2}, ElementFacts{Element::i8, "I8", 1},
    ElementFacts{Element::u8, "U8", 1},   ElementFacts{Element::boolean, "BOOL", 1}};

constexpr const ElementFacts& facts(Element element) {
  return kElements[static_cast<std::size_t>(element)];
}
constexpr std::int64_t size_bytes(Element element) { return facts(element).bytes; }
constexpr std::string_view name(Element element) { return facts(element).name; }

constexpr bool is_floating(Element element) { return element <= Element::bf16; }

constexpr std::optional<Element> element_named(std::string_view name) {
  for (const ElementFacts& each : kElements) {
    if (each.name == name) return each.element;
  }
  return std::nullopt;
}

}  // namespace capstan::checkpoint
