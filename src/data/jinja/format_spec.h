// One format specification of Python, [[fill]align][sign][#][0][width][grouping][.precision][type], and what it makes of a value.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "data/jinja/value.h"

namespace cairn::data::jinja {

struct FormatSpec {
  std::string fill = " ";  // one character
  char align = 0;          // < > ^ =; 0: as the type has it
  char sign = '-';         // - + or a space
  bool alternate = false;  // #
  bool zero = false;       // 0 before the width
  int64_t width = 0;
  char grouping = 0;  // , or _
  std::optional<int64_t> precision = std::nullopt;
  char type = 0;

  bool operator==(const FormatSpec&) const = default;
};

// Reads digits at `at` and moves it past them. Refuses what is beyond the limit on widths and precisions; none where there are no digits.
std::optional<int64_t> read_width(std::string_view text, size_t& at, TemplateBudget& budget);

FormatSpec parse_format_spec(std::string_view text, TemplateBudget& budget);

// format(value, spec). Refuses types that the value does not have.
std::string format_value(const Value& value, const FormatSpec& spec, TemplateBudget& budget);

}  // namespace cairn::data::jinja
