// Unicode's normal forms, and the other changes that a tokenizer makes to a text before cutting it.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer/bpe.h"

namespace cairn::data {

// Applies the changes in order. The result is `text` itself where nothing changes, else it lies in `scratch`.
// Bytes that are not well-formed UTF-8 are left as they are.
std::string_view apply_normalizers(std::string_view text, std::span<const NormalizerStep> normalizers, std::string& scratch);

// The normal form C of a text.
std::string to_nfc(std::string_view text);

}  // namespace cairn::data
