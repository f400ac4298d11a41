// Many trained adapters of one model in memory, for generation: each row of a batch may have another.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/call.h"
#include "model/decoder/adapter.h"
#include "model/decoder/adapter_shape.h"
#include "model/decoder/pool_index.h"

namespace cairn::model {

// Adapters by number. Those of pools keep their pools alone; what a layer takes of them is put together when it is needed, and the last few
// stay. For one thread.
class ServedAdapters {
 public:
  struct One {
    std::string name;
    AdapterShape shape;
    std::map<std::string, at::Tensor> tensors;  // under the names of the model's parameters, on its device and in its dtype
  };
  // `layers`: of the model; `prefix`: what comes before their numbers in names ("model.layers").
  ServedAdapters(std::vector<One> all, int64_t layers, std::string prefix);

  int32_t count() const { return static_cast<int32_t>(all_.size()); }
  const std::string& name(int32_t adapter) const { return all_[static_cast<size_t>(adapter)].name; }
  // Refuses an unknown name and suggests the nearest.
  int32_t find(const std::string& name) const;
  bool any_adapts(const std::string& module) const;
  int64_t bytes() const;  // of what is kept for all of them

  // What an adapter adds to a layer: (x a^T) b. Undefined where it adds nothing.
  struct Factors {
    at::Tensor a, b;  // [rank, in], and [rank, out] times the scale
  };
  Factors factors(int32_t adapter, const std::string& module) const;
  // Those of several adapters, one after the other, filled up with zeros to one rank: [adapters, rank, in] and [adapters, rank, out]. -1:
  // zeros. `like`: where none adds anything.
  Factors stacked(std::span<const int32_t> adapters, const std::string& module, int64_t in, int64_t out, const at::Tensor& like) const;

 private:
  Factors take(int32_t adapter, const std::string& module) const;

  std::vector<One> all_;
  int64_t layers_;
  std::string prefix_;
  std::vector<std::map<std::string, PoolIndex>> indices_;  // of each adapter, by kind of layer
  using Key = std::pair<int32_t, std::string>;
  mutable std::list<std::pair<Key, Factors>> recent_;                               // put together from pools, the latest first
  mutable std::map<std::string, std::pair<std::vector<int32_t>, Factors>> stacks_;  // by module: of the last batch
};

// Which adapter each row of the next calls has: -1 is none. The blocks find it in the buffers.
void put_row_adapters(Buffers& buffers, std::span<const int32_t> of_row, const at::Device& device);

// An adapter of one layer that adds what the adapter of each row says.
std::shared_ptr<const LinearAdapter> make_served_adapter(std::shared_ptr<const ServedAdapters> all, AdaptedWeight of);

}  // namespace cairn::model
