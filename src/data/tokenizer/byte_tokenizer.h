// The plainest tokenizer: one id for each byte, and one for the end of a text.
#pragma once
#include <memory>

#include "data/tokenizer.h"

namespace cairn::data {

// Ids 0 .. 255 are the bytes, 256 is kEndOfText.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace cairn::data
