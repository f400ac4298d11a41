// The evaluated arguments of a call, filter or test, and how the callee reads them.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/jinja/value.h"

namespace cairn::data::jinja {

struct CallArguments {
  Values positional = {};
  std::vector<std::pair<std::string, Value>> named = {};
};

// Reads arguments in the order of the parameters, each by position or by name, and refuses those left over (done).
class ArgumentReader {
 public:
  // `called` names the callee in errors: "filter 'join'". All three must outlive the reader.
  ArgumentReader(std::string_view called, const CallArguments& arguments, TemplateBudget& budget)
      : called_(called), arguments_(arguments), budget_(budget) {}

  std::optional<Value> take(std::string_view name);
  Value require(std::string_view name);
  std::string text(std::string_view name);  // refuses what is not a string
  std::string text_or(std::string_view name, std::string otherwise);
  int64_t integer_or(std::string_view name, int64_t otherwise);
  bool flag(std::string_view name);
  void done();

 private:
  std::string_view called_;
  const CallArguments& arguments_;
  TemplateBudget& budget_;
  size_t next_ = 0;
  size_t named_taken_ = 0;
};

}  // namespace cairn::data::jinja
