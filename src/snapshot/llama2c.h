// Models in the .bin format of llama2.c (version 0): a header of seven numbers, then fp32 weights in a fixed order.
#pragma once
#include <string>

#include "mesh/named_tensor.h"
#include "model/decoder/shape.h"

namespace cairn::snapshot {

struct Llama2c {
  model::DecoderShape shape;
  mesh::NamedTensors parameters;  // under Hugging Face names; queries and keys turned to the order of their rotation
};

// The file is not trusted: throws corrupt_file unless it is exactly as long as its header says. Ids 1 and 2 begin and end a text there.
Llama2c read_llama2c(const std::string& path);

}  // namespace cairn::snapshot
