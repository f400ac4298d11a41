#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/json.h"

namespace cairn::model {

// Far beyond existing models. Products of any two of these, and of two and the layers, do not overflow.
inline constexpr int64_t kVocabMax = 1 << 24, kWidthMax = 1 << 20, kHeadsMax = 1 << 12, kLayersMax = 1 << 14;
inline constexpr int64_t kLengthMax = int64_t{1}
                                      << 40;  // some files say 10^12 for "unlimited"; tables are made for the length that is used

// A parsed config.json, with its name for messages.
class ConfigFields {
 public:
  ConfigFields(const base::Json& json, const std::string& file) : json_(json), file_(file) {}

  const base::Json* find(const char* key) const {  // null where it is not given
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t size(const char* key, int64_t most, std::optional<int64_t> otherwise = std::nullopt) const {
    const base::Json* value = find(key);
    if (!value) {
      if (otherwise) return *otherwise;
      base::fail_corrupt(file_, fmt::format("{} is missing", key));
    }
    if (!value->is_number_integer() || value->get<int64_t>() < 1 || value->get<int64_t>() > most)
      base::fail_corrupt(file_, fmt::format("{} = {}: must be a whole number from 1 to {}", key, base::shown(*value), most));
    return value->get<int64_t>();
  }

  double number(const char* key, double most, double otherwise) const {
    const base::Json* value = find(key);
    if (!value) return otherwise;
    const double found = value->is_number() ? value->get<double>() : -1;
    if (!(found > 0) || !(found <= most))
      base::fail_corrupt(file_, fmt::format("{} = {}: must be a number above 0 and at most {}", key, base::shown(*value), most));
    return found;
  }

  bool flag(const char* key, bool otherwise) const {
    const base::Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) base::fail_corrupt(file_, fmt::format("{} = {}: must be true or false", key, base::shown(*value)));
    return value->get<bool>();
  }

  // Refuses a value that is not in `allowed`. A missing key is allowed.
  void only(const char* key, const std::vector<base::Json>& allowed) const {
    const base::Json* value = find(key);
    if (!value || std::find(allowed.begin(), allowed.end(), *value) != allowed.end()) return;
    std::vector<std::string> words;
    for (const base::Json& one : allowed) words.push_back(base::compact(one));
    base::fail_input("{}: {} = {}: Cairn computes this family only with {}{}", file_, key, base::shown(*value), key,
                     words.empty() ? " left out" : fmt::format(" = {}", fmt::join(words, " or ")));
  }

  const base::Json& json() const { return json_; }
  const std::string& file() const { return file_; }

 private:
  const base::Json& json_;
  const std::string& file_;
};

// The layers that a list names, ascending.
std::vector<int64_t> layer_list(const ConfigFields& config, const char* key, int64_t layers);

}  // namespace cairn::model
