#include "base/json.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cairn::base {
namespace {

// An invalid byte beyond ASCII inside a string is invalid UTF-8.
std::string not_json_at(std::string_view text, size_t byte) {
  const auto beyond_ascii = [&](size_t at) { return at >= 1 && at <= text.size() && static_cast<unsigned char>(text[at - 1]) >= 0x80; };
  return fmt::format("not {} at byte {}", beyond_ascii(byte) || beyond_ascii(byte - 1) ? "UTF-8" : "JSON", byte);
}

// Builds the tree of a text. Stops at invalid JSON and at the first key that an object has twice.
class TreeBuilder final : public Json::json_sax_t {
 public:
  Json root = Json(Json::value_t::discarded);
  std::optional<std::string> repeated_key;
  std::optional<size_t> wrong_at;
  bool out_of_range = false;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(int64_t value) override { return put(value); }
  bool number_unsigned(uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const auto [at, fresh] = open_.back()->get_ref<Json::object_t&>().emplace(std::move(name), nullptr);
    under_ = &at->second;
    if (!fresh) repeated_key = at->first;
    return fresh;
  }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& error) override {
    wrong_at = at;
    out_of_range = error.id == kOutOfRange;
    return false;
  }

 private:
  static constexpr int kOutOfRange = 406;  // the library's number for "number overflow"

  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  // Nothing is added to a list while a value in it is open, so these pointers stay good.
  Json* place(Json value) {
    if (open_.empty()) return &(root = std::move(value));
    if (!open_.back()->is_array()) return &(*under_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }

  std::vector<Json*> open_;
  Json* under_ = nullptr;  // the place of the key that was read last
};

template <typename AnyJson>
AnyJson parse(std::string_view text) {
  return AnyJson::parse(text, nullptr, /*allow_exceptions=*/false);
}

template <typename AnyJson>
std::string dump(const AnyJson& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, AnyJson::error_handler_t::replace);
}

}  // namespace

Json parse_json(std::string_view text) { return parse<Json>(text); }
OrderedJson parse_ordered_json(std::string_view text) { return parse<OrderedJson>(text); }

GuardedJson parse_json_guarded(std::string_view text, const JsonLimits& limits) {
  const Json nothing(Json::value_t::discarded);
  if (JsonScan scan = scan_json(text, limits); !scan.trouble.empty())
    return {.value = nothing, .invalid_at = std::nullopt, .too_deep = scan.too_deep, .trouble = std::move(scan.trouble)};
  TreeBuilder tree;
  if (Json::sax_parse(text, &tree)) return {.value = std::move(tree.root), .invalid_at = std::nullopt};
  GuardedJson none{.value = nothing, .invalid_at = std::nullopt, .repeated_key = tree.repeated_key};
  if (tree.repeated_key) {
    none.trouble = fmt::format("the key {} stands twice in one object", shown(Json(*tree.repeated_key)));
  } else if (tree.out_of_range) {
    none.trouble = "a number that is too large for any";
  } else {
    none.invalid_at = static_cast<int64_t>(tree.wrong_at.value_or(0));
    none.trouble = not_json_at(text, tree.wrong_at.value_or(0));
  }
  return none;
}

std::string json_error(std::string_view text, const JsonLimits& limits) {
  if (JsonScan scan = scan_json(text, limits); !scan.trouble.empty()) return scan.trouble;
  struct : Json::json_sax_t {
    size_t wrong_at = 0;
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(int64_t) override { return true; }
    bool number_unsigned(uint64_t) override { return true; }
    bool number_float(double, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(Json::binary_t&) override { return true; }
    bool start_object(size_t) override { return true; }
    bool key(std::string&) override { return true; }
    bool end_object() override { return true; }
    bool start_array(size_t) override { return true; }
    bool end_array() override { return true; }
    bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
      wrong_at = at;
      return false;
    }
  } sax;
  return Json::sax_parse(text, &sax) ? std::string() : not_json_at(text, sax.wrong_at);
}

std::string shown(const Json& value, size_t characters) {
  const std::string text = compact(value);
  return text.size() > characters ? fmt::format("{}...", std::string_view(text).substr(0, characters)) : text;
}

std::string compact(const Json& json) { return dump(json, -1); }
std::string compact(const OrderedJson& json) { return dump(json, -1); }
std::string pretty(const OrderedJson& json) { return dump(json, 2); }

}  // namespace cairn::base
