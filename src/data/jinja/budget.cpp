#include "data/jinja/budget.h"

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/did_you_mean.h"

namespace cairn::data::jinja {

void TemplateBudget::fail_with(const std::string& what) const { base::fail_input("{}, line {}: {}", name_, line_, what); }

void TemplateBudget::fail_steps() const {
  fail("takes more than {} steps: a loop that never ends, or far too long a conversation", kSteps);
}

void TemplateBudget::fail_bytes() const { fail("makes more than {} MB of text and lists while rendering", kMadeBytes >> 20); }

void TemplateBudget::fail_unknown(std::string_view what, const std::string& name, const std::vector<std::string>& known) const {
  if (const auto meant = base::nearest(name, known)) fail("unknown {} '{}': did you mean '{}'?", what, name, *meant);
  fail("unknown {} '{}' (known are {})", what, name, fmt::join(known, ", "));
}

}  // namespace cairn::data::jinja
