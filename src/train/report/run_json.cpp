#include "train/report/run_json.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace cairn::train {
namespace {

constexpr int kStateDepthMax = 8;

bool is_count(const base::Json& value) { return value.is_number_integer() && value >= 0 && value <= INT64_MAX; }

// At most 16 hexadecimal digits: a 64-bit number.
bool is_hash(const base::Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return !text.empty() && text.size() <= 16 && text.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
}

}  // namespace

std::string to_json(const RunState& state) {
  base::OrderedJson json;
  json["step"] = state.step;
  json["tokens"] = state.tokens;
  json["seconds"] = state.seconds;
  if (state.seed) json["seed"] = *state.seed;
  if (state.subset) json["subset"] = fmt::format("{:016x}", *state.subset);
  if (state.reference) json["reference"] = fmt::format("{:016x}", *state.reference);
  if (state.masks) json["masks"] = fmt::format("{:016x}", *state.masks);
  json["updates_skipped"] = state.updates_skipped;
  json["rollbacks"] = state.rollbacks;
  json["batches_passed"] = state.batches_passed;
  json["next_sample"] = state.next_sample;
  if (state.apart) json["apart"] = true;
  if (state.round_unfinished) json["round_unfinished"] = true;
  return base::pretty(json) + "\n";
}

RunState parse_run_state(const std::string& json, const std::string& file) {
  const base::GuardedJson parsed = base::parse_json_guarded(json, kStateDepthMax);
  if (!parsed.trouble.empty()) base::fail_corrupt(file, parsed.trouble);
  const base::Json& found = parsed.value;
  if (!found.is_object() || !found.contains("step") || !found["step"].is_number_integer() || !found.contains("tokens") ||
      !found["tokens"].is_number_integer())
    base::fail_corrupt(file, "not the state of a run");
  const auto refuse_if = [&](bool wrong, const char* key) {
    if (wrong) base::fail_corrupt(file, fmt::format("{} = {} cannot be", key, base::shown(found[key])));
  };
  for (const char* key : {"step", "tokens"}) refuse_if(!is_count(found[key]), key);
  if (found.contains("seconds")) refuse_if(!found["seconds"].is_number() || !(found["seconds"].get<double>() >= 0), "seconds");
  if (found.contains("seed")) refuse_if(!found["seed"].is_number_integer(), "seed");
  for (const char* key : {"subset", "masks"})
    if (found.contains(key)) refuse_if(!is_hash(found[key]), key);
  RunState state;
  state.step = found["step"].get<int64_t>();
  state.tokens = found["tokens"].get<int64_t>();
  if (found.contains("seconds")) state.seconds = found["seconds"].get<double>();
  if (found.contains("seed")) state.seed = found["seed"].get<int64_t>();
  if (found.contains("subset")) state.subset = std::stoull(found["subset"].get<std::string>(), nullptr, 16);
  if (found.contains("reference")) state.reference = std::stoull(found["reference"].get<std::string>(), nullptr, 16);
  if (found.contains("masks")) state.masks = std::stoull(found["masks"].get<std::string>(), nullptr, 16);
  for (const auto& [key, into] : {std::pair("updates_skipped", &state.updates_skipped), std::pair("rollbacks", &state.rollbacks),
                                  std::pair("batches_passed", &state.batches_passed)}) {
    if (!found.contains(key)) continue;
    if (!is_count(found[key])) base::fail_corrupt(file, fmt::format("{} = {} is no count", key, base::shown(found[key])));
    *into = found[key].get<int64_t>();
  }
  for (const auto& [key, into] : {std::pair("apart", &state.apart), std::pair("round_unfinished", &state.round_unfinished)}) {
    if (!found.contains(key)) continue;
    refuse_if(!found[key].is_boolean(), key);
    *into = found[key].get<bool>();
  }
  return state;
}

std::string merge_ledgers(const std::vector<std::string>& ledgers) {
  base::OrderedJson purposes = base::OrderedJson::object(), pairs = base::OrderedJson::array(), channels = base::OrderedJson::array();
  for (const std::string& ledger : ledgers) {
    const base::OrderedJson one = base::parse_ordered_json(ledger);
    CAIRN_CHECK(one.is_object(), "the ledger of a rank is not JSON: {}", ledger);
    for (const auto& [purpose, total] : one["by_purpose"].items()) {
      base::OrderedJson& sum = purposes[purpose];
      for (const char* unit : {"bytes", "messages"}) {
        const int64_t so_far = sum.contains(unit) ? sum[unit].get<int64_t>() : 0;
        sum[unit] = so_far + total[unit].get<int64_t>();
      }
    }
    for (const base::OrderedJson& pair : one["pairs"]) pairs.push_back(pair);
    if (one.contains("channels"))
      for (const base::OrderedJson& channel : one["channels"]) channels.push_back(channel);
  }
  base::OrderedJson merged;
  merged["by_purpose"] = std::move(purposes);
  merged["pairs"] = std::move(pairs);
  if (!channels.empty()) merged["channels"] = std::move(channels);
  return base::pretty(merged) + "\n";
}

std::vector<Traffic> traffic_of(const std::string& ledger) {
  const base::Json json = base::parse_json(ledger);
  if (!json.is_object() || !json.contains("by_purpose") || !json["by_purpose"].is_object()) return {};
  std::vector<Traffic> traffic;
  for (const auto& [purpose, total] : json["by_purpose"].items()) {
    if (!total.is_object() || !total.contains("bytes") || !total.contains("messages")) continue;
    if (!total["bytes"].is_number() || !total["messages"].is_number() || total["messages"].get<double>() <= 0) continue;
    traffic.push_back({purpose, total["bytes"].get<double>(), total["messages"].get<double>()});
  }
  std::sort(traffic.begin(), traffic.end(), [](const Traffic& a, const Traffic& b) { return a.bytes > b.bytes; });
  return traffic;
}

}  // namespace cairn::train
