#include "data/jinja/arguments.h"

namespace cairn::data::jinja {

std::optional<Value> ArgumentReader::take(std::string_view name) {
  if (next_ < arguments_.positional.size()) return arguments_.positional[next_++];
  for (const auto& [known, value] : arguments_.named) {
    if (known != name) continue;
    ++named_taken_;
    return value;
  }
  return std::nullopt;
}

Value ArgumentReader::require(std::string_view name) {
  auto value = take(name);
  if (!value) budget_.fail("{} needs the argument '{}'", called_, name);
  return *std::move(value);
}

std::string ArgumentReader::text(std::string_view name) {
  const Value value = require(name);
  if (!value.is_text()) budget_.fail("{}: '{}' is {}, and must be a string", called_, name, type_name(value));
  return value.text();
}

std::string ArgumentReader::text_or(std::string_view name, std::string otherwise) {
  const auto value = take(name);
  if (!value || value->is_none()) return otherwise;
  if (!value->is_text()) budget_.fail("{}: '{}' is {}, and must be a string", called_, name, type_name(*value));
  return value->text();
}

int64_t ArgumentReader::integer_or(std::string_view name, int64_t otherwise) {
  const auto value = take(name);
  if (!value || value->is_none()) return otherwise;
  if (!value->is_integer()) budget_.fail("{}: '{}' is {}, and must be a whole number", called_, name, type_name(*value));
  return value->integer();
}

bool ArgumentReader::flag(std::string_view name) {
  const auto value = take(name);
  return value && truth(*value);
}

void ArgumentReader::done() {
  if (next_ < arguments_.positional.size())
    budget_.fail("{} was given {} arguments and takes {}", called_, arguments_.positional.size(), next_);
  if (named_taken_ < arguments_.named.size())
    budget_.fail("{} was given arguments that it does not take, or twice: '{}' is among those given by name", called_,
                 arguments_.named.back().first);
}

}  // namespace cairn::data::jinja
