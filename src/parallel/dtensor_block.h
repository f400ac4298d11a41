#pragma once
#include <memory>
#include <vector>

namespace cairn::comm {
class World;
}
namespace cairn::model {
class Model;
struct Card;
}  // namespace cairn::model

namespace cairn::parallel {

struct Plan;

// Whether each block has a parameter that is placed otherwise than the block's own tensor-parallel form has it. Such a block runs its plain
// form on DTensors (mesh/dtensor.h).
std::vector<bool> dtensor_blocks(const model::Model& model, const Plan& plan);

// The first block that cannot: the tokens of its stream are not sharded along tp (model/decoder/residual_stream.h); null: all can.
const model::Card* block_without_dtensors(const model::Model& model);

// The same model, in which those blocks run so on this rank. The stream between blocks is as ever: its tokens are sharded along tp. So
// blocks of both kinds may follow each other. Without ranks along tp in a call (generation on one rank) a block runs its own form.
std::unique_ptr<model::Model> with_dtensor_blocks(std::unique_ptr<model::Model> model, const Plan& plan, comm::World& world);

}  // namespace cairn::parallel
