// Bad inputs of studies that choose data: recipes, tables, columns, and the files that a study goes on from.
#include "hostile_cases.h"

namespace cairn::study {
namespace {

using SpoilStudy = std::function<void(const HostileFolder&)>;

constexpr const char* kRows =
    "x,y,group,quality,label\n0.1,1,a,1,0\n0.9,0,b,2,1\n0.2,1,a,3,0\n0.8,0.1,b,4,1\n0.3,0.9,a,5,0\n0.7,0.2,b,6,1\n0.25,0.8,a,7,0\n0.75,"
    "0.3,b,8,1\n";
constexpr const char* kMore = "x,y,group,quality,label\n0.3,0.7,a,1,0\n0.6,0.3,b,2,1\n0.4,1,a,3,0\n0.9,0.4,b,4,1\n";

std::string table_keys(const std::string& data) {
  return "[model]\nkind = \"classifier\"\nhidden = [4]\n[data]\nkind = \"table\"\n" + data +
         "test_file = \"test.csv\"\nignore = [\"group\", \"quality\"]\n[train]\nsteps = 2\nglobal_batch = 2\n[log]\ntensorboard = false\n";
}

const SpoilStudy kAsItIs = [](const HostileFolder&) {};

// `cairn study KIND r.toml` on small tables, after `spoil`.
HostileCase study_case(const std::string& kind, const std::string& name, const std::string& keys, std::vector<std::string> said,
                       const SpoilStudy& spoil = kAsItIs) {
  return {"study",
          kind + "_" + name,
          {"study", kind, "r.toml", "--out", "x"},
          [kind, keys, spoil](const HostileFolder& in) {
            in.file("a.csv", kRows);
            in.file("b.csv", kMore);
            in.file("test.csv", kMore);
            in.file("r.toml", "[study]\nkind = \"" + kind + "\"\n" + keys + table_keys(kind == "lifelong" ? "" : "path = \"a.csv\"\n"));
            spoil(in);
          },
          std::move(said)};
}

HostileCase value(const std::string& name, const std::string& keys, std::vector<std::string> said, const SpoilStudy& spoil = kAsItIs) {
  return study_case("value", name, keys, std::move(said), spoil);
}
HostileCase iterate(const std::string& name, const std::string& keys, std::vector<std::string> said, const SpoilStudy& spoil = kAsItIs) {
  return study_case("iterate", name, "budget = 4\nclusters = 2\nrounds = 2\n" + keys, std::move(said), spoil);
}
HostileCase lifelong(const std::string& name, const std::string& keys, std::vector<std::string> said, const SpoilStudy& spoil = kAsItIs) {
  return study_case("lifelong", name, "datasets = [\"a.csv\", \"b.csv\"]\nbudget = 3\nclusters = 2\n" + keys, std::move(said), spoil);
}

SpoilStudy put(const std::string& name, const Bytes& bytes) {
  return [name, bytes](const HostileFolder& in) { in.file(name, bytes); };
}

// The same keys with text in place of tables.
SpoilStudy text_recipe(const std::string& kind, const std::string& keys, const std::string& data = "") {
  return [kind, keys, data](const HostileFolder& in) {
    in.file("t.txt", copies("once upon a time. ", 40) + "\n\n" + copies("the end of it all. ", 40));
    in.file("u.txt", copies("another text of some words. ", 40));
    in.file("r.toml", "[study]\nkind = \"" + kind + "\"\n" + keys +
                          "[model]\nlayers = 1\nembed = 8\nheads = 1\nkv_heads = 1\nmlp = 8\n[data]\ntokenizer = \"bytes\"\nlength = 16\n" +
                          data + "[train]\nsteps = 1\nglobal_batch = 2\n[log]\ntensorboard = false\n");
  };
}

HostileCases value_cases() {
  return {
      value("recipe_missing", "", {"r.toml"}, [](const HostileFolder& in) { in.remove("r.toml"); }),
      value("recipe_not_toml", "", {"r.toml"}, put("r.toml", "[study\nkind =")),
      value("recipe_of_another_kind", "", {"study.kind", "value"}, put("r.toml", "[study]\nkind = \"iterate\"\n")),
      value("unknown_key", "permutations = 3\n", {"study.permutations"}),
      value("unknown_section", "[study.more]\na = 1\n", {"study.more"}),
      value("unknown_method", "method = \"banzhaf\"\n", {"study.method", "banzhaf"}),
      value("tolerance_negative", "tolerance = -0.1\n", {"study.tolerance"}),
      value("ridge_nan", "ridge = nan\n", {"study.ridge"}),
      value("players_of_no_column", "players = \"topic\"\n", {"study.players", "topic"}),
      value("one_player", "players = \"source\"\n", {"study.players", "one player"}),
      value("more_validation_than_held_out", "validation = 5\n", {"study.validation", "4 samples"}),
      value("corrupted_a_feature", "corrupted = \"x\"\n", {"study.corrupted", "data.ignore"}),
      value("candidates_missing", "candidates = \"none.csv\"\n", {"none.csv"}),
      value("candidates_with_other_columns", "candidates = \"c.csv\"\n", {"c.csv"}, put("c.csv", "x,z,group,quality,label\n1,2,a,1,0\n")),
      value("f1_of_three_classes", "metric = \"f1\"\n", {"study.metric = f1", "two classes"},
            put("a.csv", std::string(kRows) + "0.5,0.5,a,1,2\n")),
      value("exact_with_too_many_players", "method = \"exact\"\n", {"2^21 trainings"},
            put("a.csv", "x,y,group,quality,label\n" + copies("0.1,1,a,1,0\n0.2,0,b,1,1\n0.3,1,a,1,0\n", 7))),
      value("budget_of_no_time", "budget_hours = 1e-12\n", {"study.budget_hours"}),
      value("table_empty", "", {"a.csv"}, put("a.csv", "")),
      value("table_with_nan", "", {"a.csv:3"}, put("a.csv", "x,y,group,quality,label\n1,2,a,1,0\nnan,2,a,1,1\n")),
      value("table_a_pipe", "", {"a.csv", "not a regular file"}, [](const HostileFolder& in) { in.remove("a.csv"), in.pipe("a.csv"); }),
      value("validation_of_another_class", "", {"test.csv"}, put("test.csv", std::string(kMore) + "1,1,a,1,7\n")),
      value("results_of_another_recipe", "max_permutations = 2\n", {"rows.bin", "another recipe"},
            put("x/rows.bin", std::string("cairnrw1") + copies("z", 8))),
      value("results_not_results", "max_permutations = 2\n", {"rows.bin"}, put("x/rows.bin", copies("not rows at all ", 9))),
      value("results_of_four_gigabytes", "max_permutations = 2\n", {"rows.bin"},
            [](const HostileFolder& in) {
              in.folder("x");
              in.sparse("x/rows.bin", "", int64_t{1} << 32);
            }),
      value("results_a_pipe", "max_permutations = 2\n", {"rows.bin", "not a regular file"},
            [](const HostileFolder& in) { in.folder("x"), in.pipe("x/rows.bin"); }),
      value("text_by_accuracy", "", {"study.metric", "neg_loss"},
            text_recipe("value", "learner = \"recipe\"\nplayers = \"source\"\nvalidation_source = \"u.txt\"\n",
                        "sources = [\"t.txt\", \"u.txt\"]\n")),
      value("text_without_its_validation", "", {"gone.txt"},
            text_recipe("value", "learner = \"recipe\"\nmetric = \"neg_loss\"\nplayers = \"source\"\nvalidation_source = \"gone.txt\"\n",
                        "sources = [\"t.txt\", \"u.txt\"]\n")),
      value("text_by_gradients", "", {"study.method = g", "tables"},
            text_recipe("value", "method = \"g\"\nmetric = \"neg_loss\"\nplayers = \"source\"\nvalidation_source = \"u.txt\"\n",
                        "sources = [\"t.txt\", \"u.txt\"]\n")),
  };
}

HostileCases iterate_cases() {
  const std::string reference = "scorer = \"reference\"\n";
  return {
      iterate("more_than_there_is", "", {"study.budget", "8 training samples"},
              [](const HostileFolder& in) { in.replace("r.toml", "budget = 4", "budget = 9"); }),
      iterate("more_rounds_than_samples", "", {"study.rounds"},
              [](const HostileFolder& in) { in.replace("r.toml", "rounds = 2", "rounds = 5"); }),
      iterate("clusters_that_get_nothing", "method = \"clusters\"\nquota = \"equal\"\n", {"study.quota", "would get nothing"},
              [](const HostileFolder& in) { in.replace("r.toml", "clusters = 2", "clusters = 6"); }),
      iterate("scorer_without_its_column", reference, {"study.reference"}),
      iterate("scorer_of_no_column", reference + "reference = \"right\"\n", {"study.reference", "right"}),
      iterate("reference_of_no_class", reference + "reference = \"group\"\n", {"study.reference", "group"}),
      iterate("quality_not_a_number", "quality = \"group\"\n", {"study.quality", "not a number"}),
      iterate("quality_negative", "quality = \"quality\"\n", {"study.quality", "-3"},
              [](const HostileFolder& in) { in.replace("a.csv", "0.2,1,a,3,0", "0.2,1,a,-3,0"); }),
      iterate("quality_infinite", "quality = \"quality\"\npick = \"softmax\"\n", {"study.quality"},
              [](const HostileFolder& in) { in.replace("a.csv", "0.2,1,a,3,0", "0.2,1,a,inf,0"); }),
      iterate("embedding_of_no_column", "embedding = \"topic\"\n", {"study.embedding", "topic"}),
      iterate("state_empty", "", {"state.json"}, put("x/state.json", "")),
      iterate("state_cut_short", "", {"state.json"}, put("x/state.json", "{\"identity\": \"0\", \"weights\": [0.5, 0.5], \"rou")),
      iterate("state_of_another_recipe", "", {"state.json", "another recipe"},
              put("x/state.json", "{\"identity\": \"0123456789abcdef\", \"weights\": [0.5, 0.5], \"rounds\": []}")),
      iterate("state_a_million_deep", "", {"state.json"}, put("x/state.json", repeated("[", 1'000'000))),
      iterate("state_a_list", "", {"state.json"}, put("x/state.json", "[1, 2]")),
      iterate("state_a_pipe", "", {"state.json"}, [](const HostileFolder& in) { in.folder("x"), in.pipe("x/state.json"); }),
      iterate("text_by_reference", "", {"study.reference"},
              text_recipe("iterate", "scorer = \"reference\"\nreference = \"x\"\n", "path = \"t.txt\"\npacking = \"none\"\n")),
      iterate("text_in_bins", "", {"data.packing"}, text_recipe("iterate", "budget = 2\nrounds = 1\n", "path = \"t.txt\"\n")),
      iterate("quality_of_another_pool", "", {"q.scores"},
              [](const HostileFolder& in) {
                text_recipe("iterate", "budget = 1\nrounds = 1\nquality = \"q.scores\"\n", "path = \"t.txt\"\npacking = \"none\"\n")(in);
                in.file("q.scores", "not a column");
              }),
  };
}

HostileCases lifelong_cases() {
  return {
      lifelong("one_dataset", "", {"study.datasets", "at least two"},
               [](const HostileFolder& in) { in.replace("r.toml", "[\"a.csv\", \"b.csv\"]", "[\"a.csv\"]"); }),
      lifelong("a_dataset_twice", "", {"study.datasets", "twice"}, [](const HostileFolder& in) { in.replace("r.toml", "b.csv", "a.csv"); }),
      lifelong("a_dataset_missing", "", {"b.csv"}, [](const HostileFolder& in) { in.remove("b.csv"); }),
      lifelong("budget_above_the_cap", "pool_cap = 2\n", {"study.budget", "study.pool_cap"}),
      lifelong("budget_above_the_pool", "", {"study.budget", "8 samples"},
               [](const HostileFolder& in) { in.replace("r.toml", "budget = 3", "budget = 9"); }),
      lifelong("more_clusters_than_samples", "", {"study.clusters"},
               [](const HostileFolder& in) { in.replace("r.toml", "clusters = 2", "clusters = 4"); }),
      lifelong("score_unknown", "scores = [\"beauty\"]\n", {"study.scores", "beauty"}),
      lifelong("scores_none", "scores = []\n", {"study.scores"}),
      lifelong("image_score_without_an_image", "scores = [\"ppl\", \"ig\"]\n", {"ig", "image"}),
      lifelong("image_of_no_column", "scores = [\"ig\"]\nimage = [\"group\"]\n", {"study.image", "group"}),
      lifelong("skills_a_feature", "skills = \"x\"\n", {"study.skills", "data.ignore"}),
      lifelong("projection_not_in_blocks", "[study.vectors]\ndim = 200\n", {"study.vectors.dim", "128"}),
      lifelong("layer_that_is_not_there", "[study.vectors]\nlayer = \"12\"\n", {"study.vectors.layer", "12"}),
      lifelong("layer_of_a_huge_number", "[study.vectors]\nlayer = \"99999999999999999999\"\n", {"study.vectors.layer"}),
      lifelong("datasets_with_other_columns", "", {"b.csv"}, put("b.csv", "x,z,group,quality,label\n1,2,a,1,0\n")),
      lifelong("state_cut_short", "", {"state.json"}, put("x/state.json", "{\"identity\": \"0\", \"skills\": [")),
      lifelong("state_of_another_recipe", "", {"state.json", "another recipe"},
               put("x/state.json", "{\"identity\": \"0\", \"skills\": [], \"steps\": []}")),
      lifelong("state_a_million_deep", "", {"state.json"}, put("x/state.json", repeated("{\"steps\":", 1'000'000))),
      lifelong("state_of_numbers", "", {"state.json"}, put("x/state.json", "{\"identity\": 1e999, \"steps\": 3}")),
      lifelong("text_in_bins", "", {"data.packing"}, text_recipe("lifelong", "datasets = [\"t.txt\", \"u.txt\"]\nbudget = 1\n")),
      lifelong("text_with_an_image", "", {"image"},
               text_recipe("lifelong", "datasets = [\"t.txt\", \"u.txt\"]\nbudget = 1\nscores = [\"ig\"]\nimage = [\"x\"]\n",
                           "packing = \"none\"\n")),
  };
}

}  // namespace

HostileCases hostile_studies() {
  HostileCases all = value_cases();
  for (HostileCase& one : iterate_cases()) all.push_back(std::move(one));
  for (HostileCase& one : lifelong_cases()) all.push_back(std::move(one));
  return all;
}

}  // namespace cairn::study
