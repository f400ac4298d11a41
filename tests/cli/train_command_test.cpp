#include <csignal>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/metrics.h"
#include "program.h"

namespace cairn::cli {
namespace {

TEST(TrainCommand, LeavesAWholeRunDirectory) {
  const harness::ScratchFolder scratch;
  const Outcome outcome = cairn(scratch, tiny({"train", "--set", "train.steps=6"}));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  for (const char* file :
       {"recipe.toml", "metrics.jsonl", "ledger.json", "trace.json", "report.html", "plan.json",
        "snapshots/step-00000006/model.safetensors", "snapshots/step-00000006/config.json", "snapshots/step-00000006/tokenizer.json"})
    EXPECT_TRUE(std::filesystem::exists(scratch / "runs" / "stories" / file)) << file;
  const base::MetricsRow first = base::read_metrics(scratch / "runs" / "stories" / "metrics.jsonl")[0];
  for (const char* key : {"step", "loss", "tokens", "tokens_per_s", "grad_norm", "lr", "memory_bytes", "seconds"})
    EXPECT_TRUE(first.has(key)) << key;
  EXPECT_EQ(first.integer("tokens"), 5 * 16);
  EXPECT_NE(outcome.output.find("trained to step 6"), std::string::npos) << outcome.output;
}

TEST(TrainCommand, GivesTheSameLossesInOneProcessInThreadsAndInProcesses) {
  const harness::ScratchFolder scratch;
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> arguments = tiny({"train", "--out", name, "--set", "train.steps=6"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = cairn(scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return losses_in(scratch / name);
  };
  const std::vector<double> one = run("one", {});
  ASSERT_EQ(one.size(), 6u);
  for (const auto& [name, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"net3", {"--nproc", "3"}}, {"local4", {"--nproc", "4", "--transport", "local"}}}) {
    const std::vector<double> many = run(name, more);
    ASSERT_EQ(many.size(), 6u) << name;
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(many[i], one[i], 1e-5) << name << " step " << i + 1;
  }
  const base::Json ledger = base::parse_json(scratch.text_of("net3/ledger.json"));
  EXPECT_GT(ledger["by_purpose"]["gradient"]["bytes"].get<int64_t>(), 0);
  std::set<std::pair<int, int>> pairs;
  for (const base::Json& pair : ledger["pairs"]) {
    if (pair["purpose"] == "gradient") pairs.emplace(pair["from"].get<int>(), pair["to"].get<int>());
  }
  EXPECT_EQ(pairs.size(), 6u);  // every ordered pair of 3 ranks
}

TEST(TrainCommand, TheSavedRecipeRepeatsTheRun) {
  const harness::ScratchFolder scratch;
  ASSERT_EQ(cairn(scratch, tiny({"train", "--out", "first", "--seed", "7", "--set", "train.steps=3"})).code, 0);
  const Outcome again = cairn(scratch, {"train", "first/recipe.toml", "--out", "second"});
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(losses_in(scratch / "first"), losses_in(scratch / "second"));
  EXPECT_NE(scratch.text_of("first/recipe.toml").find("--seed"), std::string::npos);  // where the value came from
}

TEST(TrainCommand, HintsOnceAtARetiredKeyAndSavesThePresentOne) {
  const harness::ScratchFolder scratch;
  const Outcome outcome =
      cairn(scratch, tiny({"train", "--out", "run", "--nproc", "2", "--set", "train.steps=2", "--set", "optim.clip=0.5"}));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const std::string hint = "--set: optim.clip is now optim.max_grad_norm; the old name still works\n";
  const size_t at = outcome.output.find(hint);
  EXPECT_NE(at, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(hint, at + 1), std::string::npos) << outcome.output;
  EXPECT_NE(scratch.text_of("run/recipe.toml").find("max_grad_norm = 0.5  # --set\n"), std::string::npos);
}

TEST(TrainCommand, WritesTheDateOfAChatTemplateIntoTheRecipeOfTheRun) {
  const harness::ScratchFolder scratch;
  scratch.file("dated.jinja", "{{ strftime_now('%d.%m.%Y') }}{% for m in messages %}{{ m.content }};{% endfor %}");
  scratch.file("chats.jsonl",
               R"({"messages": [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Good day"}]})");
  const auto run = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = tiny({"train", "--out", out, "--data", "chats.jsonl", "--set", "train.steps=2"});
    for (const char* set : {"data.template=dated.jinja", "data.tokenizer=bytes", "eval.fraction=0", "train.global_batch=1",
                            "data.length=40", "data.packing=documents"})
      arguments.insert(arguments.end(), {"--set", set});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return cairn(scratch, arguments);
  };
  const Outcome first = run("run", {});
  ASSERT_EQ(first.code, 0) << first.output;
  const std::regex line("\ntemplate_date = \"[0-9]{4}-[0-9]{2}-[0-9]{2}\"");
  EXPECT_TRUE(std::regex_search(scratch.text_of("run/recipe.toml"), line)) << scratch.text_of("run/recipe.toml");
  EXPECT_NE(run("other", {"--set", "data.template_date=2001-13-01"}).output.find("data.template_date = 2001-13-01: is no date."),
            std::string::npos);
}

TEST(TrainCommand, ADryRunWritesNothing) {
  const harness::ScratchFolder scratch;
  const Outcome outcome = cairn(scratch, {"train", "--dry-run", "--nproc", "2"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* word : {"parameters", "gradients", "optimizer", "activations", "total"})
    EXPECT_NE(outcome.output.find(word), std::string::npos) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(scratch / "runs"));
}

TEST(TrainCommand, ADryRunThatDoesNotFitExitsWithOne) {
  const harness::ScratchFolder scratch;
  const Outcome outcome = cairn(scratch, {"train", "--dry-run", "--set", "train.global_batch=100000000"});
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_NE(outcome.output.find("this does not fit: a smaller train.micro_batch = 50000000, "), std::string::npos) << outcome.output;
}

// Mebibytes of a line of a dry run.
double mebibytes_of(const std::string& line, const std::string& output) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(output, found, std::regex("  " + line + " +([0-9.]+) ([KMG])iB"))) << line << " in " << output;
  if (found.empty()) return 0;
  return std::stod(found[1]) * (found[2] == "K" ? 1.0 / 1024 : found[2] == "M" ? 1 : 1024);
}

TEST(TrainCommand, ADryRunCountsWhatIsKept) {
  const harness::ScratchFolder scratch;
  const auto dry = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"train", "--dry-run", "--set", "model.layers=6", "--set", "train.precision=bf16"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = cairn(scratch, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  };
  const std::string plain = dry({}), again = dry({"--set", "recompute.mode=full"}), on_gpu = dry({"--device", "cuda"});
  const double all = mebibytes_of("activations", plain);
  EXPECT_LT(mebibytes_of("activations", again), 0.5 * all);
  EXPECT_LT(mebibytes_of("activations", dry({"--set", "train.loss_chunks=4"})), all);
  const double on_device = mebibytes_of("activations", on_gpu),
               sum = mebibytes_of("parameters", on_gpu) + mebibytes_of("optimizer", on_gpu) + mebibytes_of("gradients", on_gpu) +
                     on_device + mebibytes_of("CUDA", on_gpu);
  EXPECT_LT(mebibytes_of("activations", dry({"--device", "cuda", "--set", "recompute.mode=full", "--set", "recompute.inputs=host"})),
            mebibytes_of("activations", dry({"--device", "cuda", "--set", "recompute.mode=full"})));
  EXPECT_LT(on_device, 0.95 * all) << "norms are made again there";
  // A budget is of a rank: half of the activations are enough for one of two along tp, and for one alone only if some are made again.
  const std::vector<std::string> half{"--set", "recompute.mode=budget", "--set", fmt::format("recompute.budget_mib={}", 0.55 * all)};
  std::vector<std::string> half_of_two = half;
  half_of_two.insert(half_of_two.end(), {"--nproc", "2", "--set", "mesh.tp=2"});
  EXPECT_NEAR(mebibytes_of("activations", dry(half_of_two)), all / 2, 0.01 * all) << "nothing is made again";
  EXPECT_LT(mebibytes_of("activations", dry(half)), 0.56 * all);
  const std::string slopes = dry({"--set", "train.method=one_byte", "--set", "train.precision=fp32"});
  EXPECT_NE(slopes.find("gradients              0 B"), std::string::npos) << slopes;
  EXPECT_NE(slopes.find("optimizer              0 B"), std::string::npos) << slopes;
  EXPECT_LT(mebibytes_of("activations", slopes), 0.5 * mebibytes_of("activations", dry({"--set", "train.precision=fp32"})));
  EXPECT_LT(mebibytes_of("total", on_gpu), sum) << "activations have the memory of gradients before those come";
}

// The items of a reference page: "[section] `key` of: summary" to the text of the key, as one line. Lists of allowed names are left out,
// since a new method adds a name to them.
std::map<std::string, std::string> items_of(const std::string& page) {
  std::map<std::string, std::string> items;
  std::string section, summary, key;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) section = line, key.clear(), summary.clear();
    if (!line.starts_with("#") && !line.starts_with("- ") && key.empty()) summary += line;  // sync rules share the name of their section
    if (line.starts_with("- `")) key = section + " " + line.substr(2, line.find('`', 3) - 1) + " of: " + summary;
    if (line.empty()) key.clear();
    if (!key.empty()) items[key] += (items[key].empty() ? "" : " ") + line.substr(line.find_first_not_of(' '));
  }
  for (auto& [name, text] : items)
    if (const size_t names = text.find(", one of "); names != std::string::npos) text.erase(names, text.find(". ", names) - names);
  return items;
}

// What the page says is what the program says. A key that a new method brings is missing on the page until it is printed again.
TEST(TrainCommand, TheReferencePageIsWhatTheProgramPrints) {
  const harness::ScratchFolder scratch;
  std::ifstream page(std::string(CAIRN_SOURCE_DIR) + "/docs/reference/recipe.md");
  const std::string text((std::istreambuf_iterator<char>(page)), {});
  const auto printed = items_of(cairn(scratch, {"reference"}).output), kept = items_of(text);
  ASSERT_GT(kept.size(), 100u) << "run: ./cairn reference > docs/reference/recipe.md";
  for (const auto& [key, line] : kept) {
    const auto found = printed.find(key);
    ASSERT_NE(found, printed.end()) << key << " is gone: run ./cairn reference > docs/reference/recipe.md";
    if (key.find("[train]` `method`") != std::string::npos) continue;  // its help names every method
    EXPECT_EQ(line, found->second) << "run: ./cairn reference > docs/reference/recipe.md";
  }
}

}  // namespace
}  // namespace cairn::cli
