// A slice file has a line for each record: its number, a tab, the record as JSON; the last line is the checksum of all before.
#include "unlearn/records.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/json.h"
#include "data/selection/pool.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSliceBytesMax = int64_t{1} << 36;

void write_slice(const fs::path& path, const std::vector<StoredRecord>& records, const base::Disk& disk = base::real_disk()) {
  std::string text;
  for (const StoredRecord& record : records) text += fmt::format("{}\t{}\n", record.id, record.json);
  text += fmt::format("{:016x}\n", base::checksum(text));
  base::write_atomically(path, text, disk);
}

std::vector<StoredRecord> parse_slice(const fs::path& path) {
  const std::string text = base::read_file(path, kSliceBytesMax);
  constexpr size_t kSumBytes = 17;
  if (text.size() < kSumBytes) base::fail_corrupt(path.string(), "it ends early");
  const std::string_view body(text.data(), text.size() - kSumBytes);
  if (text.substr(body.size()) != fmt::format("{:016x}\n", base::checksum(body))) base::fail_corrupt(path.string(), "the checksum differs");
  std::vector<StoredRecord> records;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find('\n', at), tab = body.find('\t', at);
    if (end == std::string_view::npos || tab == std::string_view::npos || tab > end)
      base::fail_corrupt(path.string(), "a line is no record");
    StoredRecord record{.json = std::string(body.substr(tab + 1, end - tab - 1))};
    const auto [last, error] = std::from_chars(body.data() + at, body.data() + tab, record.id);
    if (error != std::errc() || last != body.data() + tab) base::fail_corrupt(path.string(), "a line has no number");
    records.push_back(std::move(record));
    at = end + 1;
  }
  return records;
}

}  // namespace

Imported count_records(const data::DataOptions& data) {
  Imported found;
  base::Checksum sum;
  data::for_each_record(data, "", [&](const data::PoolRecord& record) {
    ++found.records;
    sum.add(base::as_bytes(record.json));
  });
  found.digest = fmt::format("{:016x}", sum.value());
  return found;
}

void write_slices(const fs::path& folder, const StoreSpec& spec, const data::DataOptions& data, const std::set<int64_t>& deleted) {
  const Partition partition = spec.partition();
  std::map<int64_t, std::string> texts;
  int64_t next = 0;
  data::for_each_record(data, "", [&](const data::PoolRecord& record) {
    if (!deleted.contains(next)) texts.emplace(next, record.json);
    ++next;
  });
  if (next != spec.records) base::fail_input("data.path: it holds {} records, and a moment ago {}. Start again.", next, spec.records);
  base::make_folder(folder / "slices");
  for (int64_t shard = 0; shard < spec.shards; ++shard)
    for (int64_t slice = 0; slice < spec.slices; ++slice) {
      std::vector<StoredRecord> records;
      for (const int64_t id : partition.records_in({shard, slice}))
        if (!deleted.contains(id)) records.push_back({id, texts.at(id)});
      write_slice(folder / "slices" / fmt::format("s{}-k{}.records", shard, slice), records);
    }
}

std::vector<StoredRecord> read_slice(const Store& store, Place place, const std::set<int64_t>& deleted) {
  std::vector<StoredRecord> kept;
  for (StoredRecord& record : parse_slice(store.slice_file(place)))
    if (!deleted.contains(record.id)) kept.push_back(std::move(record));
  return kept;
}

std::vector<int64_t> find_records(const Store& store, const std::string& field, const std::string& value) {
  constexpr int kDepth = 64;
  std::vector<int64_t> found;
  for (int64_t shard = 0; shard < store.spec().shards; ++shard)
    for (int64_t slice = 0; slice < store.spec().slices; ++slice)
      for (const StoredRecord& record : parse_slice(store.slice_file({shard, slice}))) {
        const base::Json json = base::parse_json_guarded(record.json, kDepth).value;
        const auto at = json.is_object() ? json.find(field) : json.end();
        if (!json.is_object() || at == json.end()) continue;
        if ((at->is_string() ? at->get<std::string>() : base::compact(*at)) == value) found.push_back(record.id);
      }
  std::ranges::sort(found);
  return found;
}

int64_t purge_records(const Store& store, const std::set<int64_t>& deleted, const base::Disk& disk) {
  std::set<std::pair<int64_t, int64_t>> touched;
  const Partition partition = store.spec().partition();
  for (const int64_t record : deleted) {
    const Place place = partition.place_of(record);
    touched.insert({place.shard, place.slice});
  }
  int64_t removed = 0;
  for (const auto& [shard, slice] : touched) {
    const fs::path path = store.slice_file({shard, slice});
    const std::vector<StoredRecord> all = parse_slice(path);
    std::vector<StoredRecord> kept;
    for (const StoredRecord& record : all)
      if (!deleted.contains(record.id)) kept.push_back(record);
    if (kept.size() == all.size()) continue;
    write_slice(path, kept, disk);
    removed += static_cast<int64_t>(all.size() - kept.size());
  }
  return removed;
}

}  // namespace cairn::unlearn
