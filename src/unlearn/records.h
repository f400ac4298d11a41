// The store's own copy of the records of each slice: what stages read, and what a deletion removes.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "unlearn/store.h"

namespace cairn::base {
class Disk;
}
namespace cairn::data {
struct DataOptions;
}

namespace cairn::unlearn {

struct StoredRecord {
  int64_t id = 0;
  std::string json = {};  // one line
};

// All records that the data options name, numbered from 0 over all files.
struct Imported {
  int64_t records = 0;
  std::string digest = {};  // of all records in order
};
Imported count_records(const data::DataOptions& data);
// Cuts them into slices and writes those, without `deleted`. Called before the store exists: `folder` is its folder.
void write_slices(const std::filesystem::path& folder, const StoreSpec& spec, const data::DataOptions& data,
                  const std::set<int64_t>& deleted);

// Those of a slice that are not in `deleted`, in the order of the partition. Refuses a damaged file.
std::vector<StoredRecord> read_slice(const Store& store, Place place, const std::set<int64_t>& deleted);

// Those whose field is this text, or this number. Of all slices; what is deleted is not there.
std::vector<int64_t> find_records(const Store& store, const std::string& field, const std::string& value);

// Rewrites the slice files that hold one of these records without it. Returns how many were removed.
int64_t purge_records(const Store& store, const std::set<int64_t>& deleted, const base::Disk& disk);

}  // namespace cairn::unlearn
