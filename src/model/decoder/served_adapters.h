// Many trained adapters of one model in memory, for generation: each row of a batch may have another. What layers take of pools is put
// together when a batch first needs it and kept in the batch's buffers until it ends, so that between batches memory holds pools alone.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/call.h"
#include "model/decoder/adapter.h"
#include "model/decoder/adapter_shape.h"
#include "model/decoder/pool_index.h"

namespace cairn::model {

// Adapters by number. Those of pools keep their pools alone; adapters with equal indices share them.
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
  bool is_pooled(int32_t adapter) const { return all_[static_cast<size_t>(adapter)].shape.kind == AdapterKind::mos; }
  int64_t bytes() const;        // of what is kept for all of them: tensors, and indices once
  int64_t index_bytes() const;  // of these, indices

  // What an adapter adds to a layer: (x a^T) b. Undefined where it adds nothing. Of pools it is put together at each call.
  struct Factors {
    at::Tensor a, b;  // [rank, in], and [rank, out] times the scale
  };
  Factors factors(int32_t adapter, const std::string& module) const;

 private:
  std::vector<One> all_;
  int64_t layers_;
  std::string prefix_;
  std::vector<std::map<std::string, std::shared_ptr<const PoolIndex>>> indices_;  // of each adapter, by kind of layer
};

// Which adapter each row of the next calls has: -1 is none. The blocks find it in the buffers, and keep there what they put together of
// the factors of these adapters.
void put_row_adapters(Buffers& buffers, std::span<const int32_t> of_row, const at::Device& device);
// No rows have adapters any more, and nothing is kept.
void drop_row_adapters(Buffers& buffers);
// Of what is kept for rows in the buffers.
int64_t row_adapter_bytes(const Buffers& buffers);

// An adapter of one layer that adds what the adapter of each row says.
std::shared_ptr<const LinearAdapter> make_served_adapter(std::shared_ptr<const ServedAdapters> all, AdaptedWeight of);

}  // namespace cairn::model
