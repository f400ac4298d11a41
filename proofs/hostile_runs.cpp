// Bad inputs: recipes, run directories with their snapshots, keys and certificates.
#include <filesystem>

#include "base/check.h"
#include "base/checksum.h"
#include "hostile_cases.h"
#include "snapshot/manifest.h"

namespace cairn::study {
namespace {

HostileCase recipe(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.emplace_back("r.toml");
  return {
      "recipe", name, {"train", "r.toml", "--out", "x"}, [bytes](const HostileFolder& in) { in.file("r.toml", bytes); }, std::move(said)};
}

// A run on little text under a sampler.
HostileCase sampled(const std::string& name, const std::string& sampler, const std::vector<std::string>& sets,
                    std::vector<std::string> said) {
  std::vector<std::string> arguments{
      "train", "--out", "x", "--set", "data.sampler=" + sampler, "--set", "data.tokenizer=bytes", "--set", "data.stories_bytes=20000"};
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  return {"recipe", name, std::move(arguments), [](const HostileFolder&) {}, std::move(said)};
}

HostileCases recipes() {
  return {
      recipe("not_toml", "train: steps 7", {"r.toml:1"}),
      recipe("section_not_closed", "[train\nsteps = 3\n", {"r.toml:1"}),
      recipe("unknown_key", "[train]\nstepz = 3\n", {"train.stepz", "r.toml:2"}),
      recipe("unknown_section", "[tarin]\nsteps = 3\n", {"tarin"}),
      recipe("value_a_text", "[train]\nsteps = \"many\"\n", {"train.steps"}),
      recipe("value_a_date", "[train]\nsteps = 2026-11-15\n", {"train.steps", "a date"}),
      recipe("value_a_table", "[train.steps]\na = 1\n", {"train.steps"}),
      recipe("value_a_list_of_lists", "[data]\nsources = [[\"a\"]]\n", {"data.sources"}),
      recipe("value_negative", "[train]\nsteps = -1\n", {"train.steps"}),
      recipe("value_beyond_64_bits", "[train]\nsteps = 99999999999999999999\n", {"r.toml:2"}),
      recipe("value_nan", "[optim]\nlearning_rate = nan\n", {"optim.learning_rate"}),
      recipe("value_infinite", "[optim]\nlearning_rate = inf\n", {"optim.learning_rate"}),
      recipe("same_key_twice", "[train]\nsteps = 1\nsteps = 2\n", {"r.toml:3"}),
      recipe("invalid_utf8", "[train]\nname = \"\xff\"\n", {"r.toml:2"}),
      recipe("nul_bytes", std::string("[train]\nsteps = 1\0\n", 19), {"r.toml:2"}),
      recipe("utf16", std::string("\xff\xfe[\0t\0", 6), {"r.toml:1"}),
      recipe("lists_a_hundred_thousand_deep", "a = " + repeated("[", 100'000), {"r.toml:1", "deep"}),
      recipe("tables_a_hundred_thousand_deep", "a = " + repeated("{a=", 100'000), {"r.toml:1", "deep"}),
      recipe("keys_a_hundred_thousand_deep", repeated("a.", 100'000) + "a = 1", {"r.toml:1", "dots"}),
      recipe("sections_a_hundred_thousand_deep", "[" + repeated("a.", 100'000) + "a]", {"r.toml:1", "dots"}),
      recipe("quoted_keys_a_hundred_thousand_deep", repeated("\"a\".", 100'000) + "a = 1", {"r.toml:1", "dots"}),
      recipe("inline_keys_a_hundred_thousand_deep", "a = {" + repeated("a.", 100'000) + "a = 1}", {"r.toml:1", "dots"}),
      recipe("string_of_a_megabyte_without_end", "a = \"" + repeated("x", 1'000'000), {"r.toml:1"}),
      recipe("value_of_a_megabyte", "[train]\nsteps = \"" + repeated("x", 1'000'000) + "\"\n", {"r.toml", "train.steps"}),
      recipe("of_two_megabytes", repeated("#", 2 << 20), {"2.00 MiB"}),
      {"recipe",
       "of_a_gigabyte",
       {"train", "r.toml"},
       [](const HostileFolder& in) { in.sparse("r.toml", "", int64_t{1} << 30); },
       {"r.toml", "1.00 GiB"}},
      {"recipe", "a_folder", {"train", "r.toml"}, [](const HostileFolder& in) { in.folder("r.toml"); }, {"r.toml", "folder"}},
      {"recipe", "a_pipe", {"train", "r.toml"}, [](const HostileFolder& in) { in.pipe("r.toml"); }, {"r.toml", "not a regular file"}},
      {"recipe", "a_link_to_itself", {"train", "r.toml"}, [](const HostileFolder& in) { in.link("r.toml", "r.toml"); }, {"r.toml"}},
      {"recipe", "set_of_nonsense", {"train", "--set", "=7"}, [](const HostileFolder&) {}, {"KEY=VALUE"}},
      {"recipe",
       "set_of_a_hundred_thousand_dots",
       {"train", "--set", "train.steps={" + copies("a.", 50'000) + "a=1}"},
       [](const HostileFolder&) {},
       {"train.steps"}},
      recipe("share_above_one", "[data]\nsampler = \"rs2\"\n[sampler]\nratio = 1.5\n", {"sampler.ratio", "1.5"}),
      recipe("share_not_a_number", "[data]\nsampler = \"seta\"\n[sampler]\nprune = nan\n", {"sampler.prune"}),
      sampled("a_share_of_nothing", "rs2", {"sampler.ratio=0", "train.epochs=3"}, {"sampler.ratio", "above 0"}),
      sampled("a_round_below_one_batch", "rs2", {"sampler.ratio=0.01", "train.epochs=3"}, {"sampler.ratio", "train.global_batch"}),
      sampled("a_window_without_groups", "seta", {"sampler.window=0.01", "train.epochs=3"}, {"sampler.window", "sampler.groups"}),
      sampled("more_groups_than_samples", "seta", {"sampler.groups=100000", "train.epochs=3"}, {"sampler.groups"}),
      sampled("scores_without_epochs", "infobatch", {"train.steps=3"}, {"data.sampler", "train.epochs"}),
      sampled("scores_of_one_epoch", "infobatch", {"train.epochs=1"}, {"train.epochs", "infobatch"}),
      sampled("scores_on_islands_that_step_apart", "seta", {"train.epochs=3", "mesh.island=2", "sync.island.kind=diloco"},
              {"data.sampler = seta", "sync.island.kind = diloco"}),
      sampled("scores_of_islands_without_an_average", "infobatch", {"train.epochs=3", "mesh.island=2", "sync.island.kind=noloco"},
              {"data.sampler = infobatch", "sync.island.kind = noloco"}),
      {"recipe",
       "a_model_beyond_memory",
       {"train", "--set", "model.from=m", "--set", "model.embed=1048576", "--out", "x"},
       [](const HostileFolder& in) { in.good("model", "m"); },
       {"model.embed"}},
  };
}

const std::string kNew = "r/snapshots/step-00000004/", kOld = "r/snapshots/step-00000002/";

// A copy of the good run, spoiled, and `cairn train --resume` on it.
HostileCase resumed(const std::string& name, const std::function<void(const HostileFolder&)>& spoil, std::vector<std::string> said,
                    std::vector<std::string> arguments = {"train", "--resume", "r", "--set", "train.steps=5"}) {
  return {"run", name, std::move(arguments),
          [spoil](const HostileFolder& in) {
            in.good("run", "r");
            spoil(in);
          },
          std::move(said)};
}

// Leaves only the newest snapshot.
void alone(const HostileFolder& in) { in.remove("r/snapshots/step-00000002"); }

// Puts a text into the newest snapshot and its right checksum into the manifest: damage that no checksum shows.
void forge(const HostileFolder& in, const std::string& file, const std::string& text) {
  alone(in);
  in.file(kNew + file, text);
  snapshot::Manifest manifest = snapshot::parse_manifest(in.text(kNew + "manifest.json"), "manifest.json");
  manifest.files[file] = {.bytes = static_cast<int64_t>(text.size()), .checksum = base::checksum(text)};
  in.file(kNew + "manifest.json", snapshot::format_manifest(manifest));
}

HostileCase forged(const std::string& name, const Bytes& state, std::vector<std::string> said) {
  said.emplace_back("state.json");
  return resumed(
      name, [state](const HostileFolder& in) { forge(in, "training/state.json", state.text()); }, std::move(said));
}

HostileCase forged_pieces(const std::string& name, const std::function<std::string(std::string)>& spoil, std::vector<std::string> said) {
  const std::string file = "training/pieces.json";
  return resumed(
      name, [spoil, file](const HostileFolder& in) { forge(in, file, spoil(in.text(kNew + file))); }, std::move(said));
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  CAIRN_CHECK(at != std::string::npos, "the text does not hold {}", from);
  return text.replace(at, from.size(), to);
}

HostileCases pieces() {
  const auto with = [](std::string_view from, std::string_view to) {
    return [from = std::string(from), to = std::string(to)](const std::string& text) { return replaced(text, from, to); };
  };
  return {
      forged_pieces("pieces_not_json", [](const std::string&) { return "{"; }, {"pieces.json", "JSON"}),
      forged_pieces("pieces_a_list", [](const std::string&) { return "[]"; }, {"pieces.json"}),
      forged_pieces("pieces_a_million_deep", [](const std::string&) { return std::string(500'000, '['); }, {"pieces.json", "nested"}),
      forged_pieces("pieces_with_a_hole", with("\"elements\":[0,", "\"elements\":[1,"), {"pieces.json", "of its", "elements"}),
      forged_pieces("pieces_twice",
                    with("\"pieces\":[{",
                         "\"pieces\":[{\"file\":\"training/rank-00000.safetensors\",\"name\":\"x\",\"dims\":[],\"elements\":[0,0]},{"),
                    {"pieces.json", "another shape"}),
      forged_pieces("pieces_beyond_their_tensor", with("\"elements\":[0,", "\"elements\":[0,9"), {"pieces.json", "elements"}),
      forged_pieces("pieces_in_no_file", with("training/rank-00000.safetensors", "../../../secret.safetensors"),
                    {"pieces.json", "no file"}),
      forged_pieces("pieces_of_another_file", with("training/rank-00000.safetensors", "training/rank-00001.safetensors"),
                    {"pieces.json", "rank-00001", "not there"}),
      forged_pieces("pieces_of_an_unknown_dtype", with("\"dtype\":\"F32\"", "\"dtype\":\"F33\""), {"pieces.json", "F33"}),
      forged_pieces("pieces_of_a_huge_tensor", with("\"shape\":[", "\"shape\":[4611686018427387904,4,"), {"pieces.json", "shape"}),
  };
}

HostileCases runs() {
  const std::vector<std::string> generate{"generate", "r", "--ids", "1", "--tokens", "1"};
  return {
      resumed("nothing_there", [](const HostileFolder& in) { in.remove("r"); }, {"r", "no such directory"}),
      resumed("recipe_missing", [](const HostileFolder& in) { in.remove("r/recipe.toml"); }, {"recipe.toml"}),
      resumed("recipe_damaged", [](const HostileFolder& in) { in.file("r/recipe.toml", "[[[["); }, {"recipe.toml:1"}),
      resumed("manifest_missing", [](const HostileFolder& in) { alone(in), in.remove(kNew + "manifest.json"); },
              {"manifest.json", "missing"}),
      resumed("manifest_empty", [](const HostileFolder& in) { alone(in), in.file(kNew + "manifest.json", ""); },
              {"manifest.json", "empty"}),
      resumed("manifest_cut_off", [](const HostileFolder& in) { alone(in), in.cut(kNew + "manifest.json", 100); }, {"manifest.json"}),
      resumed("manifest_a_million_deep",
              [](const HostileFolder& in) { alone(in), in.file(kNew + "manifest.json", repeated("[", 1'000'000)); },
              {"manifest.json", "nested"}),
      resumed("manifest_of_another_format",
              [](const HostileFolder& in) { alone(in), in.replace(kNew + "manifest.json", "cairn-snapshot", "x"); }, {"manifest.json"}),
      resumed(
          "manifest_of_another_version",
          [](const HostileFolder& in) { alone(in), in.replace(kNew + "manifest.json", "\"format_version\":2", "\"format_version\":99"); },
          {"version 99"}),
      resumed("manifest_of_another_step",
              [](const HostileFolder& in) { alone(in), in.replace(kNew + "manifest.json", "\"step\":4", "\"step\":7"); }, {"step 7"}),
      resumed("manifest_with_a_way_out",
              [](const HostileFolder& in) { alone(in), in.replace(kNew + "manifest.json", "\"config.json\"", "\"../../../secret\""); },
              {"manifest.json"}),
      resumed("manifest_is_a_pipe", [](const HostileFolder& in) { alone(in), in.pipe(kNew + "manifest.json"); },
              {"manifest.json", "not a regular file"}),
      resumed("weights_cut_off", [](const HostileFolder& in) { alone(in), in.cut(kNew + "model.safetensors", 1000); },
              {"model.safetensors", "1000 bytes"}),
      resumed("weights_flipped", [](const HostileFolder& in) { alone(in), in.flip(kNew + "model.safetensors", -5); },
              {"model.safetensors", "checksum"}),
      resumed("weights_missing", [](const HostileFolder& in) { alone(in), in.remove(kNew + "model.safetensors"); },
              {"model.safetensors", "missing"}),
      resumed("optimizer_flipped", [](const HostileFolder& in) { alone(in), in.flip(kNew + "training/rank-00000.safetensors", -5); },
              {"rank-00000.safetensors", "checksum"}),
      resumed("optimizer_is_a_pipe", [](const HostileFolder& in) { alone(in), in.pipe(kNew + "training/rank-00000.safetensors"); },
              {"rank-00000.safetensors", "not a regular file"}),
      resumed("state_flipped", [](const HostileFolder& in) { alone(in), in.flip(kNew + "training/state.json", 20); },
              {"state.json", "checksum"}),
      resumed("both_damaged",
              [](const HostileFolder& in) { in.flip(kNew + "model.safetensors", -5), in.flip(kOld + "model.safetensors", -5); },
              {"none of its 2 snapshots"}),
      resumed(
          "damaged_and_generated_from", [](const HostileFolder& in) { alone(in), in.flip(kNew + "model.safetensors", -5); },
          {"model.safetensors", "checksum"}, generate),
      resumed(
          "no_snapshots_to_generate_from", [](const HostileFolder& in) { in.remove("r/snapshots"); }, {"no snapshot"}, generate),
      resumed(
          "snapshots_a_file", [](const HostileFolder& in) { in.remove("r/snapshots"), in.file("r/snapshots", "x"); }, {"r/snapshots"},
          generate),
      resumed("metrics_of_a_gigabyte", [](const HostileFolder& in) { in.sparse("r/metrics.jsonl", "", int64_t{1} << 30); },
              {"metrics.jsonl:1"}),
      resumed("metrics_a_pipe", [](const HostileFolder& in) { in.pipe("r/metrics.jsonl"); }, {"metrics.jsonl", "not a regular file"}),
      resumed("metrics_damaged", [](const HostileFolder& in) { in.file("r/metrics.jsonl", "{\"step\": 1}\n]]]]\n{\"step\": 2}\n"); },
              {"metrics.jsonl:2"}),
      resumed("out_is_a_run", [](const HostileFolder&) {}, {"holds a run already"}, {"train", "--out", "r"}),
      resumed("out_is_a_file", [](const HostileFolder& in) { in.file("f", "x"); }, {"f", "is a file"}, {"train", "--out", "f"}),
      resumed("out_is_a_link_to_itself", [](const HostileFolder& in) { in.link("f", "f"); }, {"f"}, {"train", "--out", "f"}),
      forged("state_not_json", "{", {"JSON"}),
      forged("state_a_list", "[]", {"not the state"}),
      forged("state_without_step", R"({"tokens": 1})", {"not the state"}),
      forged("state_step_negative", R"({"step": -4, "tokens": 1})", {"step = -4"}),
      forged("state_of_another_step", R"({"step": 400, "tokens": 1})", {"step 400"}),
      forged("state_tokens_a_text", R"({"step": 4, "tokens": "many"})", {"not the state"}),
      forged("state_seed_a_text", R"({"step": 4, "tokens": 1, "seed": "x"})", {"seed"}),
      forged("state_seconds_a_list", R"({"step": 4, "tokens": 1, "seconds": []})", {"seconds"}),
      forged("state_subset_not_a_hash", R"({"step": 4, "tokens": 1, "subset": "not hexadecimal"})", {"subset"}),
      forged("state_subset_a_number", R"({"step": 4, "tokens": 1, "subset": 7})", {"subset"}),
      forged("state_rollbacks_negative", R"({"step": 4, "tokens": 1, "rollbacks": -1})", {"rollbacks"}),
      forged("state_a_million_deep", repeated("[", 500'000), {"nested"}),
  };
}

HostileCases keys() {
  const auto joining = [](const std::string& key) {
    return std::vector<std::string>{"train", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:1", "--key", key};
  };
  const std::vector<std::string> certified{"train",       "--nnodes",        "2",     "--node-rank",       "0",     "--rendezvous",
                                           "127.0.0.1:1", "--tls-authority", "a.pem", "--tls-certificate", "c.pem", "--tls-key",
                                           "k.pem"};
  const auto private_file = [](const HostileFolder& in, const std::string& name, const Bytes& bytes) {
    in.file(name, bytes);
    std::filesystem::permissions(in / name, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  };
  const auto key_of = [&](const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
    said.emplace_back("run.key");
    return HostileCase{"key", name, joining("run.key"), [=](const HostileFolder& in) { private_file(in, "run.key", bytes); },
                       std::move(said)};
  };
  return {
      key_of("empty", "", {"hexadecimal"}),
      key_of("too_short", "0123456789abcdef\n", {"hexadecimal"}),
      key_of("too_long", repeated("a", 1 << 20), {"hexadecimal"}),
      key_of("not_hexadecimal", repeated("g", 64) + "\n", {"hexadecimal"}),
      {"key", "missing", joining("run.key"), [](const HostileFolder&) {}, {"run.key", "cairn key"}},
      {"key", "readable_by_all", joining("run.key"), [](const HostileFolder& in) { in.file("run.key", repeated("a", 64)); }, {"chmod 600"}},
      {"key", "a_folder", joining("run.key"), [](const HostileFolder& in) { in.folder("run.key"); }, {"run.key"}},
      {"key", "a_pipe", joining("run.key"), [](const HostileFolder& in) { in.pipe("run.key"); }, {"run.key", "not a regular file"}},
      {"key",
       "written_over",
       {"key", "run.key"},
       [](const HostileFolder& in) { in.file("run.key", "x"); },
       {"run.key", "never overwritten"}},
      {"certificate", "missing", certified, [](const HostileFolder&) {}, {"a.pem"}},
      {"certificate",
       "not_pem",
       certified,
       [=](const HostileFolder& in) {
         for (const char* file : {"a.pem", "c.pem", "k.pem"}) private_file(in, file, "no certificate\n");
       },
       {"a.pem", "certificate authority"}},
      {"certificate",
       "key_readable_by_all",
       certified,
       [](const HostileFolder& in) {
         for (const char* file : {"a.pem", "c.pem", "k.pem"}) in.file(file, "no certificate\n");
       },
       {"k.pem", "chmod 600"}},
      {"certificate", "a_pipe", certified, [](const HostileFolder& in) { in.pipe("a.pem"); }, {"a.pem", "not a regular file"}},
  };
}

}  // namespace

HostileCases hostile_runs() {
  HostileCases all;
  for (const HostileCases& part : {recipes(), pieces(), runs(), keys()}) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace cairn::study
