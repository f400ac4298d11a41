#include "planner/tensor_parallel/auto_tp.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "mesh/mesh.h"
#include "model/decoder/adapter_shape.h"
#include "model/decoder/decoder.h"
#include "model/decoder/wiring.h"
#include "model/families/families.h"
#include "model/model.h"
#include "model/name_pattern.h"
#include "parallel/layout/tensor_split.h"
#include "planner/graph/described_models.h"
#include "planner/graph/describer.h"

namespace cairn::planner {
namespace {

using testing::HasSubstr;

constexpr PassShape kPass{.batch = 4, .length = 32};

std::string how_text(const mesh::Placement::How& how) {
  if (std::holds_alternative<mesh::Replicate>(how)) return "replicated";
  return mesh::to_string(mesh::Placement{{{"tp", how}}});
}

std::map<std::string, RuledPlacement> by_name(const std::vector<RuledPlacement>& all) {
  std::map<std::string, RuledPlacement> found;
  for (const RuledPlacement& one : all) found.emplace(one.parameter, one);
  EXPECT_EQ(found.size(), all.size());
  return found;
}

Description decoder_of(const model::DecoderShape& shape) { return describe(*model::make_decoder(shape)); }

Description golden_gpt2() {
  return decoder_of({.vocab = 96,
                     .embed = 32,
                     .layers = 2,
                     .heads = 4,
                     .kv_heads = 4,
                     .head_dim = 8,
                     .mlp = 128,
                     .length = 16,
                     .tied = true,
                     .family = "gpt2",
                     .qkv_bias = true,
                     .out_bias = true,
                     .mlp_bias = true});
}

Description golden_llama() {
  return decoder_of(
      {.vocab = 96, .embed = 32, .layers = 2, .heads = 6, .kv_heads = 3, .head_dim = 8, .mlp = 48, .length = 16, .tied = false});
}

struct Golden {
  std::string file;
  Description description;
};

std::vector<Golden> goldens() {
  return {{"gpt2", golden_gpt2()}, {"llama", golden_llama()}, {"t5", t5({})},          {"t5_plain", t5({.gated = false, .tied = true})},
          {"opt", opt({})},        {"vit", vit({})},          {"unet", unet_block({})}};
}

struct GoldenLine {
  std::string pattern, shape, placement;
  bool used = false;
};

std::vector<GoldenLine> golden_lines(const std::string& file) {
  std::ifstream in(std::string(CAIRN_SOURCE_DIR) + "/tests/planner/golden/" + file + ".txt");
  EXPECT_TRUE(in) << file;
  std::vector<GoldenLine> lines;
  const auto trimmed = [](const std::string& text) {
    const size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
    return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
  };
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t first = line.find(" | "), second = line.find(" | ", first + 3);
    EXPECT_NE(second, std::string::npos) << line;
    lines.push_back(
        {trimmed(line.substr(0, first)), trimmed(line.substr(first + 3, second - first - 3)), trimmed(line.substr(second + 3))});
  }
  return lines;
}

TEST(AutoTp, GivesThePlacementsOfTheTables) {
  for (const Golden& golden : goldens()) {
    std::vector<GoldenLine> lines = golden_lines(golden.file);
    const auto ruled = by_name(auto_tp(graph_of(golden.description, kPass), 2));
    for (const model::Parameter& p : golden.description.parameters) {
      const auto line = std::find_if(lines.begin(), lines.end(), [&](const GoldenLine& l) { return model::matches(l.pattern, p.name); });
      ASSERT_NE(line, lines.end()) << golden.file << ": no line for " << p.name;
      line->used = true;
      EXPECT_TRUE(line->shape == "any" || line->shape == fmt::format("{}", fmt::join(p.shape, ", "))) << p.name;
      EXPECT_EQ(how_text(ruled.at(p.name).how), line->placement) << golden.file << ": " << p.name << ", " << ruled.at(p.name).rule;
    }
    for (const GoldenLine& line : lines) EXPECT_TRUE(line.used) << golden.file << ": " << line.pattern;
  }
}

TEST(AutoTp, GivesTheSamePlacementsWithAllNamesScrambled) {
  for (const Golden& golden : goldens()) {
    const auto expected = by_name(auto_tp(graph_of(golden.description, kPass), 2));
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const Description other = scrambled(golden.description, seed);
      const auto found = by_name(auto_tp(graph_of(other, kPass), 2));
      for (size_t i = 0; i < other.parameters.size(); ++i) {
        const RuledPlacement &wanted = expected.at(golden.description.parameters[i].name), &got = found.at(other.parameters[i].name);
        ASSERT_NE(wanted.parameter, got.parameter);
        EXPECT_EQ(got.how, wanted.how) << golden.file << ", seed " << seed << ": " << wanted.parameter << ", " << got.rule;
        EXPECT_EQ(got.rule, wanted.rule);
      }
    }
  }
}

// What each rank holds of a parameter, as boxes.
std::vector<std::vector<mesh::Box>> boxes_of(const mesh::Placement::How& how, int ranks, const std::vector<int64_t>& shape) {
  const mesh::Mesh mesh = mesh::parse_mesh(fmt::format("tp={}", ranks));
  std::vector<std::vector<mesh::Box>> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(mesh::boxes({{{"tp", how}}}, mesh, rank, shape));
  return all;
}

struct OwnCase {
  model::DecoderShape shape;
  model::AdapterShape lora = {};
};

std::vector<OwnCase> own_cases() {
  std::vector<OwnCase> all;
  for (const std::string& name : model::family_names())
    for (const auto& [heads, keys] : {std::pair<int64_t, int64_t>{8, 8}, {8, 2}, {6, 3}, {12, 4}}) {
      const model::Family& f = model::family(name);
      if (f.has_experts()) continue;  // the rules know no experts
      if (f.names.qkv.size() == 1 && heads != keys) continue;
      for (const std::string& residual : model::kWirings) {
        model::DecoderShape shape{.vocab = 101,
                                  .embed = 24,
                                  .layers = 2,
                                  .heads = heads,
                                  .kv_heads = keys,
                                  .head_dim = 4,
                                  .mlp = 45,
                                  .length = 16,
                                  .tied = heads != 6,
                                  .family = name,
                                  .qkv_bias = f.qkv_bias,
                                  .out_bias = f.out_bias,
                                  .mlp_bias = f.mlp_bias,
                                  .residual = residual};
        if (residual == "ladder") shape.ladder_layers = {0, 1};
        all.push_back({shape});
        if (f.names.qkv.size() == 3)
          all.push_back({shape, {.rank = 4, .targets = {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}}});
      }
    }
  return all;
}

TEST(AutoTp, AgreesWithTheSplitByLogicalAxesOfEveryFamily) {
  int64_t compared = 0, refused = 0;
  for (const OwnCase& one : own_cases()) {
    const auto model = model::make_decoder(one.shape, one.lora);
    const OpGraph graph = graph_of(describe(*model), kPass);
    for (const int ranks : {1, 2, 3, 4, 8}) {
      bool allowed = true;
      try {
        parallel::check_tensor_split(*model, ranks);
      } catch (const Error&) {
        allowed = false;
      }
      if (!allowed) {
        EXPECT_THROW(auto_tp(graph, ranks), Error) << one.shape.family << " " << one.shape.heads << " over " << ranks;
        ++refused;
        continue;
      }
      const auto ruled = by_name(auto_tp(graph, ranks));
      for (const model::Parameter& p : model->parameters()) {
        EXPECT_EQ(boxes_of(ruled.at(p.name).how, ranks, p.shape), boxes_of(parallel::tensor_split(p, ranks), ranks, p.shape))
            << p.name << " over " << ranks << ": " << ruled.at(p.name).rule;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 5000);
  EXPECT_GT(refused, 10);
}

// A branch of so many products with activations between them: x + w_n(... relu(w_0(norm(x)))).
Description chain_of(int64_t products, int64_t width) {
  Describer all;
  all.card("begin", {"tokens"}, "stream.0");
  all.operation({.name = "lookup", .kind = model::BlockOp::Kind::lookup, .parameters = {all.parameter("table", {64, width})}});
  all.card("chain", {"stream.0"}, "stream.1");
  all.norm("gain", width, Describer::Bias::none);
  for (int64_t i = 0; i < products; ++i) {
    if (i > 0) all.elementwise(fmt::format("relu{}", i));
    all.product(fmt::format("w{}", i), width, width, Describer::Bias::one);
  }
  all.add({fmt::format("w{}", products - 1), "stream.0"});
  all.card("end", {"stream.1"}, "out");
  all.norm("last", width, Describer::Bias::none);
  return all.done();
}

std::string forms_of_chain(int64_t products, int64_t width, const PassShape& shape) {
  const auto ruled = by_name(auto_tp(graph_of(chain_of(products, width), shape), 2));
  std::string text;
  for (int64_t i = 0; i < products; ++i)
    for (const char* kind : {"weight", "bias"}) {
      const auto* split = std::get_if<mesh::Split>(&ruled.at(fmt::format("w{}.{}", i, kind)).how);
      text += split ? fmt::format("S{}", split->dim) : "B";
      text += std::string(kind) == "bias" ? " " : "/";
    }
  return text;
}

TEST(AutoTp, AlternatesAlongAChain) {
  EXPECT_EQ(forms_of_chain(2, 8, kPass), "S0/S0 S1/B ");
  EXPECT_EQ(forms_of_chain(4, 8, kPass), "S0/S0 S1/B S0/S0 S1/B ");
}

TEST(AutoTp, SplitsTheLastOfAnOddChainWhereItsWeightIsMoreThanWhatMoves) {
  EXPECT_EQ(forms_of_chain(3, 32, {.batch = 1, .length = 16}), "S0/S0 S1/B B/B ");  // 16 (32 + 64) to move, 32 32 to keep
  EXPECT_EQ(forms_of_chain(3, 64, {.batch = 1, .length = 16}), "S0/S0 S1/B S0/S0 ");
  EXPECT_EQ(forms_of_chain(1, 32, {.batch = 1, .length = 16}), "B/B ");
}

// The chosen dims of some weights: "S0 S1 B".
std::string dims_of(const Description& description, const std::vector<std::string>& layers) {
  const auto ruled = by_name(auto_tp(graph_of(description, kPass), 2));
  std::string text;
  for (const std::string& layer : layers) {
    const auto* split = std::get_if<mesh::Split>(&ruled.at(layer + ".weight").how);
    text += (text.empty() ? "" : " ") + (split ? fmt::format("S{}", split->dim) : std::string("B"));
  }
  return text;
}

TEST(AutoTp, CountsFromTheStreamWhateverIsWidest) {
  Describer all;
  all.card("chain", {"x"}, "y");
  all.norm("gain", 8, Describer::Bias::none);
  all.product("a", 8, 16, Describer::Bias::none);
  all.product("b", 16, 64, Describer::Bias::none);
  all.product("c", 64, 16, Describer::Bias::none);
  all.product("d", 16, 8, Describer::Bias::none);
  all.add({"d", "x"});
  EXPECT_EQ(dims_of(all.done(), {"a", "b", "c", "d"}), "S0 S1 S0 S1");
}

TEST(AutoTp, PairsProductsNotTheirAdapters) {
  const auto described = [](bool adapter_first) {
    Describer all;
    all.card("mlp", {"x"}, "y");
    all.norm("gain", 16, Describer::Bias::none);
    if (!adapter_first) all.product("up", 16, 64, Describer::Bias::none, {"norm"});
    all.product("lora_a", 16, 4, Describer::Bias::none, {"norm"});
    all.product("lora_b", 4, 64, Describer::Bias::none);
    if (adapter_first) all.product("up", 16, 64, Describer::Bias::none, {"norm"});
    all.operation({.name = "sum", .kind = model::BlockOp::Kind::add, .reads = {"up", "lora_b"}});
    all.elementwise("relu");
    all.product("down", 64, 16, Describer::Bias::none);
    all.add({"down", "x"});
    return all.done();
  };
  for (const bool adapter_first : {false, true})
    EXPECT_EQ(dims_of(described(adapter_first), {"up", "lora_a", "lora_b", "down"}), "S0 B S0 S1") << adapter_first;
}

TEST(AutoTp, DoesNotSplitWhatSomethingNeedsWhole) {
  for (const auto kind : {model::BlockOp::Kind::norm, model::BlockOp::Kind::other, model::BlockOp::Kind::elementwise}) {
    Describer all;
    all.card("branch", {"x"}, "y");
    all.norm("gain", 16, Describer::Bias::none);
    all.product("a", 16, 64, Describer::Bias::none);
    const bool norm = kind == model::BlockOp::Kind::norm;
    model::BlockOp between{.name = "between", .kind = kind};
    if (norm) between.parameters = {all.parameter("inside", {64})};
    all.operation(between);
    all.product("b", 64, 16, Describer::Bias::none);
    all.add({"b", "x"});
    EXPECT_EQ(dims_of(all.done(), {"a", "b"}), kind == model::BlockOp::Kind::elementwise ? "S0 S1" : "B B");
  }
}

TEST(AutoTp, DoesNotSplitWhatAProductReadsAndAddsTo) {
  Describer all;
  all.card("branch", {"x"}, "y");
  all.norm("gain", 16, Describer::Bias::none);
  all.product("a", 16, 64, Describer::Bias::none);
  all.product("again", 64, 64, Describer::Bias::none);
  all.operation({.name = "sum", .kind = model::BlockOp::Kind::add, .reads = {"a", "again"}});
  all.product("b", 64, 16, Describer::Bias::none);
  all.add({"b", "x"});
  EXPECT_EQ(dims_of(all.done(), {"a", "again", "b"}), "B B B");
}

TEST(AutoTp, SaysWhichRuleItWas) {
  const auto ruled = by_name(auto_tp(graph_of(opt({}), kPass), 2));
  const std::string at = "model.decoder.layers.0.";
  EXPECT_EQ(ruled.at(at + "self_attn.q_proj.weight").rule, "R2: feeds an attention, whole heads");
  EXPECT_EQ(ruled.at(at + "self_attn.q_proj.bias").rule, "R2: with what it is added to");
  EXPECT_EQ(ruled.at(at + "self_attn.out_proj.weight").rule, "R2: follows an attention");
  EXPECT_EQ(ruled.at(at + "fc1.weight").rule, "R1: first of a pair");
  EXPECT_EQ(ruled.at(at + "fc2.weight").rule, "R1: second of a pair");
  EXPECT_EQ(ruled.at(at + "fc2.bias").rule, "replicated: one dim, added once after the sum");
  EXPECT_EQ(ruled.at(at + "final_layer_norm.weight").rule, "replicated: one dim");
  EXPECT_EQ(ruled.at("model.decoder.embed_tokens.weight").rule, "embedding");
  EXPECT_EQ(ruled.at("model.decoder.embed_positions.weight").rule, "replicated: a table of positions");
  EXPECT_EQ(by_name(auto_tp(graph_of(t5({}), kPass), 2)).at("lm_head.weight").rule, "head");
}

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(AutoTp, RefusesHeadsThatCannotBeSplitAndSaysWhatWould) {
  const OpGraph graph = graph_of(golden_llama(), kPass);
  EXPECT_THAT(message_of([&] { auto_tp(graph, 4); }), HasSubstr("tp = 4: 6 query and 3 key heads cannot be split over so many ranks "
                                                                "(model.layers.0.self_attn.q_proj.weight): 1, 2, 3, 6 would work"));
  const auto ruled = by_name(auto_tp(graph, 4, {}, OddHeads::replicate));
  const RuledPlacement& q = ruled.at("model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(how_text(q.how), "replicated");
  EXPECT_EQ(q.rule, "replicated: 6 query and 3 key heads cannot be split over 4 ranks");
  EXPECT_EQ(how_text(ruled.at("model.layers.1.self_attn.o_proj.weight").how), "replicated");
  EXPECT_EQ(how_text(ruled.at("model.layers.1.mlp.up_proj.weight").how), "tp: split(0)");
}

TEST(AutoTp, KeepsWhatIsTooSmallEverywhere) {
  Description tiny = vit({.classes = 3});
  const auto ruled = by_name(auto_tp(graph_of(tiny, kPass), 4));
  EXPECT_EQ(how_text(ruled.at("classifier.weight").how), "replicated");
  EXPECT_EQ(ruled.at("classifier.weight").rule, "replicated: 3 cannot be split over 4 ranks");
  EXPECT_EQ(how_text(ruled.at("classifier.bias").how), "replicated");
}

TEST(AutoTp, LetsPatternsOverride) {
  const OpGraph graph = graph_of(golden_llama(), kPass);
  const auto ruled = by_name(auto_tp(graph, 2, {{"lm_head.weight", kReplicate}, {"*.0.mlp.*_proj.weight", split_of(1)}}));
  EXPECT_EQ(how_text(ruled.at("lm_head.weight").how), "replicated");
  EXPECT_EQ(ruled.at("lm_head.weight").rule, "override: lm_head.weight");
  EXPECT_EQ(how_text(ruled.at("model.layers.0.mlp.up_proj.weight").how), "tp: split(1)");
  EXPECT_EQ(how_text(ruled.at("model.layers.1.mlp.up_proj.weight").how), "tp: split(0)");
  EXPECT_THAT(message_of([&] {
                auto_tp(graph, 2, {{"lm_haed.weight", kReplicate}});
              }),
              HasSubstr("override lm_haed.weight: there is no such parameter: did you mean \"lm_head.weight\"?"));
  EXPECT_THAT(message_of([&] { auto_tp(graph, 2, {{"lm_head.weight", kPartial}}); }), HasSubstr("a parameter cannot be partial"));
  EXPECT_THAT(message_of([&] {
                auto_tp(graph, 2, {{"lm_head.weight", split_of(2)}});
              }),
              HasSubstr("override lm_head.weight = S2: lm_head.weight [96, 32] cannot be split so over 2 ranks"));
}

}  // namespace
}  // namespace cairn::planner
