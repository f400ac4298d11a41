#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/gradients.h"
#include "mesh/named_tensor.h"

namespace cairn::mesh {

// The offsets of a list of tensors in one flat buffer. Neighbours touch: several can be read as one taller matrix, and any range of them
// is one message.
struct FlatLayout {
  struct Piece {
    std::string name;
    std::vector<int64_t> shape;
    int64_t offset = 0;  // elements from the start of the buffer
    int64_t elements = 0;
    bool operator==(const Piece&) const = default;
  };
  std::vector<Piece> pieces;
  int64_t elements = 0;

  void append(std::string name, std::vector<int64_t> shape);
  // The tensors of `id` as a view of the buffer; several are stacked along dim 0.
  at::Tensor view(const at::Tensor& flat, ParamId id) const;
  // Every piece as a named view.
  NamedTensors views(const at::Tensor& flat) const;
};

}  // namespace cairn::mesh
