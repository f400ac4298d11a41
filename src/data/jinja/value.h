// The values of templates, as in Python. Immutable, except namespaces.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/jinja/budget.h"

namespace cairn::data::jinja {

class Value;
struct List;
struct Dict;
struct Namespace;
struct Macro;
struct Method;
struct Loop;
struct Cycler;
struct Joiner;

// A name without a value, or a missing item. It prints as nothing; most other uses are refused, with its name.
struct Undefined {
  std::shared_ptr<const std::string> name;
};
struct None {};
// One of the functions that templates may call (range, namespace, dict, cycler, joiner, raise_exception, strftime_now).
struct Global {
  const char* name;
};

using Values = std::vector<Value>;
using Entry = std::pair<Value, Value>;

class Value {
 public:
  Value() = default;  // undefined, without a name
  Value(None none) : held_(none) {}
  Value(bool truth) : held_(truth) {}
  Value(int64_t integer) : held_(integer) {}
  Value(double number) : held_(number) {}
  Value(std::string text) : held_(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char*) = delete;  // would convert to bool
  Value(Global global) : held_(global) {}
  Value(std::shared_ptr<const List> list) : held_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict) : held_(std::move(dict)) {}
  Value(std::shared_ptr<Namespace> space) : held_(std::move(space)) {}
  Value(std::shared_ptr<const Macro> macro) : held_(std::move(macro)) {}
  Value(std::shared_ptr<const Method> method) : held_(std::move(method)) {}
  Value(std::shared_ptr<const Loop> loop) : held_(std::move(loop)) {}
  Value(std::shared_ptr<const Cycler> cycler) : held_(std::move(cycler)) {}
  Value(std::shared_ptr<const Joiner> joiner) : held_(std::move(joiner)) {}
  static Value undefined(std::string name);

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(held_);
  }
  template <typename T>
  const T& as() const {
    return std::get<T>(held_);
  }

  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_bool() const { return is<bool>(); }
  bool is_text() const { return is<TextPointer>(); }
  bool is_list() const { return is<std::shared_ptr<const List>>(); }
  bool is_dict() const { return is<std::shared_ptr<const Dict>>(); }
  bool is_integer() const { return is<int64_t>() || is<bool>(); }  // as in Python, where True is 1
  bool is_number() const { return is_integer() || is<double>(); }

  const std::string& text() const { return *as<TextPointer>(); }
  const List& list() const { return *as<std::shared_ptr<const List>>(); }
  const Dict& dict() const { return *as<std::shared_ptr<const Dict>>(); }
  int64_t integer() const { return is<bool>() ? as<bool>() : as<int64_t>(); }
  double number() const { return is<double>() ? as<double>() : static_cast<double>(integer()); }
  const std::string& undefined_name() const;

 private:
  using TextPointer = std::shared_ptr<const std::string>;
  std::variant<Undefined, None, bool, int64_t, double, TextPointer, std::shared_ptr<const List>, std::shared_ptr<const Dict>,
               std::shared_ptr<Namespace>, std::shared_ptr<const Macro>, std::shared_ptr<const Method>, std::shared_ptr<const Loop>, Global,
               std::shared_ptr<const Cycler>, std::shared_ptr<const Joiner>>
      held_;
};

// A row of values. `keys`, `pairs` and `values` are the views of a dict (d.items()), which have no items by number. `once` is a generator
// as filters like selectattr return: always true, without a length, iterable once.
struct List {
  enum class Form { list, tuple, range, keys, pairs, values, once };
  Values items;
  Form form = Form::list;
  int depth = 1;                       // how deep values lie within one another: 1 around texts and numbers
  std::array<int64_t, 3> bounds = {};  // of `range`: start, stop and step
  bool is_group = false;               // a tuple of the filter groupby: .grouper and .list
  mutable bool used = false;           // of `once`

  bool is_set() const { return form == Form::keys || form == Form::pairs; }  // compared whatever the order
  bool has_length() const { return form != Form::once; }
  bool has_indices() const { return form == Form::list || form == Form::tuple || form == Form::range; }
  bool is_list_or_tuple() const { return form == Form::list || form == Form::tuple; }
};

// Entries in insertion order. Dicts in templates are small, so lookup is a linear search.
struct Dict {
  std::vector<Entry> entries;
  int depth = 1;
};

// namespace(): the only value whose attributes a template may set.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

// cycler("a", "b"): next() goes round.
struct Cycler {
  Values items;
  int depth = 1;  // as of a List
  mutable size_t at = 0;
};

// joiner(", "): empty at the first call, then the separator.
struct Joiner {
  Value separator;
  int depth = 1;
  mutable bool used = false;
};

// A method of a value, before it is called: `text.strip`.
struct Method {
  Value self;
  std::string name;
};

// The depth of a value that holds `items`. Refuses more than kValueDepth: values are printed, compared and destroyed recursively.
int depth_around(std::span<const Value> items, TemplateBudget& budget);

// The only constructors of lists, dicts, cyclers, joiners and texts: they enforce the limits on depth and size.
Value make_list(Values items, TemplateBudget& budget, List::Form form = List::Form::list);
Value make_range(const std::array<int64_t, 3>& bounds, TemplateBudget& budget);  // start, stop, step
Value make_dict(std::vector<Entry> entries, TemplateBudget& budget);
Value make_cycler(Values items, TemplateBudget& budget);
Value make_joiner(Value separator, TemplateBudget& budget);
Value make_text(std::string text, TemplateBudget& budget);

std::string_view form_name(List::Form form);
// The name of the type, for errors: "string", "list", "none".
std::string_view type_name(const Value& value);
bool truth(const Value& value);
bool equal(const Value& left, const Value& right, TemplateBudget& budget);
// Negative, 0 or positive; refuses values that Python does not order.
int order(const Value& left, const Value& right, TemplateBudget& budget);
// Refuses values that cannot be dict keys: lists, dicts, their keys() and items(), and tuples that contain one.
void check_key(const Value& key, TemplateBudget& budget);
const Value* find(const Dict& dict, const Value& key, TemplateBudget& budget);
const Value* find(const Dict& dict, std::string_view key);
// The items that a for loop iterates over: of a list, the keys of a dict, the characters of a text; none if undefined.
Values items_of(const Value& value, TemplateBudget& budget);
int64_t length(const Value& value, TemplateBudget& budget);

}  // namespace cairn::data::jinja
