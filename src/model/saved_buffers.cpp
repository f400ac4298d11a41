#include "model/saved_buffers.h"

#include "model/bit_mask.h"

namespace cairn::model {

mesh::NamedTensors mask_buffers(const Buffers& buffers) {
  mesh::NamedTensors masks;
  for (const auto& [name, tensor] : buffers)
    if (name.ends_with(kMaskSuffix)) masks.push_back({name, tensor});
  return masks;
}

}  // namespace cairn::model
