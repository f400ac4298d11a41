#include "model/families/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "model/families/families.h"
#include "model/families/rope_angles.h"
#include "model/some_experts.h"

namespace cairn::model {
namespace {

DecoderShape some(const std::string& kind) {
  const Family& of = family(kind);
  DecoderShape shape{.vocab = 99,
                     .embed = 48,
                     .layers = 3,
                     .heads = 6,
                     .kv_heads = 3,
                     .head_dim = 8,
                     .mlp = 100,
                     .length = 77,
                     .tied = false,
                     .rope_theta = 5e5,
                     .norm_eps = 1e-6,
                     .family = kind,
                     .qkv_bias = of.qkv_bias,
                     .out_bias = of.out_bias,
                     .mlp_bias = of.mlp_bias};
  if (!of.rotary()) shape.rope_theta = DecoderShape().rope_theta, shape.kv_heads = 6;
  if (of.linear_attention) {
    shape.heads = shape.kv_heads = 6, shape.rope_theta = DecoderShape().rope_theta;
    shape.linear = {.heads = 6, .key_dim = 4, .value_dim = 8};
  }
  shape.tokens = {.bos = 1, .pad = 0, .eos = {2, 7}};
  return with_experts(shape, /*losses=*/false);
}

TEST(Config, ReadsBackWhatItWroteForEveryFamily) {
  for (const std::string& kind : family_names()) EXPECT_EQ(parse_config(format_config(some(kind)), "config.json"), some(kind)) << kind;
  DecoderShape shape = some("mistral");
  shape.window = 33;
  EXPECT_EQ(parse_config(format_config(shape), "config.json"), shape);
  shape = some("llama");
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  shape.head_dim = 20;
  EXPECT_EQ(parse_config(format_config(shape), "config.json"), shape);
}

DecoderShape some_vit() {
  DecoderShape shape = some("vit");
  shape.vocab = 3, shape.kv_heads = 6, shape.tokens = {}, shape.rope_theta = DecoderShape().rope_theta;
  shape.pictures = {.channels = 3, .size = 32, .patch = 4, .labels = {"cat", "dog", "owl"}};
  shape.length = shape.pictures.positions();
  return shape;
}

TEST(Config, ReadsBackTransformersOfPictures) {
  EXPECT_EQ(parse_config(format_config(some_vit()), "config.json"), some_vit());
  DecoderShape shape = some_vit();
  shape.pictures.labels.clear();
  EXPECT_EQ(parse_config(format_config(shape), "config.json"), shape);
}

// As google/vit-base-patch16-224 has it.
TEST(Config, ReadsPublishedTransformersOfPictures) {
  const std::string text = R"({"architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0, "hidden_size": 768, "id2label": {"0": "tench", "1": "goldfish", "2": "shark"}, "image_size": 224,
    "initializer_range": 0.02, "intermediate_size": 3072, "label2id": {"tench": 0, "goldfish": 1, "shark": 2},
    "layer_norm_eps": 1e-12, "model_type": "vit", "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12,
    "patch_size": 16, "qkv_bias": true, "transformers_version": "4.13.0.dev0"})";
  const DecoderShape shape = parse_config(text, "config.json");
  EXPECT_EQ(shape.pictures.positions(), 197);
  EXPECT_EQ(shape.vocab, 3);
  EXPECT_EQ(shape.pictures.labels[2], "shark");
  EXPECT_EQ(shape.norm_eps, 1e-12);
  const auto refused = [&](const std::string& from, const std::string& to) -> std::string {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    try {
      parse_config(changed, "d/config.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused("\"gelu\"", "\"relu\"").find("hidden_act"), std::string::npos);
  EXPECT_NE(refused("\"2\": \"shark\"", "\"5\": \"shark\"").find("classes are numbered from 0 to 2"), std::string::npos);
  EXPECT_NE(refused("\"image_size\": 224", "\"image_size\": 225").find("no multiple of patch_size"), std::string::npos);
  EXPECT_NE(refused("\"num_channels\": 3", "\"num_channels\": 0").find("num_channels = 0"), std::string::npos);
}

TEST(Config, ReadsBackEveryKindOfLinearAttention) {
  DecoderShape shape = some("gla");
  for (const auto decay : {LinearAttentionShape::Decay::gated, LinearAttentionShape::Decay::constant, LinearAttentionShape::Decay::none}) {
    shape.linear.decay = decay;
    EXPECT_EQ(parse_config(format_config(shape), "config.json"), shape);
  }
  shape.linear.softmax_layers = {0, 2};
  shape.heads = 3, shape.kv_heads = 1, shape.head_dim = 16, shape.window = 33, shape.rope_theta = 5e5;
  EXPECT_EQ(parse_config(format_config(shape), "config.json"), shape);
}

// A config.json as flash-linear-attention writes it.
TEST(Config, ReadsWhatFlashLinearAttentionWrites) {
  const std::string text = R"({"model_type": "gla", "vocab_size": 32000, "hidden_size": 1024, "expand_k": 0.5, "expand_v": 1,
    "hidden_ratio": 4, "intermediate_size": null, "num_hidden_layers": 24, "num_heads": 4, "num_kv_heads": null, "feature_map": null,
    "attn_mode": "chunk", "use_short_conv": false, "use_output_gate": true, "clamp_min": null, "hidden_act": "swish",
    "use_gk": true, "use_gv": false, "norm_eps": 1e-06, "tie_word_embeddings": false,
    "attn": {"layers": [5, 11], "num_heads": 16, "num_kv_heads": 8, "qkv_bias": false, "window_size": null, "rope_theta": 10000.0}})";
  const DecoderShape shape = parse_config(text, "config.json");
  EXPECT_EQ(shape.linear.heads, 4);
  EXPECT_EQ(shape.linear.key_dim, 128);
  EXPECT_EQ(shape.linear.value_dim, 256);
  EXPECT_EQ(shape.mlp, 2816);  // 1024 x 4 x 2 / 3, up to a multiple of 256
  EXPECT_EQ(shape.linear.softmax_layers, (std::vector<int64_t>{5, 11}));
  EXPECT_EQ(shape.head_dim, 64);
  EXPECT_EQ(shape.kv_heads, 8);
}

TEST(Config, ReadsBackEveryRopeScaling) {
  for (const RopeScaling& scaling :
       {RopeScaling{.kind = RopeScaling::Kind::linear, .factor = 2}, RopeScaling{.kind = RopeScaling::Kind::dynamic, .factor = 3},
        RopeScaling{.kind = RopeScaling::Kind::llama3, .factor = 8, .original_length = 8192, .low_freq_factor = 1, .high_freq_factor = 4},
        RopeScaling{
            .kind = RopeScaling::Kind::yarn, .factor = 4, .original_length = 64, .beta_fast = 16, .beta_slow = 2, .attention_factor = 0.7},
        RopeScaling{.kind = RopeScaling::Kind::yarn, .factor = 4, .mscale = 0.7, .mscale_all_dim = 1.1, .truncate = false}}) {
    DecoderShape shape = some("qwen3");
    shape.rope_scaling = scaling;
    EXPECT_EQ(parse_config(format_config(shape), "config.json"), shape);
  }
}

constexpr const char* kLlama = R"("model_type": "llama", "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24,
  "num_hidden_layers": 2, "num_attention_heads": 4)";

TEST(Config, TakesDefaultsWhereTransformersDoes) {
  const DecoderShape shape = parse_config(fmt::format("{{{}}}", kLlama), "c");
  EXPECT_EQ(shape.kv_heads, 4);
  EXPECT_EQ(shape.head_dim, 4);
  EXPECT_EQ(shape.length, 2048);
  EXPECT_EQ(shape.norm_eps, 1e-6);
  EXPECT_FALSE(shape.tied);
  std::string mistral = fmt::format("{{{}}}", kLlama);
  mistral.replace(mistral.find("llama"), 5, "mistral");
  mistral.insert(1, R"("num_key_value_heads": 2,)");
  EXPECT_EQ(parse_config(mistral, "c").window, 4096);
  mistral.insert(1, R"("sliding_window": null,)");
  EXPECT_EQ(parse_config(mistral, "c").window, 0);
  EXPECT_TRUE(parse_config(R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2})", "c").tied);
}

// What Cairn does not interpret goes back into the file.
TEST(Config, KeepsTheFieldsItDoesNotRead) {
  const std::string text = R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2, "attn_pdrop": 0.1,
    "embd_pdrop": 0.0, "resid_pdrop": 0.2, "summary_type": "cls_index", "task_specific_params": {"text-generation": {"do_sample": true}},
    "initializer_range": 0.5, "use_cache": false, "torch_dtype": "bfloat16", "_name_or_path": "gpt2", "n_ctx": 7})";
  const DecoderShape shape = parse_config(text, "c");
  const base::Json written = base::parse_json(format_config(shape));
  EXPECT_EQ(written["attn_pdrop"], 0.1);
  EXPECT_EQ(written["embd_pdrop"], 0.0);
  EXPECT_EQ(written["resid_pdrop"], 0.2);
  EXPECT_EQ(written["summary_type"], "cls_index");
  EXPECT_EQ(written["task_specific_params"]["text-generation"]["do_sample"], true);
  EXPECT_EQ(written["initializer_range"], 0.5);
  EXPECT_EQ(written["use_cache"], false);
  EXPECT_EQ(written["torch_dtype"], "float32") << "of the tensors that are written";
  EXPECT_FALSE(written.contains("_name_or_path"));
  EXPECT_EQ(written["n_ctx"], 1024) << "what Cairn knows better";
  EXPECT_EQ(parse_config(format_config(shape), "c"), shape);
  EXPECT_EQ(requested_dropout(shape), "attn_pdrop = 0.1, resid_pdrop = 0.2");
}

TEST(Config, KnowsTheDropoutThatAFileAsksFor) {
  const auto llama = [](const std::string& more) { return parse_config(fmt::format("{{{}{}}}", kLlama, more), "c"); };
  EXPECT_EQ(requested_dropout(llama("")), "");
  EXPECT_EQ(requested_dropout(llama(R"(, "attention_dropout": 0.0)")), "");
  EXPECT_EQ(requested_dropout(llama(R"(, "attention_dropout": 0.25)")), "attention_dropout = 0.25");
  EXPECT_EQ(base::parse_json(format_config(llama(R"(, "attention_dropout": 0.25)")))["attention_dropout"], 0.25);
  // GPT-2's is 0.1 where the file is silent; a model that begins here has none.
  EXPECT_EQ(requested_dropout(parse_config(R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2})", "c")),
            "attn_pdrop = 0.1, embd_pdrop = 0.1, resid_pdrop = 0.1");
  EXPECT_EQ(requested_dropout(some("gpt2")), "");
  EXPECT_EQ(base::parse_json(format_config(some("gpt2")))["attn_pdrop"], 0.0);
}

// Newer versions of transformers write rope_parameters in place of rope_theta and rope_scaling.
TEST(Config, ReadsBothSpellingsOfTheRotaryKeys) {
  const DecoderShape old =
      parse_config(fmt::format(R"({{{}, "rope_theta": 5e5, "rope_scaling": {{"type": "linear", "factor": 2.0}}}})", kLlama), "c");
  const DecoderShape recent =
      parse_config(fmt::format(R"({{{}, "rope_parameters": {{"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}}})", kLlama), "c");
  EXPECT_EQ(old, recent);
  EXPECT_EQ(old.rope_theta, 5e5);
  EXPECT_EQ(old.rope_scaling.factor, 2);
}

struct Bad {
  std::string json, says;
};

class BadConfig : public testing::TestWithParam<Bad> {};

TEST_P(BadConfig, IsRefusedWithTheKeyAndTheFile) {
  try {
    parse_config(GetParam().json, "x/config.json");
    FAIL() << GetParam().json;
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("x/config.json"), std::string::npos) << said;
    EXPECT_NE(said.find(GetParam().says), std::string::npos) << said;
  }
}

std::string with(const std::string& more) { return fmt::format("{{{}, {}}}", kLlama, more); }

INSTANTIATE_TEST_SUITE_P(
    All, BadConfig,
    testing::Values(
        Bad{"[]", "not a JSON object"}, Bad{"{\"a\"", "not JSON at byte"}, Bad{std::string(1'000'000, '['), "nested more than"},
        Bad{"{}", "model_type is missing"}, Bad{R"({"model_type": "bert"})", "model_type is \"bert\"; Cairn reads llama"},
        Bad{R"({"model_type": ["llama"]})", "model_type is"}, Bad{R"({"model_type": "llama"})", "vocab_size is missing"},
        Bad{with(R"("head_dim": -4)"), "head_dim = -4"}, Bad{with(R"("head_dim": 3)"), "need an even one"},
        Bad{with(R"("head_dim": 99999999999999)"), "head_dim = 99999999999999"}, Bad{with(R"("head_dim": "8")"), "head_dim = \"8\""},
        Bad{with(R"("num_key_value_heads": 3)"), "no multiple of num_key_value_heads = 3"},
        Bad{with(R"("rms_norm_eps": 0)"), "rms_norm_eps = 0: must be a number above 0"},
        Bad{with(R"("tie_word_embeddings": 1)"), "tie_word_embeddings = 1: must be true or false"},
        Bad{with(R"("hidden_act": "relu")"), "hidden_act = \"relu\""},
        Bad{with(R"("quantization_config": {"bits": 4})"), "quantization_config = "},
        Bad{with(R"("auto_map": {"AutoModel": "x.Y"})"), "auto_map"},
        Bad{with(R"("partial_rotary_factor": 0.5)"), "partial_rotary_factor = 0.5"},
        Bad{with(R"("layer_types": ["full_attention", "linear_attention"])"), "linear_attention"},
        Bad{with(R"("use_sliding_window": true)"), "use_sliding_window = true"},
        Bad{with(R"("rope_scaling": {"rope_type": "longrope", "factor": 2})"), "rope_scaling of type \"longrope\""},
        Bad{with(R"("rope_scaling": {"rope_type": "linear"})"), "rope_scaling lacks factor"},
        Bad{with(R"("rope_scaling": {"rope_type": "linear", "factor": -1})"), "factor = -1"},
        Bad{with(R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                 "original_max_position_embeddings": 8})"),
            "high_freq_factor must be above"},
        Bad{with(R"("rope_scaling": 5)"), "rope_scaling must be an object"}, Bad{with(R"("rope_theta": 0)"), "rope_theta"},
        Bad{R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 9, "n_layer": 1, "n_head": 2})", "n_embd = 9 is no multiple"},
        Bad{R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2, "activation_function": "relu"})",
            "activation_function = \"relu\""},
        Bad{R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2, "scale_attn_by_inverse_layer_idx": true})",
            "scale_attn_by_inverse_layer_idx"}));

// Figures from the papers' formulas, worked by hand.
TEST(RopeFrequencies, AreStretchedAsEachTypeSays) {
  DecoderShape shape{.head_dim = 4, .length = 1000, .rope_theta = 10000};
  EXPECT_EQ(rope_frequencies(shape), (std::vector<double>{1.0, 0.01}));
  shape.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 4};
  EXPECT_EQ(rope_frequencies(shape), (std::vector<double>{0.25, 0.0025}));
  // Waves of 6.28 and 628.3 positions; the original length is 400, so short means under 100 and long over 400.
  shape.rope_scaling = {
      .kind = RopeScaling::Kind::llama3, .factor = 8, .original_length = 400, .low_freq_factor = 1, .high_freq_factor = 4};
  EXPECT_EQ(rope_frequencies(shape), (std::vector<double>{1.0, 0.01 / 8}));
  shape.rope_scaling.original_length = 1000;  // 628.3 is between 250 and 1000: kept = (1000 / 628.3 - 1) / 3
  const double kept = (1000 * 0.01 / (2 * 3.14159265358979323846) - 1) / 3;
  EXPECT_NEAR(rope_frequencies(shape)[1], 0.01 * (kept + (1 - kept) / 8), 1e-15);
  EXPECT_EQ(rope_magnitude(shape.rope_scaling), 1);
  shape.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_length = 400};
  EXPECT_NEAR(rope_magnitude(shape.rope_scaling), 0.1 * std::log(4.0) + 1, 1e-15);
}

}  // namespace
}  // namespace cairn::model
