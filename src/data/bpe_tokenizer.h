// Byte-level byte-pair encoding, as GPT-2 and its descendants use it.
#pragma once
#include <memory>

#include "data/bpe.h"
#include "data/tokenizer.h"

namespace cairn::data {

// `bpe` holds a piece for each of the 256 bytes and kEndOfText, as train_bpe and read_tokenizer promise.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(Bpe bpe);

}  // namespace cairn::data
