#include "model/decoder/attention_pattern.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "kernels/block_pattern.h"
#include "model/decoder/attention_pattern_json.h"
#include "model/decoder/shape.h"
#include "model/decoder/wiring.h"

namespace cairn::model {
namespace {

constexpr int64_t kBlockMax = 4096, kBlocksMax = 1 << 24, kTableBlocksMax = 4096, kTableBytesMax = 1 << 30;

// "none", "every 2" (layers 1, 3, 5, ...), or as parse_layers has it.
std::vector<int64_t> parse_dense_layers(const std::string& text, int64_t layers) {
  if (text == "none") return {};
  if (text.starts_with("every ") && text.size() > 6 &&
      std::all_of(text.begin() + 6, text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    const int64_t n = std::stoll(text.substr(6, 9));
    std::vector<int64_t> all;
    for (int64_t layer = n - 1; n > 0 && layer < layers; layer += n) all.push_back(layer);
    if (!all.empty()) return all;
  }
  return parse_layers(text, layers, "model.attention.dense_layers");
}

// Rows of a table as text: row i has i + 1 characters, 0 or 1, the last of which is 1.
std::shared_ptr<const kernels::BlockTable> parse_table(const base::Json& json, const std::string& file) {
  const auto fail = [&](const std::string& what) { base::fail_corrupt(file, "the pattern " + what); };
  if (!json.is_array() || json.empty() || !json[0].is_array()) fail("must be a list of heads, each a list of rows");
  auto table = std::make_shared<kernels::BlockTable>();
  table->heads = static_cast<int64_t>(json.size());
  table->blocks = static_cast<int64_t>(json[0].size());
  if (table->blocks == 0 || table->blocks > kTableBlocksMax || table->heads > kTableBlocksMax)
    fail(fmt::format("has {} rows and {} heads: at most {} of each", table->blocks, table->heads, kTableBlocksMax));
  for (size_t h = 0; h < json.size(); ++h) {
    if (!json[h].is_array() || static_cast<int64_t>(json[h].size()) != table->blocks) fail(fmt::format("has heads of unequal length"));
    for (size_t i = 0; i < json[h].size(); ++i) {
      const std::string row = json[h][i].is_string() ? json[h][i].get<std::string>() : "";
      if (row.size() != i + 1 || row.find_first_not_of("01") != std::string::npos)
        fail(fmt::format("has {} as row {} of head {}: must be {} characters 0 or 1", base::shown(json[h][i]), i, h, i + 1));
      if (row.back() != '1') fail(fmt::format("hides block {} of head {} from itself: a row must end in 1", i, h));
      for (const char c : row) table->seen.push_back(c == '1' ? 1 : 0);
      table->seen.resize(table->seen.size() + static_cast<size_t>(table->blocks) - row.size(), 0);
    }
  }
  return table;
}

base::OrderedJson format_table(const kernels::BlockTable& table) {
  base::OrderedJson heads = base::OrderedJson::array();
  for (int64_t h = 0; h < table.heads; ++h) {
    base::OrderedJson rows = base::OrderedJson::array();
    for (int64_t i = 0; i < table.blocks; ++i) {
      std::string row;
      for (int64_t j = 0; j <= i; ++j) row += table.seen[static_cast<size_t>((h * table.blocks + i) * table.blocks + j)] != 0 ? '1' : '0';
      rows.push_back(row);
    }
    heads.push_back(rows);
  }
  return heads;
}

// What the kernels and the cache need of any pattern, from a recipe or a file. Returns what is wrong, or nothing.
std::string trouble(const kernels::BlockPattern& p, int64_t length) {
  if (p.block < 16 || p.block > kBlockMax || !std::has_single_bit(static_cast<uint64_t>(p.block)))
    return fmt::format("block = {}: must be a power of two from 16 to {}. Use 64.", p.block, kBlockMax);
  if (p.local_blocks < 1) return fmt::format("local_blocks = {}: a query must see its own block. Use at least 1.", p.local_blocks);
  if (p.stride < 1 || p.near_stride < 1 || p.local_blocks > kBlocksMax || p.stride > kBlocksMax || p.near_stride > kBlocksMax)
    return fmt::format("stride = {}, near_stride = {}: must be at least 1. Use 8 and 1.", p.stride, p.near_stride);
  if (p.dense_heads < 0 || p.dense_heads > p.kv_heads)
    return fmt::format("dense_heads = {}: the model has {} key heads. Use at most that many.", p.dense_heads, p.kv_heads);
  if (p.table && p.table->heads != 1 && p.table->heads != p.kv_heads)
    return fmt::format("pattern_file: has {} heads, the model has {} key heads. Give one head for all, or one for each.", p.table->heads,
                       p.kv_heads);
  if (p.table && p.table->blocks * p.block < length)
    return fmt::format("pattern_file: covers {} blocks of {} positions, sequences have {}. Give rows for {} blocks.", p.table->blocks,
                       p.block, length, (length + p.block - 1) / p.block);
  return {};
}

}  // namespace

base::Schema<PatternOptions> pattern_schema() {
  using O = PatternOptions;
  return {
      "model.attention",
      "S2-Attention: each key head sees a window and its own strided blocks of the past.",
      {{"type", &O::type, "dense: every query sees everything before it. s2: the pattern below.", base::one_of({"dense", "s2"})},
       {"block", &O::block, "Positions in a block; a power of two.", base::between(16, kBlockMax)},
       {"local_blocks", &O::local_blocks, "The window: so many blocks, a query's own included.", base::between(1, kBlocksMax)},
       {"stride",
        &O::stride,
        "Beyond the window a head sees every stride-th block; heads differ in which.",
        base::between(1, kBlocksMax),
        {"vertical_stride"}},
       {"near_stride", &O::near_stride, "The same within the window. Above 1 the KV cache keeps every block.",
        base::between(1, kBlocksMax)},
       {"offset", &O::offset, "Key head a sees blocks j with (j + a + offset) mod stride = 0.", base::between(0, kBlocksMax)},
       {"dense_heads", &O::dense_heads, "The last so many key heads see everything before them.", base::between(0, 65536)},
       {"dense_layers", &O::dense_layers,
        "Layers without the pattern: \"none\", \"every 2\" (layers 1, 3, 5, ...), \"last 4\", or numbers from 0 on: \"0,2,5\"."},
       {"homogeneous", &O::homogeneous, "All heads see the same blocks. A part of the context is then seen by none."},
       {"allow_partial_cover", &O::allow_partial_cover, "Allows patterns in which no head of a layer sees a part of the context."},
       {"pattern_file", &O::pattern_file,
        "A JSON file with a pattern of your own: a list with one head for all or one for each key head; a head is a list of rows; row i "
        "is a string of i + 1 characters, 1 for each block that block i sees. Empty: the pattern above.",
        base::path()}}};
}

void set_pattern(DecoderShape& shape, const PatternOptions& o) {
  if (o.type == "dense") {
    if (o != PatternOptions{})
      base::fail_input(
          "model.attention.type = \"dense\": the other keys of model.attention have no effect. Set it to \"s2\", or leave them out.");
    return;
  }
  if (shape.window > 0)
    base::fail_input("model.attention.type = \"s2\": {} has a sliding window of its own. Use model.kind = \"llama\", or leave it out.",
                     shape.family);
  kernels::BlockPattern p{.block = o.block,
                          .local_blocks = o.local_blocks,
                          .stride = o.stride,
                          .near_stride = o.near_stride,
                          .phase_offset = o.offset,
                          .kv_heads = shape.kv_heads,
                          .dense_heads = o.dense_heads,
                          .homogeneous = o.homogeneous};
  if (!o.pattern_file.empty()) {
    const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(o.pattern_file, kTableBytesMax), 4);
    if (!parsed.trouble.empty()) base::fail_corrupt(o.pattern_file, parsed.trouble);
    p.table = parse_table(parsed.value, o.pattern_file);
  }
  if (const std::string what = trouble(p, shape.length); !what.empty()) base::fail_input("model.attention.{}", what);
  const std::vector<int64_t> missing = uncovered_remainders(p);
  if (!missing.empty() && !o.allow_partial_cover)
    base::fail_input(
        "model.attention.stride = {}: no head sees blocks beyond the window whose number mod {} is {}. Set stride to at most the {} phases "
        "of "
        "the key heads, or model.attention.allow_partial_cover = true.",
        o.stride, o.stride, fmt::join(missing, ", "), o.stride - static_cast<int64_t>(missing.size()));
  shape.pattern = p;
  shape.dense_layers = parse_dense_layers(o.dense_layers, shape.layers);
}

PatternOptions pattern_options_of(const DecoderShape& shape) {
  PatternOptions o;
  if (!shape.pattern) return o;
  const kernels::BlockPattern& p = *shape.pattern;
  o = {.type = "s2",
       .block = p.block,
       .local_blocks = p.local_blocks,
       .stride = p.stride,
       .near_stride = p.near_stride,
       .offset = p.phase_offset,
       .dense_heads = p.dense_heads,
       .dense_layers = shape.dense_layers.empty() ? "none" : format_layers(shape.dense_layers, shape.layers),
       .homogeneous = p.homogeneous,
       .allow_partial_cover = !uncovered_remainders(p).empty()};
  return o;
}

bool has_pattern(const DecoderShape& shape, int64_t layer) {
  return shape.pattern && !std::binary_search(shape.dense_layers.begin(), shape.dense_layers.end(), layer);
}

base::OrderedJson format_pattern(const DecoderShape& shape) {
  const kernels::BlockPattern& p = *shape.pattern;
  base::OrderedJson json;
  json["block_size"] = p.block;
  json["local_blocks"] = p.local_blocks;
  json["stride"] = p.stride;
  json["near_stride"] = p.near_stride;
  json["visible"] = "(key_block + kv_head * phase_step + phase_offset) % stride == 0";  // other code bases number phases differently
  json["phase_step"] = p.phase_step;
  json["phase_offset"] = p.phase_offset;
  json["homogeneous"] = p.homogeneous;
  json["num_dense_heads"] = p.dense_heads;
  json["dense_layers"] = shape.dense_layers;
  if (p.table) json["pattern"] = format_table(*p.table);
  return json;
}

void parse_pattern(DecoderShape& shape, const base::Json& json, const std::string& file) {
  if (!json.is_object()) base::fail_corrupt(file, "sparse_attention must be an object");
  const auto number = [&](const char* key, int64_t otherwise) {
    const auto found = json.find(key);
    if (found == json.end()) return otherwise;
    if (!found->is_number_integer() || found->get<int64_t>() < 0 || found->get<int64_t>() > kBlocksMax)
      base::fail_corrupt(
          file, fmt::format("sparse_attention: {} = {}: must be a whole number from 0 to {}", key, base::shown(*found), kBlocksMax));
    return found->get<int64_t>();
  };
  const auto homogeneous = json.find("homogeneous");
  kernels::BlockPattern p{.block = number("block_size", 64),
                          .local_blocks = number("local_blocks", 16),
                          .stride = number("stride", 8),
                          .near_stride = number("near_stride", 1),
                          .phase_step = number("phase_step", 1),
                          .phase_offset = number("phase_offset", 0),
                          .kv_heads = shape.kv_heads,
                          .dense_heads = number("num_dense_heads", 0),
                          .homogeneous = homogeneous != json.end() && *homogeneous == true};
  if (const auto table = json.find("pattern"); table != json.end()) p.table = parse_table(*table, file);
  if (const std::string what = trouble(p, p.table ? std::min(shape.length, p.table->blocks * p.block) : shape.length); !what.empty())
    base::fail_corrupt(file, "sparse_attention: " + what);
  shape.pattern = p;
  const auto layers = json.find("dense_layers");
  if (layers == json.end()) return;
  if (!layers->is_array()) base::fail_corrupt(file, "sparse_attention: dense_layers must be a list of layers");
  for (const base::Json& one : *layers) {
    if (!one.is_number_integer() || one.get<int64_t>() < 0 || one.get<int64_t>() >= shape.layers ||
        (!shape.dense_layers.empty() && one.get<int64_t>() <= shape.dense_layers.back()))
      base::fail_corrupt(
          file, fmt::format("sparse_attention: dense_layers has {}: layers from 0 to {}, in order", base::shown(one), shape.layers - 1));
    shape.dense_layers.push_back(one.get<int64_t>());
  }
}

}  // namespace cairn::model
