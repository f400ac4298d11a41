#include "mesh/flat_layout.h"

#include <utility>

#include "base/check.h"

namespace cairn::mesh {

void FlatLayout::append(std::string name, std::vector<int64_t> shape) {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  pieces.push_back({std::move(name), std::move(shape), elements, n});
  elements += n;
}

at::Tensor FlatLayout::view(const at::Tensor& flat, ParamId id) const {
  const Piece& first = pieces.at(static_cast<size_t>(id.first));
  if (id.count == 1) return flat.narrow(0, first.offset, first.elements).view(first.shape);
  std::vector<int64_t> shape = first.shape;
  int64_t n = first.elements;
  for (int32_t i = 1; i < id.count; ++i) {
    const Piece& next = pieces.at(static_cast<size_t>(id.first + i));
    CAIRN_CHECK(next.shape.size() == shape.size() && (shape.size() < 2 || next.shape.back() == shape.back()), "{} and {} cannot be stacked",
                first.name, next.name);
    shape[0] += next.shape[0];
    n += next.elements;
  }
  return flat.narrow(0, first.offset, n).view(shape);
}

NamedTensors FlatLayout::views(const at::Tensor& flat) const {
  NamedTensors result;
  for (size_t i = 0; i < pieces.size(); ++i) result.push_back({pieces[i].name, view(flat, {static_cast<int32_t>(i)})});
  return result;
}

}  // namespace cairn::mesh
