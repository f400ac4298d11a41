#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::base {

// Letters inserted, deleted, replaced, or swapped with their neighbour, to turn `a` into `b`.
int64_t edit_distance(std::string_view a, std::string_view b);

// The known word that someone who typed `word` most likely meant, case and `-` for `_` aside; nothing if none is close. Of several
// as close, the first.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known);

// Refuses a name that a registry does not hold: `unknown sync rule "dilco": did you mean "diloco"?`, or the list of what is known.
[[noreturn]] void fail_unknown(std::string_view what, std::string_view name, const std::vector<std::string>& known);

}  // namespace cairn::base
