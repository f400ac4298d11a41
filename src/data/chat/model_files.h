// The files of a model's directory that describe chats, so that transformers and `cairn chat` render conversations as in training and stop
// at the end of an answer.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_format.h"

namespace cairn::data {

// The ids that the model's config.json names.
struct SpecialTokenIds {
  std::optional<int64_t> bos = {}, pad = {};
  std::vector<int64_t> eos = {};
};

// Adds tokenizer_config.json (with the template) and generation_config.json (with the token that ends an answer) to `texts`, the files that
// came with the model, by name. Other settings in them stay; a chat_template.jinja with another template is removed.
void put_chat_files(const ChatFormat& format, const Tokenizer& tokenizer, const SpecialTokenIds& ends,
                    std::map<std::string, std::string>& texts);

}  // namespace cairn::data
