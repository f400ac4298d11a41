// The words that recipes and files have for the values of an enum.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/did_you_mean.h"

namespace cairn::base {

// One value and its word. A table of them stands beside the enum, in the order in which help lists the words:
//
//   enum class ContextForm { ring, gather };
//   inline constexpr base::EnumName<ContextForm> kContextFormNames[] = {{ContextForm::ring, "ring"}, {ContextForm::gather, "gather"}};
//
// A word that was renamed keeps its old spelling: {Pace::equal, "equal", "even"} also reads "even". Help does not list old words.
template <typename E>
struct EnumName {
  E value;
  const char* name;
  const char* old_name = nullptr;
};

// A borrowed table. Schemas keep it, so the table must be static.
template <typename E>
using EnumNames = std::span<const EnumName<E>>;

[[noreturn]] void fail_unnamed(int64_t value);

// The word of a value. A value without a word is a broken invariant.
template <typename E>
const char* enum_name(std::type_identity_t<EnumNames<E>> names, E value) {
  for (const EnumName<E>& one : names)
    if (one.value == value) return one.name;
  fail_unnamed(static_cast<int64_t>(value));
}

// All words, in the order of the table.
template <typename E>
std::vector<std::string> enum_words(EnumNames<E> names) {
  std::vector<std::string> words;
  for (const EnumName<E>& one : names) words.emplace_back(one.name);
  return words;
}
template <typename E, size_t N>
std::vector<std::string> enum_words(const EnumName<E> (&names)[N]) {
  return enum_words(EnumNames<E>(names));
}

// The old word and the present one, for each value that was renamed.
template <typename E>
std::vector<std::pair<std::string, std::string>> renamed_words(EnumNames<E> names) {
  std::vector<std::pair<std::string, std::string>> renamed;
  for (const EnumName<E>& one : names)
    if (one.old_name != nullptr) renamed.emplace_back(one.old_name, one.name);
  return renamed;
}

// The value of a word, which may be an old one. Any other word is bad_input: `unknown WHAT "rign": did you mean "ring"?`.
template <typename E>
E parse_enum(EnumNames<E> names, std::string_view what, std::string_view word) {
  for (const EnumName<E>& one : names)
    if (word == one.name || (one.old_name != nullptr && word == one.old_name)) return one.value;
  fail_unknown(what, word, enum_words(names));
}
template <typename E, size_t N>
E parse_enum(const EnumName<E> (&names)[N], std::string_view what, std::string_view word) {
  return parse_enum(EnumNames<E>(names), what, word);
}

}  // namespace cairn::base
