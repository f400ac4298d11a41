#pragma once
#include <memory>

#include "model/block.h"

namespace cairn::model {

// A block of the residual stream that a subnet may leave out: what it reads is then what it writes. It reads one value and writes one.
std::unique_ptr<Block> make_elastic_block(std::unique_ptr<Block> block, int64_t stage, int64_t place);

}  // namespace cairn::model
