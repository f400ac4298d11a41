// One product for all rows: rows are sorted by adapter into groups of equal size, filled up with copies of row 0 whose results are dropped.
#include "model/decoder/served_adapters.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include <ATen/core/IListRef.h>
#include <ATen/ops/bmm.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "kernels/aten.h"
#include "model/card.h"

namespace cairn::model {
namespace {

constexpr const char* kServed = "served.";             // what all names below begin with
constexpr const char* kOfRow = "served.of_row";        // int64 [rows], on the CPU
constexpr const char* kGroups = "served.groups";       // int64: the adapters that occur, on the CPU
constexpr const char* kGather = "served.gather";       // int64 [groups * largest]: rows
constexpr const char* kScatter = "served.scatter";     // int64 [rows]: where each row lies among those
constexpr const char* kTogether = "served.together.";  // and a layer: the factors of all groups
constexpr const char* kAlone = "served.alone.";        // and an adapter and a layer: its factors, put together from pools
constexpr int64_t kAloneMax = 512;                     // tensors of these

at::Tensor of_numbers(const std::vector<int64_t>& numbers) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

std::vector<int32_t> numbers_of(const at::Tensor& tensor) {
  const int64_t* from = tensor.const_data_ptr<int64_t>();
  return {from, from + tensor.numel()};
}

using Kept = std::pair<Buffers::iterator, Buffers::iterator>;
Kept names_from(Buffers& buffers, const std::string& prefix) {
  std::string behind = prefix;
  ++behind.back();
  return {buffers.lower_bound(prefix), buffers.lower_bound(behind)};
}
void erase_from(Buffers& buffers, const std::string& prefix) {
  const auto [first, last] = names_from(buffers, prefix);
  buffers.erase(first, last);
}

// A layer's factors in the buffers; they are made where they are not there.
template <typename Make>
ServedAdapters::Factors kept_factors(Buffers& buffers, const std::string& name, const Make& make) {
  const auto a = buffers.find(name + ".a"), b = buffers.find(name + ".b");
  if (a != buffers.end() && b != buffers.end()) return {a->second, b->second};
  const ServedAdapters::Factors made = make();
  if (made.a.defined()) buffers[name + ".a"] = made.a, buffers[name + ".b"] = made.b;
  return made;
}

class ServedAdapter final : public LinearAdapter {
 public:
  ServedAdapter(std::shared_ptr<const ServedAdapters> all, AdaptedWeight of) : all_(std::move(all)), of_(std::move(of)) {}

  void add_output(const at::Tensor& y, const at::Tensor& x, int64_t /*first_row*/, const Call& call) const override {
    const auto groups = call.buffers.find(kGroups);
    if (groups == call.buffers.end()) return;
    const std::vector<int32_t> adapters = numbers_of(groups->second);
    if (adapters.size() == 1) return add_one(y, x, adapters[0], call.buffers);
    const at::Tensor gather = call.buffers.at(kGather), scatter = call.buffers.at(kScatter);
    CAIRN_CHECK(scatter.size(0) == x.size(0), "{}: {} rows, and adapters for {}", of_.name, x.size(0), scatter.size(0));
    const auto count = static_cast<int64_t>(adapters.size());
    const ServedAdapters::Factors f = kept_factors(call.buffers, kTogether + of_.name, [&] { return stacked(adapters, x); });
    const at::Tensor sorted = x.index_select(0, gather).view({count, -1, x.size(1)});
    const at::Tensor added = at::bmm(at::bmm(sorted, f.a.transpose(1, 2)), f.b);
    y.add_(added.flatten(0, 1).index_select(0, scatter));
  }
  void input_gradient(const at::Tensor&, const at::Tensor&, int64_t, const Call&) const override { not_trained(); }
  void weight_gradient(mesh::Gradients&, const at::Tensor&, const at::Tensor&, const Call&) const override { not_trained(); }
  at::Tensor plain(const at::Tensor&, const Call&) const override { return not_trained(), at::Tensor(); }
  std::vector<mesh::ParamId> parameters() const override { return {}; }
  void describe(BlockOp& operation) const override { operation.pooled = true; }

 private:
  void add_one(const at::Tensor& y, const at::Tensor& x, int32_t adapter, Buffers& buffers) const {
    if (adapter < 0) return;
    ServedAdapters::Factors f;
    if (all_->is_pooled(adapter)) {
      f = kept_factors(buffers, fmt::format("{}{}.{}", kAlone, adapter, of_.name), [&] {
        if (const auto [first, last] = names_from(buffers, kAlone); std::distance(first, last) >= kAloneMax) buffers.erase(first, last);
        return all_->factors(adapter, of_.name);
      });
    } else {
      f = all_->factors(adapter, of_.name);
    }
    if (f.a.defined()) y.addmm_(at::mm(x, f.a.t()), f.b);
  }

  // Factors of several adapters, one after the other, filled up with zeros to one rank: [adapters, rank, in] and [adapters, rank, out].
  ServedAdapters::Factors stacked(std::span<const int32_t> adapters, const at::Tensor& like) const {
    std::vector<ServedAdapters::Factors> each;
    int64_t rank = 1;
    for (const int32_t adapter : adapters) {
      each.push_back(adapter < 0 ? ServedAdapters::Factors{} : all_->factors(adapter, of_.name));
      if (each.back().a.defined()) rank = std::max(rank, each.back().a.size(0));
    }
    const auto count = static_cast<int64_t>(adapters.size());
    const ServedAdapters::Factors all{at::zeros({count, rank, of_.in}, like.options()), at::zeros({count, rank, of_.out}, like.options())};
    for (int64_t i = 0; i < count; ++i) {
      const ServedAdapters::Factors& one = each[static_cast<size_t>(i)];
      if (!one.a.defined()) continue;
      all.a[i].narrow(0, 0, one.a.size(0)).copy_(one.a);
      all.b[i].narrow(0, 0, one.b.size(0)).copy_(one.b);
    }
    return all;
  }
  void not_trained() const { CAIRN_CHECK(false, "{}: served adapters are not trained", of_.name); }

  std::shared_ptr<const ServedAdapters> all_;
  AdaptedWeight of_;
};

// Adapters with equal keys take the same rows of their pools.
using IndexKey = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool>;
IndexKey key_of(const AdapterShape& s, const std::string& kind) {
  return {kind, s.index_seed, s.rank, s.equivalent_rank, s.private_rank, s.shards, s.dissociate, s.share_rows};
}

}  // namespace

ServedAdapters::ServedAdapters(std::vector<One> all, int64_t layers, std::string prefix)
    : all_(std::move(all)), layers_(layers), prefix_(std::move(prefix) + "."), indices_(all_.size()) {
  std::map<IndexKey, std::shared_ptr<const PoolIndex>> known;
  for (size_t i = 0; i < all_.size(); ++i) {
    One& one = all_[i];
    for (auto& [name, tensor] : one.tensors) {
      if (name.ends_with(".lora_B.weight")) tensor = tensor.t().mul(one.shape.scale()).contiguous();
      if (!name.ends_with(".pool_a")) continue;
      const std::string kind = name.substr(std::string("adapters.").size(), name.size() - std::string("adapters..pool_a").size());
      std::shared_ptr<const PoolIndex>& index = known[key_of(one.shape, kind)];
      if (!index) index = std::make_shared<const PoolIndex>(make_pool_index(one.shape, kind, layers_));
      indices_[i][kind] = index;
    }
  }
}

int32_t ServedAdapters::find(const std::string& name) const {
  std::vector<std::string> names;
  for (const One& one : all_) {
    if (one.name == name) return static_cast<int32_t>(&one - all_.data());
    names.push_back(one.name);
  }
  base::fail_unknown("adapter", name, names);
}

bool ServedAdapters::any_adapts(const std::string& module) const {
  for (int32_t i = 0; i < count(); ++i)
    if (is_pooled(i) ? factors(i, module).a.defined() : all_[static_cast<size_t>(i)].tensors.contains(module + ".lora_A.weight"))
      return true;
  return false;
}

int64_t ServedAdapters::index_bytes() const {
  std::set<const PoolIndex*> different;
  for (const auto& of_kind : indices_)
    for (const auto& [kind, index] : of_kind) different.insert(index.get());
  size_t n = 0;
  for (const PoolIndex* index : different)
    for (const auto* side : {&index->a, &index->b})
      for (const std::vector<int64_t>& rows : *side) n += rows.size() * sizeof(int64_t);
  return static_cast<int64_t>(n);
}

int64_t ServedAdapters::bytes() const {
  int64_t n = index_bytes();
  for (const One& one : all_)
    for (const auto& [name, tensor] : one.tensors) n += static_cast<int64_t>(tensor.nbytes());
  return n;
}

ServedAdapters::Factors ServedAdapters::factors(int32_t adapter, const std::string& module) const {
  const One& one = all_[static_cast<size_t>(adapter)];
  if (!is_pooled(adapter)) {
    const auto a = one.tensors.find(module + ".lora_A.weight"), b = one.tensors.find(module + ".lora_B.weight");
    return a == one.tensors.end() || b == one.tensors.end() ? Factors{} : Factors{a->second, b->second};
  }
  const size_t dot = module.find('.', prefix_.size());
  if (!module.starts_with(prefix_) || dot == std::string::npos) return {};
  const std::string kind = module.substr(dot + 1);
  const auto index = indices_[static_cast<size_t>(adapter)].find(kind);
  if (index == indices_[static_cast<size_t>(adapter)].end()) return {};
  const auto layer = static_cast<size_t>(std::stoll(module.substr(prefix_.size(), dot - prefix_.size())));
  const auto rows = [&](const char* side, const std::vector<int64_t>& of) {
    const at::Tensor& pool = one.tensors.at("adapters." + kind + side);
    return pool.index_select(0, of_numbers(of).to(pool.device())).view({one.shape.rank, -1});
  };
  return {rows(".pool_a", index->second->a[layer]), rows(".pool_b", index->second->b[layer]).mul_(one.shape.scale())};
}

void put_row_adapters(Buffers& buffers, std::span<const int32_t> of_row, const at::Device& device) {
  const std::vector<int64_t> rows(of_row.begin(), of_row.end());
  if (const auto before = buffers.find(kOfRow); before != buffers.end() && before->second.numel() == static_cast<int64_t>(rows.size()) &&
                                                std::equal(rows.begin(), rows.end(), before->second.const_data_ptr<int64_t>()))
    return;
  std::map<int64_t, std::vector<int64_t>> members;
  for (size_t i = 0; i < rows.size(); ++i) members[rows[i]].push_back(static_cast<int64_t>(i));
  size_t largest = 0;
  for (const auto& [adapter, of] : members) largest = std::max(largest, of.size());
  std::vector<int64_t> groups, gather, scatter(rows.size());
  for (const auto& [adapter, of] : members) {
    for (size_t k = 0; k < largest; ++k) {
      if (k < of.size()) scatter[static_cast<size_t>(of[k])] = static_cast<int64_t>(gather.size());
      gather.push_back(k < of.size() ? of[k] : 0);
    }
    groups.push_back(adapter);
  }
  if (const auto before = buffers.find(kGroups);
      before == buffers.end() || numbers_of(before->second) != std::vector<int32_t>(groups.begin(), groups.end()))
    erase_from(buffers, kTogether);
  buffers[kOfRow] = of_numbers(rows), buffers[kGroups] = of_numbers(groups);
  buffers[kGather] = of_numbers(gather).to(device), buffers[kScatter] = of_numbers(scatter).to(device);
}

void drop_row_adapters(Buffers& buffers) { erase_from(buffers, kServed); }

int64_t row_adapter_bytes(const Buffers& buffers) {
  int64_t n = 0;
  for (const auto& [name, tensor] : buffers)
    if (name.starts_with(kServed)) n += static_cast<int64_t>(tensor.nbytes());
  return n;
}

std::shared_ptr<const LinearAdapter> make_served_adapter(std::shared_ptr<const ServedAdapters> all, AdaptedWeight of) {
  return std::make_shared<ServedAdapter>(std::move(all), std::move(of));
}

}  // namespace cairn::model
