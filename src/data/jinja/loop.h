// The variable `loop` inside a for loop.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "data/jinja/value.h"

namespace cairn::data::jinja {

struct Loop {
  Values items;
  int64_t index = 0;                                               // from 0
  int depth = 1;                                                   // nesting of loops, including this one
  mutable std::optional<std::string> last_changed = std::nullopt;  // what loop.changed() was last given
};

// loop.index, loop.first, ...; undefined where there is no such attribute.
Value loop_attribute(const Loop& loop, const std::string& name);

}  // namespace cairn::data::jinja
