#include <algorithm>
#include <array>

#include "data/jinja/builtins.h"
#include "data/jinja/operators.h"
#include "data/jinja/print.h"
#include "data/jinja/python_text.h"

namespace cairn::data::jinja {
namespace {

struct TestCall {
  const Value& value;
  ArgumentReader& take;
  TemplateBudget& budget;
};

template <Operator sign>
bool compare_with(TestCall& call) {
  return truth(apply(sign, call.value, call.take.require("other"), call.budget));
}

bool is_rest(TestCall& call, int64_t divisor, int64_t rest) {
  return truth(apply(Operator::equal, apply(Operator::modulo, call.value, divisor, call.budget), rest, call.budget));
}

bool is_iterable(const Value& value) { return value.is_text() || value.is_list() || value.is_dict() || value.is_undefined(); }

struct KnownTest {
  const char* name;
  bool (*holds)(TestCall&);
};

constexpr auto kTests = std::to_array<KnownTest>({
    {"defined", [](TestCall& c) { return !c.value.is_undefined(); }},
    {"undefined", [](TestCall& c) { return c.value.is_undefined(); }},
    {"none", [](TestCall& c) { return c.value.is_none(); }},
    {"string", [](TestCall& c) { return c.value.is_text(); }},
    {"number", [](TestCall& c) { return c.value.is_number(); }},
    {"integer", [](TestCall& c) { return c.value.is<int64_t>(); }},
    {"float", [](TestCall& c) { return c.value.is<double>(); }},
    {"boolean", [](TestCall& c) { return c.value.is_bool(); }},
    {"true", [](TestCall& c) { return c.value.is_bool() && truth(c.value); }},
    {"false", [](TestCall& c) { return c.value.is_bool() && !truth(c.value); }},
    {"mapping", [](TestCall& c) { return c.value.is_dict(); }},
    {"iterable", [](TestCall& c) { return is_iterable(c.value); }},
    {"sequence", [](TestCall& c) { return is_iterable(c.value) && (!c.value.is_list() || c.value.list().has_indices()); }},
    {"callable",
     [](TestCall& c) {
       return c.value.is<std::shared_ptr<const Macro>>() || c.value.is<std::shared_ptr<const Method>>() ||
              c.value.is<std::shared_ptr<const Joiner>>() || c.value.is<std::shared_ptr<const Loop>>() || c.value.is<Global>();
     }},
    {"even", [](TestCall& c) { return is_rest(c, 2, 0); }},
    {"odd", [](TestCall& c) { return is_rest(c, 2, 1); }},
    {"divisibleby", [](TestCall& c) { return !truth(apply(Operator::modulo, c.value, c.take.require("num"), c.budget)); }},
    {"lower", [](TestCall& c) { return is_lower(to_text(c.value, c.budget)); }},
    {"upper", [](TestCall& c) { return is_upper(to_text(c.value, c.budget)); }},
    {"sameas",
     [](TestCall& c) {
       const Value other = c.take.require("other");
       return type_name(c.value) == type_name(other) && equal(c.value, other, c.budget);
     }},
    {"in", [](TestCall& c) { return contains(c.take.require("seq"), c.value, c.budget); }},
    {"equalto", compare_with<Operator::equal>},
    {"eq", compare_with<Operator::equal>},
    {"==", compare_with<Operator::equal>},
    {"ne", compare_with<Operator::unequal>},
    {"!=", compare_with<Operator::unequal>},
    {"lessthan", compare_with<Operator::below>},
    {"lt", compare_with<Operator::below>},
    {"<", compare_with<Operator::below>},
    {"le", compare_with<Operator::at_most>},
    {"<=", compare_with<Operator::at_most>},
    {"greaterthan", compare_with<Operator::above>},
    {"gt", compare_with<Operator::above>},
    {">", compare_with<Operator::above>},
    {"ge", compare_with<Operator::at_least>},
    {">=", compare_with<Operator::at_least>},
    {"filter", [](TestCall& c) { return c.value.is_text() && has_filter(c.value.text()); }},
    {"test", [](TestCall& c) { return c.value.is_text() && has_test(c.value.text()); }},
});

}  // namespace

bool has_test(std::string_view name) {
  return std::any_of(kTests.begin(), kTests.end(), [&](const KnownTest& test) { return name == test.name; });
}

bool apply_test(const std::string& name, const Value& value, const CallArguments& arguments, TemplateBudget& budget) {
  const auto known = std::find_if(kTests.begin(), kTests.end(), [&](const KnownTest& test) { return name == test.name; });
  if (known == kTests.end()) {
    std::vector<std::string> names;
    for (const KnownTest& test : kTests) names.emplace_back(test.name);
    budget.fail_unknown("test", name, names);
  }
  const std::string called = "test '" + name + "'";
  if (value.is_text()) budget.step(static_cast<int64_t>(value.text().size()) / 32);
  ArgumentReader take(called, arguments, budget);
  TestCall call{value, take, budget};
  const bool holds = known->holds(call);
  take.done();
  return holds;
}

}  // namespace cairn::data::jinja
