#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::base {

// How many characters must be inserted, deleted, replaced or swapped with their neighbour to turn `a` into `b` (Damerau-Levenshtein).
int64_t edit_distance(std::string_view a, std::string_view b);

// The known word nearest to `word`, ignoring case and `-` for `_`; nothing if none is close. Of several equally near, the first.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known);

// Throws bad_input for a name that a registry does not have: `unknown sync rule "dilco": did you mean "diloco"?`, or the list of what is
// known.
[[noreturn]] void fail_unknown(std::string_view what, std::string_view name, const std::vector<std::string>& known);

}  // namespace cairn::base
