// Which tokens begin and end a text, as the files beside a tokenizer declare.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "data/tokenizer.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer_config.h"

namespace cairn::data {

// The folder whose files describe this tokenizer file; empty where the file's name is none of a model's folder ("story.tokenizer.json").
std::string tokenizer_folder(const std::string& tokenizer_file);

// The declared ids, each from the first of these that names a token of the tokenizer: eos_token (bos_token) of `config`, which holds
// tokenizer_config.json and special_tokens_map.json; eos_token_id (bos_token_id) of config.json; the same of generation_config.json. Of a
// list of ids, the first.
Tokenizer::Declared declared_tokens(const std::string& folder, const TokenizerConfig& config, const Tokenizer& tokenizer);

// What is put around a text, as add_bos_token and add_eos_token say where they are given: true adds the token, false removes it.
void apply_added_tokens(const TokenizerConfig& config, Bpe& bpe);

// Adds a file of the folder to `texts`, unless it is there, or not in the folder.
void put_file(const std::string& folder, const char* name, std::map<std::string, std::string>& texts);

// Adds the tokenizer_config.json and special_tokens_map.json beside a tokenizer to `texts`, unless they are there.
void put_tokenizer_files(const std::string& tokenizer_file, std::map<std::string, std::string>& texts);

}  // namespace cairn::data
