#include "model/values.h"

#include <utility>

#include "base/check.h"

namespace cairn::model {

void Values::put(const std::string& name, Value value) {
  const bool fresh = values_.emplace(name, std::move(value)).second;
  CAIRN_CHECK(fresh, "value \"{}\" is written twice", name);
}

void Values::add(const std::string& name, at::Tensor gradient) {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    put(name, std::move(gradient));
  } else {  // not in place: the first reader may have handed the same tensor to two values
    found->second.tensor = found->second.tensor + gradient;
  }
}

const Value& Values::value(const std::string& name) {
  const auto found = values_.find(name);
  CAIRN_CHECK(found != values_.end(), "value \"{}\" is read before it is written", name);
  found->second.ready.wait();
  return found->second;
}

const at::Tensor& Values::get(const std::string& name) { return value(name).tensor; }

at::Tensor Values::take(const std::string& name) {
  at::Tensor tensor = get(name);
  values_.erase(name);
  return tensor;
}

}  // namespace cairn::model
