// What the lists of bad inputs share: short ways to say what is made and what is run. One list for each reader.
#pragma once
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "study/hostile.h"

namespace cairn::study {

using HostileCases = std::vector<HostileCase>;

HostileCases hostile_safetensors();
HostileCases hostile_folders();
HostileCases hostile_configs();
HostileCases hostile_tokenizers();
HostileCases hostile_token_models();
HostileCases hostile_chats();
HostileCases hostile_adapters();
HostileCases hostile_data();
HostileCases hostile_shards();
HostileCases hostile_runs();
HostileCases hostile_retrieval();
HostileCases hostile_pictures();
HostileCases hostile_studies();
HostileCases hostile_selection();

// One tensor of a safetensors file that is to be written, with as many bytes as are given.
struct RawTensor {
  std::string name, dtype, shape, bytes;
};
// The file; offsets follow from the bytes.
Bytes safetensors_of(const std::vector<RawTensor>& tensors);
// Any header and what comes after it.
Bytes safetensors_raw(const Bytes& header, const std::string& data);
std::string floats(int64_t count, float value = 0.01F);
// Those of the model in the fixtures.
std::vector<RawTensor> good_tensors();

inline Bytes repeated(std::string text, int64_t times) { return {std::move(text), times}; }

// A short one, as a text.
inline std::string copies(const std::string& text, int64_t times) {
  std::string all;
  for (int64_t i = 0; i < times; ++i) all += text;
  return all;
}

// Reads a model without its tokenizer.
inline std::vector<std::string> generate_ids() { return {"generate", "m", "--ids", "1,2", "--tokens", "1"}; }
inline std::vector<std::string> generate_text() { return {"generate", "m", "--prompt", "a story", "--tokens", "1"}; }

}  // namespace cairn::study
