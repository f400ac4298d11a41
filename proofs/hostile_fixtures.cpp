// The good things that bad inputs are made from: a model directory, an adapter for it, and a short run.
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "data/corpus/token_file.h"
#include "data/selection/pool.h"
#include "data/selection/subset_file.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer_json.h"
#include "hostile_cases.h"
#include "train/train.h"

namespace cairn::study {
namespace {

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 257,
  "hidden_size": 8,
  "intermediate_size": 16,
  "num_hidden_layers": 1,
  "num_attention_heads": 2,
  "num_key_value_heads": 1,
  "head_dim": 4,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "rope_scaling": null,
  "hidden_act": "silu",
  "attention_bias": false,
  "mlp_bias": false,
  "tie_word_embeddings": false,
  "bos_token_id": 256,
  "eos_token_id": 256,
  "torch_dtype": "float32"
}
)";

constexpr const char* kAdapterConfig = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none",
  "lora_dropout": 0.0, "use_dora": false, "use_rslora": false, "task_type": "CAUSAL_LM"})";

constexpr const char* kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}<|im_start|>assistant\\n";

std::string byte_tokenizer() {
  data::Bpe bpe;
  for (int byte = 0; byte < 256; ++byte) bpe.pieces.emplace_back(1, static_cast<char>(byte));
  bpe.pieces.emplace_back("<|endoftext|>");
  bpe.added.push_back({.id = 256, .text = "<|endoftext|>", .in_vocab = false});
  return data::write_tokenizer_json(bpe);
}

// A token shard that another tokenizer than the model's made.
std::string byte_shard() {
  std::string bytes;
  data::TokenWriter writer([&](std::span<const std::byte> more) { bytes.append(reinterpret_cast<const char*>(more.data()), more.size()); },
                           257);
  const std::vector<int32_t> ids(1000, 65);
  const int64_t end = 1000;
  writer.add(ids, std::span(&end, 1), {});
  writer.finish({.tokenizer = 7, .text_bytes = 1000});
  return bytes;
}

// A pool of 20 documents, target examples of which one is among them, a subset, one without documents, and scores from -5 on.
void write_selection(const std::filesystem::path& folder) {
  const auto line = [](int i) {
    return fmt::format("{{\"text\": \"Document {} says {}\"}}\n", i, std::string(static_cast<size_t>(5 + i), 'a'));
  };
  std::string pool, queries = line(3) + line(99);
  data::ScoreColumn column{.source = 0, .name = "s", .scores = {}};
  for (int i = 0; i < 20; ++i) {
    pool += line(i);
    column.scores.push_back(static_cast<float>(i - 5));
  }
  base::make_folder(folder);
  base::write_atomically(folder / "p.jsonl", pool);
  base::write_atomically(folder / "q.jsonl", queries);
  data::DataOptions data;
  data.path = (folder / "p.jsonl").string();
  data.tokenizer = data::TokenizerKind::bytes;
  base::Log log({.level = base::Level::error, .terminal = nullptr, .file = {}});
  column.source = data::open_pool(data, {}, log).digest();
  data::write_column((folder / "scores").string(), column);
  data::DocumentSubset subset{.source = column.source, .documents = 20, .method = "random"};
  data::write_subset((folder / "none").string(), subset);
  subset.ids = {1, 4, 7, 12, 19};
  data::write_subset((folder / "kept").string(), subset);
}

void train_shortly(const std::filesystem::path& out) {
  const base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    layers = 1
    embed = 16
    heads = 2
    kv_heads = 1
    mlp = 16
    [data]
    tokenizer = "bytes"
    length = 16
    stories_bytes = 20000
    [train]
    steps = 4
    global_batch = 2
    [snapshot]
    every = 2
    keep = 2
    [log]
    tensorboard = false
    trace = false
    samples = 0
  )",
                                                  "hostile");
  const base::Stop never;
  const auto ended = comm::LocalNetwork(1).run([&](comm::World& world) {
    train::Start start;
    start.out = out;
    train::run(world, recipe, start, {}, never);
  });
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
}

}  // namespace

std::string floats(int64_t count, float value) {
  std::array<char, sizeof value> bytes{};
  std::memcpy(bytes.data(), &value, sizeof value);
  return copies(std::string(bytes.data(), bytes.size()), count);
}

Bytes safetensors_raw(const Bytes& header, const std::string& data) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return file + header + data;
}

Bytes safetensors_of(const std::vector<RawTensor>& tensors) {
  std::string header = "{", data;
  for (const RawTensor& one : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + one.name + "\":{\"dtype\":\"" + one.dtype + "\",\"shape\":" + one.shape + ",\"data_offsets\":[" +
              std::to_string(data.size()) + "," + std::to_string(data.size() + one.bytes.size()) + "]}";
    data += one.bytes;
  }
  return safetensors_raw(header + "}", data);
}

std::vector<RawTensor> good_tensors() {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", "F32", "[257,8]", floats(257 * 8)},
          {layer + "input_layernorm.weight", "F32", "[8]", floats(8, 1)},
          {layer + "self_attn.q_proj.weight", "F32", "[8,8]", floats(64)},
          {layer + "self_attn.k_proj.weight", "F32", "[4,8]", floats(32)},
          {layer + "self_attn.v_proj.weight", "F32", "[4,8]", floats(32)},
          {layer + "self_attn.o_proj.weight", "F32", "[8,8]", floats(64)},
          {layer + "post_attention_layernorm.weight", "F32", "[8]", floats(8, 1)},
          {layer + "mlp.gate_proj.weight", "F32", "[16,8]", floats(128)},
          {layer + "mlp.up_proj.weight", "F32", "[16,8]", floats(128)},
          {layer + "mlp.down_proj.weight", "F32", "[8,16]", floats(128)},
          {"model.norm.weight", "F32", "[8]", floats(8, 1)},
          {"lm_head.weight", "F32", "[257,8]", floats(257 * 8)}};
}

void make_hostile_fixtures(const std::filesystem::path& fixtures) {
  const HostileFolder folder(fixtures, fixtures);
  folder.file("model/config.json", kConfig);
  folder.file("model/model.safetensors", safetensors_of(good_tensors()));
  folder.file("model/tokenizer.json", byte_tokenizer());
  folder.file("model/tokenizer_config.json", fmt::format(R"({{"eos_token": "<|endoftext|>", "chat_template": "{}"}})", kTemplate));
  folder.file("model/generation_config.json", R"({"eos_token_id": 256})");
  const std::string layer = "base_model.model.model.layers.0.self_attn.q_proj.";
  folder.file("adapter/adapter_config.json", kAdapterConfig);
  folder.file("adapter/adapter_model.safetensors", safetensors_of({{layer + "lora_A.weight", "F32", "[2,8]", floats(16)},
                                                                   {layer + "lora_B.weight", "F32", "[8,2]", floats(16)}}));
  folder.file("shard.tokens", byte_shard());
  write_selection(fixtures / "selection");
  train_shortly(fixtures / "run");
}

}  // namespace cairn::study
