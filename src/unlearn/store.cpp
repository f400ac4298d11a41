#include "unlearn/store.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "unlearn/tombstones.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStoreFile = "store.json";
constexpr const char* kStoreFormat = "cairn unlearning store 1";
constexpr int64_t kStoreBytesMax = 256 << 20;
constexpr int64_t kRecipeBytesMax = 16 << 20;

// Fields of store.json. Everything is checked, because the file decides what is served.
class SpecReader {
 public:
  SpecReader(const base::Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json.is_object()) base::fail_corrupt(path_, "not a JSON object");
  }
  const base::Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) base::fail_corrupt(path_, fmt::format("\"{}\" is missing", key));
    return *found;
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) base::fail_corrupt(path_, fmt::format("\"{}\" is no text", key));
    return at(key).get<std::string>();
  }
  int64_t count(const char* key, int64_t low, int64_t high) const { return count(at(key), key, low, high); }
  int64_t count(const base::Json& value, const char* key, int64_t low, int64_t high) const {
    if (!value.is_number_integer() || value.get<int64_t>() < low || value.get<int64_t>() > high)
      base::fail_corrupt(path_, fmt::format("\"{}\" must be from {} to {}", key, low, high));
    return value.get<int64_t>();
  }
  template <typename E>
  E word(const char* key, base::EnumNames<E> names) const {
    const std::string found = text(key);
    const std::vector<std::string> words = base::enum_words(names);
    if (std::ranges::find(words, found) == words.end()) base::fail_corrupt(path_, fmt::format("\"{}\" is \"{}\"", key, found));
    return base::parse_enum(names, key, found);
  }
  uint64_t hash(const char* key) const {
    const std::string digits = text(key);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || end != digits.data() + digits.size()) base::fail_corrupt(path_, fmt::format("\"{}\" is no hash", key));
    return value;
  }
  std::vector<int64_t> list(const base::Json& json, const char* key, int64_t high) const {
    std::vector<int64_t> found;
    if (!json.is_array()) base::fail_corrupt(path_, fmt::format("\"{}\" is no list", key));
    for (const base::Json& one : json) found.push_back(count(one, key, 0, high));
    return found;
  }
  std::vector<std::vector<int64_t>> lists(const base::Json& json, const char* key, int64_t high) const {
    std::vector<std::vector<int64_t>> found;
    if (!json.is_array()) base::fail_corrupt(path_, fmt::format("\"{}\" is no list", key));
    for (const base::Json& one : json) found.push_back(list(one, key, high));
    return found;
  }
  [[noreturn]] void fail(const std::string& reason) const { base::fail_corrupt(path_, reason); }

 private:
  const base::Json& json_;
  std::string path_;
};

void check_orders(const SpecReader& reader, const StoreSpec& spec) {
  if (static_cast<int64_t>(spec.orders.size()) != spec.shards) reader.fail("it has orders of other shards");
  for (const std::vector<Order>& shard : spec.orders) {
    if (shard.empty()) reader.fail("a shard has no order");
    for (const Order& order : shard) {
      Order sorted = order;
      std::ranges::sort(sorted);
      for (size_t i = 0; i < sorted.size(); ++i)
        if (sorted[i] != static_cast<int64_t>(i)) reader.fail(fmt::format("{} is no order of slices", to_text(order)));
      if (static_cast<int64_t>(order.size()) != spec.slices) reader.fail(fmt::format("{} is no order of all slices", to_text(order)));
    }
  }
  if (static_cast<int64_t>(spec.layers.size()) != spec.slices) reader.fail("it has layers of other stages");
}

StoreSpec read_spec(const fs::path& path) {
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(path, kStoreBytesMax), 8);
  if (!parsed.trouble.empty()) base::fail_corrupt(path.string(), parsed.trouble);
  const SpecReader reader(parsed.value, path.string());
  if (reader.text("format") != kStoreFormat)
    base::fail_input("{}: \"format\" is \"{}\", and this Cairn reads \"{}\"", path.string(), reader.text("format"), kStoreFormat);
  constexpr int64_t kMost = int64_t{1} << 48;
  StoreSpec spec{.method = reader.word<Method>("method", kMethodNames),
                 .data = reader.word<StageData>("data", kStageDataNames),
                 .aggregate = reader.word<Aggregate>("aggregate", kAggregateNames),
                 .prefix = reader.word<Prefix>("prefix", kPrefixNames),
                 .shards = reader.count("shards", 1, 4096),
                 .slices = reader.count("slices", 1, 64),
                 .records = reader.count("records", 1, kMost),
                 .partition_seed = reader.count("partition_seed", 0, std::numeric_limits<int64_t>::max()),
                 .seed = reader.count("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()),
                 .orders = {},
                 .layers = reader.lists(reader.at("layers"), "layers", 1 << 20),
                 .base = reader.text("base"),
                 .base_checksum = reader.hash("base_checksum"),
                 .digest = reader.text("digest")};
  if (spec.records < spec.shards * spec.slices) reader.fail("it has fewer records than slices");
  if (!reader.at("orders").is_array()) reader.fail("\"orders\" is no list");
  for (const base::Json& shard : reader.at("orders")) spec.orders.push_back(reader.lists(shard, "orders", 63));
  check_orders(reader, spec);
  return spec;
}

std::string format_spec(const StoreSpec& s) {
  return base::pretty(base::OrderedJson{{"format", kStoreFormat},
                                        {"method", base::enum_name(kMethodNames, s.method)},
                                        {"data", base::enum_name(kStageDataNames, s.data)},
                                        {"aggregate", base::enum_name(kAggregateNames, s.aggregate)},
                                        {"prefix", base::enum_name(kPrefixNames, s.prefix)},
                                        {"shards", s.shards},
                                        {"slices", s.slices},
                                        {"records", s.records},
                                        {"partition_seed", s.partition_seed},
                                        {"seed", s.seed},
                                        {"base", s.base},
                                        {"base_checksum", fmt::format("{:016x}", s.base_checksum)},
                                        {"digest", s.digest},
                                        {"layers", s.layers},
                                        {"orders", s.orders}}) +
         "\n";
}

}  // namespace

bool is_store(const fs::path& folder) {
  std::error_code none;
  return fs::is_regular_file(folder / kStoreFile, none) && fs::is_directory(folder / "artifacts", none);
}

Store::Store(fs::path folder) : folder_(std::move(folder)) {
  if (!is_store(folder_))
    base::fail_input("{}: no store of cairn unlearn. Make one with `cairn unlearn train RECIPE --out {}`.", folder_.string(),
                     folder_.string());
  spec_ = read_spec(folder_ / kStoreFile);
}

Store Store::make(const fs::path& folder, const StoreSpec& spec, const std::string& recipe, const std::string& options) {
  for (const char* name : {"artifacts", "slices", "work"}) base::make_folder(folder / name);
  base::write_atomically(folder / "recipe.toml", recipe);
  base::write_atomically(folder / "unlearning.toml", options);
  base::write_atomically(folder / kStoreFile, format_spec(spec));
  return Store(folder);
}

std::string Store::recipe() const { return base::read_file(folder_ / "recipe.toml", kRecipeBytesMax); }
std::string Store::options() const { return base::read_file(folder_ / "unlearning.toml", kRecipeBytesMax); }

fs::path Store::slice_file(Place place) const { return folder_ / "slices" / fmt::format("s{}-k{}.records", place.shard, place.slice); }

std::vector<int64_t> Store::deleted() const {
  std::vector<int64_t> records;
  std::set<int64_t> known;
  for (const int64_t record : read_tombstones(tombstones())) {
    if (record >= spec_.records)
      base::fail_corrupt(tombstones().string(), fmt::format("record {}: the store has {}", record, spec_.records));
    if (known.insert(record).second) records.push_back(record);
  }
  return records;
}

std::vector<std::vector<int64_t>> Store::deleted_by_slice() const {
  std::vector<std::vector<int64_t>> counts(static_cast<size_t>(spec_.shards), std::vector<int64_t>(static_cast<size_t>(spec_.slices), 0));
  const Partition partition = spec_.partition();
  for (const int64_t record : deleted()) {
    const Place place = partition.place_of(record);
    ++counts[static_cast<size_t>(place.shard)][static_cast<size_t>(place.slice)];
  }
  return counts;
}

std::vector<std::string> Store::artifact_names() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_ / "artifacts"))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace cairn::unlearn
