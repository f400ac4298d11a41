// The variable `loop` inside a for loop.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/jinja/value.h"

namespace cairn::data::jinja {

struct For;
struct Scope;

struct Loop {
  Values items;
  int value_depth = 1;                                             // as List::depth
  int64_t index = 0;                                               // from 0
  int depth = 1;                                                   // how often a recursive loop has called itself, from 1
  const For* recursive = nullptr;                                  // the loop, where it may call itself: loop(items)
  std::weak_ptr<Scope> scope = {};                                 // around a recursive loop
  mutable std::optional<std::string> last_changed = std::nullopt;  // what loop.changed() was last given
};

// loop.index, loop.first, ...; undefined where there is no such attribute.
Value loop_attribute(const Loop& loop, const std::string& name);

}  // namespace cairn::data::jinja
