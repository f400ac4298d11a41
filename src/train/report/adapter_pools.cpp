#include "train/report/adapter_pools.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "kernels/aten.h"
#include "model/decoder/pool_index.h"
#include "model/model.h"
#include "train/evaluate.h"
#include "train/job.h"
#include "train/settings.h"
#include "train/state/surgery.h"

namespace cairn::train {
namespace {

constexpr const char* kPoolsBegin = "adapters.";

bool is_pool(const model::Parameter& parameter) {
  return parameter.of_many_layers && parameter.role == model::Parameter::Role::adapter && parameter.name.starts_with(kPoolsBegin);
}

int64_t layers_of(const model::AdapterShape& shape, const model::Parameter& pool) {
  return pool.shape.at(0) / (shape.equivalent_rank * shape.shards);
}

// "0: 12, 1: 40, 2: 12": public rows, by how many layers take them.
std::string histogram(const std::map<int64_t, int64_t>& rows) {
  std::string text;
  for (const auto& [layers, count] : rows) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", layers, count);
  return text;
}

}  // namespace

std::string pools_text(const Job& job) {
  const model::AdapterShape shape = job.config.settings.adapter.shape();
  if (shape.kind != model::AdapterKind::mos || shape.rank == 0) return "";
  int64_t elements = 0, public_rows = 0, taken = 0;
  std::map<int64_t, int64_t> rows;
  for (const model::Parameter& one : job.engine.model->parameters()) {
    if (!is_pool(one)) continue;
    elements += one.elements();
    const bool first = one.name.ends_with(".pool_a");
    const std::string kind = one.name.substr(std::string(kPoolsBegin).size(), one.name.rfind('.') - std::string(kPoolsBegin).size());
    const int64_t layers = layers_of(shape, one);
    const model::PoolIndex index = model::make_pool_index(shape, kind, layers);
    for (const auto& [times, count] : model::public_use(shape, first ? index.a : index.b, layers).rows) {
      rows[times] += count;
      public_rows += count, taken += times * count;
    }
  }
  std::string text =
      fmt::format("pools: {} trained parameters, as many as LoRA of rank {}; layers have rank {} ({:.2g} times as much); {} for an adapter",
                  base::human_count(static_cast<double>(elements)), shape.equivalent_rank, shape.rank,
                  static_cast<double>(shape.rank) / static_cast<double>(shape.equivalent_rank), base::human_bytes(4 * elements));
  if (public_rows > 0)
    text += fmt::format("\npools: public rows by the layers that take them: {} ({:.2f} layers in the mean)", histogram(rows),
                        static_cast<double>(taken) / static_cast<double>(public_rows));
  return text;
}

void measure_pools(Job& job, HeldOut& into) {
  const model::AdapterShape shape = job.config.settings.adapter.shape();
  if (shape.kind != model::AdapterKind::mos || shape.rank == 0) return;
  double of_public = 0, of_private = 0;
  const std::vector<model::Parameter>& all = job.engine.model->parameters();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!is_pool(all[i])) continue;
    const at::Tensor pool = whole_parameter(job, i);
    const int64_t shared = model::public_pool_rows(shape, layers_of(shape, all[i]));
    of_public += pool.narrow(0, 0, shared).square().sum().item<double>();
    of_private += pool.narrow(0, shared, pool.size(0) - shared).square().sum().item<double>();
  }
  into.more.emplace_back("pool_public_norm", std::sqrt(of_public));
  into.more.emplace_back("pool_private_norm", std::sqrt(of_private));
}

}  // namespace cairn::train
