#pragma once
#include <string>

namespace cairn::model {

struct LlamaShape;

// The config.json of a Hugging Face directory, and back. Reading refuses other model types and shapes that cannot work, naming the key.
std::string llama_config_json(const LlamaShape& shape);
LlamaShape parse_llama_config(const std::string& json, const std::string& file);

}  // namespace cairn::model
