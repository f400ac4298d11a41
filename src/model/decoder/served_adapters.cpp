// One product for all rows: rows are sorted by adapter into groups of equal size, filled up with copies of row 0 whose results are dropped.
#include "model/decoder/served_adapters.h"

#include <algorithm>

#include <ATen/core/IListRef.h>
#include <ATen/ops/bmm.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "kernels/aten.h"
#include "model/card.h"

namespace cairn::model {
namespace {

constexpr const char* kOfRow = "served.of_row";     // int64 [rows], on the CPU
constexpr const char* kGroups = "served.groups";    // int64: the adapters that occur, on the CPU
constexpr const char* kGather = "served.gather";    // int64 [groups * largest]: rows
constexpr const char* kScatter = "served.scatter";  // int64 [rows]: where each row lies among those
constexpr size_t kRecentMax = 256;                  // adapters of single layers, put together from pools

at::Tensor of_numbers(const std::vector<int64_t>& numbers) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

std::vector<int32_t> numbers_of(const at::Tensor& tensor) {
  const int64_t* from = tensor.const_data_ptr<int64_t>();
  return {from, from + tensor.numel()};
}

class ServedAdapter final : public LinearAdapter {
 public:
  ServedAdapter(std::shared_ptr<const ServedAdapters> all, AdaptedWeight of) : all_(std::move(all)), of_(std::move(of)) {}

  void add_output(const at::Tensor& y, const at::Tensor& x, int64_t /*first_row*/, const Call& call) const override {
    const auto groups = call.buffers.find(kGroups);
    if (groups == call.buffers.end()) return;
    const std::vector<int32_t> adapters = numbers_of(groups->second);
    if (adapters.size() == 1) return add_one(y, x, adapters[0]);
    const at::Tensor &gather = call.buffers.at(kGather), &scatter = call.buffers.at(kScatter);
    CAIRN_CHECK(scatter.size(0) == x.size(0), "{}: {} rows, and adapters for {}", of_.name, x.size(0), scatter.size(0));
    const auto count = static_cast<int64_t>(adapters.size());
    const ServedAdapters::Factors f = all_->stacked(adapters, of_.name, of_.in, of_.out, x);
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
  void add_one(const at::Tensor& y, const at::Tensor& x, int32_t adapter) const {
    if (adapter < 0) return;
    if (const ServedAdapters::Factors f = all_->factors(adapter, of_.name); f.a.defined()) y.addmm_(at::mm(x, f.a.t()), f.b);
  }
  void not_trained() const { CAIRN_CHECK(false, "{}: served adapters are not trained", of_.name); }

  std::shared_ptr<const ServedAdapters> all_;
  AdaptedWeight of_;
};

}  // namespace

ServedAdapters::ServedAdapters(std::vector<One> all, int64_t layers, std::string prefix)
    : all_(std::move(all)), layers_(layers), prefix_(std::move(prefix) + "."), indices_(all_.size()) {
  for (size_t i = 0; i < all_.size(); ++i) {
    One& one = all_[i];
    for (auto& [name, tensor] : one.tensors) {
      if (name.ends_with(".lora_B.weight")) tensor = tensor.t().contiguous().mul_(one.shape.scale());
      if (!name.ends_with(".pool_a")) continue;
      const std::string kind = name.substr(std::string("adapters.").size(), name.size() - std::string("adapters..pool_a").size());
      indices_[i][kind] = make_pool_index(one.shape, kind, layers_);
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
    if (all_[static_cast<size_t>(i)].shape.kind == AdapterKind::mos
            ? take(i, module).a.defined()
            : all_[static_cast<size_t>(i)].tensors.contains(module + ".lora_A.weight"))
      return true;
  return false;
}

int64_t ServedAdapters::bytes() const {
  int64_t n = 0;
  for (const One& one : all_)
    for (const auto& [name, tensor] : one.tensors) n += static_cast<int64_t>(tensor.nbytes());
  return n;
}

ServedAdapters::Factors ServedAdapters::take(int32_t adapter, const std::string& module) const {
  const One& one = all_[static_cast<size_t>(adapter)];
  if (one.shape.kind != AdapterKind::mos) {
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
  return {rows(".pool_a", index->second.a[layer]), rows(".pool_b", index->second.b[layer]).mul_(one.shape.scale())};
}

ServedAdapters::Factors ServedAdapters::factors(int32_t adapter, const std::string& module) const {
  if (all_[static_cast<size_t>(adapter)].shape.kind != AdapterKind::mos) return take(adapter, module);
  const Key key{adapter, module};
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& one) { return one.first == key; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
  } else {
    recent_.emplace_front(key, take(adapter, module));
    if (recent_.size() > kRecentMax) recent_.pop_back();
  }
  return recent_.front().second;
}

ServedAdapters::Factors ServedAdapters::stacked(std::span<const int32_t> adapters, const std::string& module, int64_t in, int64_t out,
                                                const at::Tensor& like) const {
  auto& [of, kept] = stacks_[module];
  if (kept.a.defined() && std::equal(of.begin(), of.end(), adapters.begin(), adapters.end())) return kept;
  std::vector<Factors> each;
  int64_t rank = 1;
  for (const int32_t adapter : adapters) {
    each.push_back(adapter < 0 ? Factors{} : take(adapter, module));
    if (each.back().a.defined()) rank = std::max(rank, each.back().a.size(0));
  }
  const auto count = static_cast<int64_t>(adapters.size());
  kept = {at::zeros({count, rank, in}, like.options()), at::zeros({count, rank, out}, like.options())};
  for (int64_t i = 0; i < count; ++i) {
    const Factors& one = each[static_cast<size_t>(i)];
    if (!one.a.defined()) continue;
    kept.a[i].narrow(0, 0, one.a.size(0)).copy_(one.a);
    kept.b[i].narrow(0, 0, one.b.size(0)).copy_(one.b);
  }
  of.assign(adapters.begin(), adapters.end());
  return kept;
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
  buffers[kOfRow] = of_numbers(rows), buffers[kGroups] = of_numbers(groups);
  buffers[kGather] = of_numbers(gather).to(device), buffers[kScatter] = of_numbers(scatter).to(device);
}

std::shared_ptr<const LinearAdapter> make_served_adapter(std::shared_ptr<const ServedAdapters> all, AdaptedWeight of) {
  return std::make_shared<ServedAdapter>(std::move(all), std::move(of));
}

}  // namespace cairn::model
