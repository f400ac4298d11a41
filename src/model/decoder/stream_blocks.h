// The blocks that make a decoder run several streams (decoder/stream_shape.h):
//
//   embedding -> [batch, length, embed] -> repeat -> [streams * batch, length, embed] -> layers -> mixer -> [batch, length, embed] -> head
//
// Rows are stream by stream: sequence i of stream p is row p * batch + i. Where ranks along tp run a part of the streams each
// (StreamShape::along_tp), layers hold whole weights and exchange nothing, and the mixer gathers the hidden states: the rows of a rank are
// those that sequence parallelism would give it.
// With PassOptions::single_stream the model computes as one stream: no rows are repeated, prefixes and mixer have no part.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "model/block.h"
#include "model/decoder/norm.h"
#include "model/decoder/shape.h"

namespace cairn::model {

// "reads" [batch, length, embed] -> "writes" [streams * batch, length, embed].
std::unique_ptr<Block> make_repeat_block(const DecoderShape& shape, std::string reads, std::string writes);

// A block of a layer, called for all streams together.
std::unique_ptr<Block> make_streamed_block(const DecoderShape& shape, std::unique_ptr<Block> block);

// The final norm and the mixer (decoder/stream_mixer.h).
struct MixerParts {
  Norm norm;
  mesh::ParamId w1, b1, w2, b2;
};
std::unique_ptr<Block> make_mixer_block(const DecoderShape& shape, std::string reads, std::string writes, MixerParts parts);

}  // namespace cairn::model
