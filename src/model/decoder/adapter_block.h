#pragma once
#include <memory>
#include <string>

#include "model/block.h"
#include "model/decoder/adapter_matrix.h"
#include "model/decoder/adapter_shape.h"
#include "model/decoder/norm.h"
#include "model/decoder/shape.h"

namespace cairn::model {

// The values of a bottleneck adapter. Beside a branch it reads the branch's input from the stream and adds to the stream after the branch.
// Behind a branch it reads the branch's result h, complete, and adds h too.
struct AdapterIo {
  std::string name, reads, onto, writes;
};

struct AdapterBlockParts {
  Norm norm;
  AdapterMatrix down, up;
};

// onto + scale up(activation(down(norm(x)))), or onto + x + the same behind a branch; of the styles that are on branches (adapter_shape.h).
// Each token is by itself, so along tp a rank computes the tokens that it has.
std::unique_ptr<Block> make_adapter_block(const DecoderShape& shape, const AdapterShape& adapter, AdapterIo io, AdapterBlockParts parts);

}  // namespace cairn::model
