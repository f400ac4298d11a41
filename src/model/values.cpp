#include "model/values.h"

#include <utility>

#include "base/check.h"

namespace cairn::model {

void Values::put(const std::string& name, Value value) {
  const bool fresh = values_.emplace(name, Entry{.value = std::move(value)}).second;
  CAIRN_CHECK(fresh, "value \"{}\" is written twice", name);
}

void Values::add(const std::string& name, Value gradient) {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    put(name, std::move(gradient));
  } else {
    found->second.more.push_back(std::move(gradient));
  }
}

const Value& Values::in_flight(const std::string& name) const {
  const auto found = values_.find(name);
  CAIRN_CHECK(found != values_.end(), "value \"{}\" is read before it is written", name);
  return found->second.value;
}

const Value& Values::value(const std::string& name) {
  const Value& whole = in_flight(name);
  whole.ready.wait();
  Entry& entry = values_.at(name);
  for (const Value& one : std::exchange(entry.more, {})) {
    one.ready.wait();
    CAIRN_CHECK(!entry.value.deferred_gradient && !one.deferred_gradient && !entry.value.chunked_logits && !one.chunked_logits,
                "\"{}\": a deferred gradient cannot be added to", name);
    // Not in place: a reader may have given the same tensor to two values.
    entry.value = {.tensor = entry.value.tensor + one.tensor, .placement = entry.value.placement};
  }
  return entry.value;
}

const at::Tensor& Values::get(const std::string& name) { return value(name).tensor; }

at::Tensor Values::take(const std::string& name) {
  at::Tensor tensor = get(name);
  values_.erase(name);
  return tensor;
}

}  // namespace cairn::model
