#include "base/json.h"

#include <unordered_set>
#include <vector>

namespace cairn::base {
namespace {

struct TooDeep {};
struct RepeatedKey {
  std::string key;
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

GuardedJson parse_json_guarded(std::string_view text, int depth_max) {
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open
  const auto guard = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > depth_max) throw TooDeep();
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get_ref<const std::string&>()).second)
      throw RepeatedKey{parsed.get<std::string>()};
    return true;
  };
  const Json nothing(Json::value_t::discarded);
  try {
    return {.value = Json::parse(text, guard), .invalid_at = std::nullopt};
  } catch (const Json::parse_error& error) {
    return {.value = nothing, .invalid_at = static_cast<int64_t>(error.byte)};
  } catch (const TooDeep&) {
    return {.value = nothing, .invalid_at = std::nullopt, .too_deep = true};
  } catch (const RepeatedKey& repeated) {
    return {.value = nothing, .invalid_at = std::nullopt, .repeated_key = repeated.key};
  } catch (const Json::out_of_range&) {  // a number that no double holds
    return {.value = nothing, .invalid_at = std::nullopt};
  }
}

std::string compact(const Json& json) { return dump(json, -1); }
std::string compact(const OrderedJson& json) { return dump(json, -1); }
std::string pretty(const OrderedJson& json) { return dump(json, 2); }

}  // namespace cairn::base
