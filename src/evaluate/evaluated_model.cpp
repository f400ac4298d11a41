#include "evaluate/evaluated_model.h"

#include "base/check.h"

namespace cairn::evaluate {

std::vector<int32_t> EvaluatedModel::prompt(std::string_view text) const {
  std::vector<int32_t> ids = text_prefix;
  tokenizer.encode(text, {}, ids);
  check(ids);
  return ids;
}

void EvaluatedModel::check(std::span<const int32_t> ids) const {
  for (const int32_t id : ids)
    if (id >= vocab)
      base::fail_input("the tokenizer gives id {}, and the model has ids below {}: the tokenizer belongs to another model", id, vocab);
}

}  // namespace cairn::evaluate
