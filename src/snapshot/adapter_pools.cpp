#include "snapshot/adapter_pools.h"

#include <limits>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/decoder/pool_index.h"
#include "model/families/families.h"

namespace cairn::snapshot {
namespace {

constexpr const char* kBefore = "adapters.";
constexpr const char* kPoolA = ".pool_a";
constexpr const char* kPoolB = ".pool_b";

// The vectors that a layer takes of a pool: [rank, width].
at::Tensor taken(const at::Tensor& pool, const std::vector<int64_t>& rows, int64_t rank) {
  const at::Tensor index = at::empty({static_cast<int64_t>(rows.size())}, at::kLong);
  std::copy(rows.begin(), rows.end(), index.mutable_data_ptr<int64_t>());
  return pool.index_select(0, index).view({rank, -1});
}

int64_t whole_number(const base::Json& json, const char* key, int64_t low, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer() || found->get<int64_t>() < low)
    base::fail_corrupt(path, fmt::format("mos.{} = {}: must be a whole number from {} on", key,
                                         found == json.end() ? "nothing" : base::shown(*found), low));
  return found->get<int64_t>();
}

bool yes_or_no(const base::Json& json, const char* key, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_boolean()) base::fail_corrupt(path, fmt::format("mos.{} must be true or false", key));
  return found->get<bool>();
}

}  // namespace

std::string index_checksum(const model::AdapterShape& adapter, int64_t layers) {
  return fmt::format("{:016x}", model::make_pool_index(adapter, "index", layers).checksum());
}

base::OrderedJson pools_json(const model::AdapterShape& adapter, int64_t layers) {
  base::OrderedJson json;
  json["equivalent_rank"] = adapter.equivalent_rank;
  json["private_rank"] = adapter.private_rank;
  json["shards_per_vector"] = adapter.shards;
  json["index_seed"] = adapter.index_seed;
  json["dissociate"] = adapter.dissociate;
  json["share_rows"] = adapter.share_rows;
  json["index_checksum"] = index_checksum(adapter, layers);
  return json;
}

void read_pools_json(const base::Json& json, Adapter& into, const std::string& path) {
  if (!json.is_object()) base::fail_corrupt(path, "mos must be an object");
  constexpr int64_t kMost = 65536;
  model::AdapterShape& shape = into.shape;
  shape.kind = model::AdapterKind::mos;
  shape.equivalent_rank = whole_number(json, "equivalent_rank", 1, path);
  shape.private_rank = whole_number(json, "private_rank", 0, path);
  shape.shards = whole_number(json, "shards_per_vector", 1, path);
  shape.index_seed = whole_number(json, "index_seed", 0, path);
  if (shape.equivalent_rank > kMost || shape.private_rank > shape.equivalent_rank || shape.private_rank > shape.rank ||
      shape.shards > kMost)
    base::fail_corrupt(path, "mos: ranks or shards_per_vector contradict each other");
  shape.dissociate = yes_or_no(json, "dissociate", path);
  shape.share_rows = yes_or_no(json, "share_rows", path);
  const auto sum = json.find("index_checksum");
  if (sum == json.end() || !sum->is_string()) base::fail_corrupt(path, "mos.index_checksum is missing");
  into.index_checksum = sum->get<std::string>();
}

mesh::NamedTensors low_rank_tensors(const Adapter& adapter, const model::DecoderShape& shape) {
  if (adapter.shape.kind != model::AdapterKind::mos) return adapter.tensors;
  const std::string of = adapter.path.empty() ? "the adapter" : adapter.path;
  if (!adapter.index_checksum.empty() && adapter.index_checksum != index_checksum(adapter.shape, shape.layers))
    base::fail_input(
        "{}: its pools were trained with another index than seed {} gives for {} layers: it is an adapter of another model, or "
        "of another version of Cairn",
        of, adapter.shape.index_seed, shape.layers);
  const std::string& layers = model::family(shape.family).names.layers;
  mesh::NamedTensors all;
  for (const mesh::NamedTensor& one : adapter.tensors) {
    const bool first = one.name.ends_with(kPoolA);
    if (!one.name.starts_with(kBefore) || (!first && !one.name.ends_with(kPoolB)))
      base::fail_input("{}: tensor \"{}\" is no pool", of, one.name.substr(0, 100));
    const size_t before = std::string(kBefore).size();
    const std::string kind = one.name.substr(before, one.name.size() - before - std::string(kPoolA).size());
    if (one.tensor.dim() != 2 || one.tensor.size(0) != model::pool_rows(adapter.shape, shape.layers))
      base::fail_input("{}: {} has {} rows, and {} layers of equivalent rank {} in {} shards need {}", of, one.name, one.tensor.size(0),
                       shape.layers, adapter.shape.equivalent_rank, adapter.shape.shards, model::pool_rows(adapter.shape, shape.layers));
    const model::PoolIndex index = model::make_pool_index(adapter.shape, kind, shape.layers);
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      const auto& rows = (first ? index.a : index.b)[static_cast<size_t>(layer)];
      const at::Tensor matrix = taken(one.tensor, rows, adapter.shape.rank);
      all.push_back(
          {fmt::format("{}.{}.{}.lora_{}.weight", layers, layer, kind, first ? "A" : "B"), first ? matrix : matrix.t().contiguous()});
    }
  }
  return all;
}

}  // namespace cairn::snapshot
