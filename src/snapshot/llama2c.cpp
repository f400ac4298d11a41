#include "snapshot/llama2c.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "base/files/mapped_file.h"
#include "kernels/aten.h"

namespace cairn::snapshot {
namespace {

constexpr int64_t kHeaderBytes = 7 * 4;

model::DecoderShape read_header(const base::MappedFile& file) {
  std::array<int32_t, 7> header{};
  if (file.bytes().size() < kHeaderBytes)
    base::fail_corrupt(file.path(), fmt::format("{} bytes is too short for a model of llama2.c", file.bytes().size()));
  std::memcpy(header.data(), file.bytes().data(), kHeaderBytes);
  constexpr std::array<const char*, 7> names{"dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"};
  constexpr std::array<int32_t, 7> most{1 << 16, 1 << 20, 1 << 12, 1 << 12, 1 << 12, 1 << 24, 1 << 24};
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t value = i == 5 ? std::abs(static_cast<int64_t>(header[i])) : header[i];
    if (value < 1 || value > most[i])
      base::fail_corrupt(file.path(),
                         fmt::format("{} = {} in its header, expected 1 to {}: not a model of llama2.c?", names[i], header[i], most[i]));
  }
  const auto [dim, hidden, layers, heads, kv_heads, vocab, length] = header;
  if (dim % heads != 0 || heads % kv_heads != 0 || dim / heads % 2 != 0)
    base::fail_corrupt(file.path(), fmt::format("width {} with {} heads and {} kv heads cannot work", dim, heads, kv_heads));
  model::DecoderShape shape{.vocab = std::abs(static_cast<int64_t>(vocab)),
                            .embed = dim,
                            .layers = layers,
                            .heads = heads,
                            .kv_heads = kv_heads,
                            .head_dim = dim / heads,
                            .mlp = hidden,
                            .length = length,
                            .tied = vocab > 0};
  shape.tokens = {.bos = 1, .eos = {2}};
  return shape;
}

// llama2.c rotates pairs (2i, 2i + 1), Hugging Face pairs (i, i + half): permutes the rows of each head.
at::Tensor halves(const at::Tensor& rows, int64_t head_dim) {
  return rows.view({-1, head_dim / 2, 2, rows.size(1)}).transpose(1, 2).reshape(rows.sizes()).contiguous();
}

}  // namespace

Llama2c read_llama2c(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  Llama2c model{.shape = read_header(*file), .parameters = {}};
  const model::DecoderShape& s = model.shape;
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  // Each group holds one tensor of every layer, in the order of the file.
  struct Group {
    const char* name;
    std::vector<int64_t> shape;
    bool turns = false;
  };
  const std::vector<Group> groups{
      {"input_layernorm", {s.embed}},      {"self_attn.q_proj", {q, s.embed}, true}, {"self_attn.k_proj", {kv, s.embed}, true},
      {"self_attn.v_proj", {kv, s.embed}}, {"self_attn.o_proj", {s.embed, q}},       {"post_attention_layernorm", {s.embed}},
      {"mlp.gate_proj", {s.mlp, s.embed}}, {"mlp.down_proj", {s.embed, s.mlp}},      {"mlp.up_proj", {s.mlp, s.embed}}};
  const int64_t angles = s.length * s.head_dim;  // cosines and sines, which are recomputed
  const int64_t of_layer = 2 * s.embed + 2 * (q + kv) * s.embed + 3 * s.mlp * s.embed;
  const int64_t floats = (s.tied ? 1 : 2) * s.vocab * s.embed + s.layers * of_layer + s.embed + angles, bytes = kHeaderBytes + 4 * floats;
  if (static_cast<int64_t>(file->bytes().size()) != bytes)
    base::fail_corrupt(path, fmt::format("{} bytes long, its header speaks of {}", file->bytes().size(), bytes));
  const auto* at = reinterpret_cast<const float*>(file->bytes().data() + kHeaderBytes);
  const auto take = [&](std::string name, const std::vector<int64_t>& shape, bool turns = false) {
    const at::Tensor tensor = at::from_blob(const_cast<float*>(at), shape, at::kFloat).clone();
    at += tensor.numel();
    model.parameters.push_back({std::move(name), turns ? halves(tensor, s.head_dim) : tensor});
  };
  take("model.embed_tokens.weight", {s.vocab, s.embed});
  for (const Group& group : groups)
    for (int64_t layer = 0; layer < s.layers; ++layer)
      take(fmt::format("model.layers.{}.{}.weight", layer, group.name), group.shape, group.turns);
  take("model.norm.weight", {s.embed});
  at += angles;
  if (!s.tied) take("lm_head.weight", {s.vocab, s.embed});
  return model;
}

}  // namespace cairn::snapshot
