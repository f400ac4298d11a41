// `cairn supernet`, run as a user would run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "program.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

class SupernetCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch = std::make_unique<harness::ScratchFolder>();
    scratch->file("cnn.toml", R"(
model = {kind = "cnn", cnn = {widths = [8, 8], depths = [2, 2]}}
data = {kind = "images"}
images = {size = 6, classes = 3, count = 60, held_out = 30}
supernet = {depth = [1, 2], expand = [1, 2, 4], calibration_samples = 40}
train = {steps = 4, global_batch = 8}
optim = {warmup_steps = 0}
)");
    scratch->file("decoder.toml", R"(
model = {layers = 2, embed = 16, heads = 2, kv_heads = 1, mlp = 32}
data = {length = 16, stories_bytes = 40000, tokenizer = "bytes"}
supernet = {depth = [1, 2], mlp = [8, 32]}
train = {steps = 4, global_batch = 4}
optim = {warmup_steps = 0}
)");
    for (const char* name : {"cnn", "decoder"}) {
      const Outcome trained = cairn(*scratch, {"train", std::string(name) + ".toml", "--out", name});
      ASSERT_EQ(trained.code, 0) << trained.output;
    }
  }
  static void TearDownTestSuite() { scratch.reset(); }

  static Outcome run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "supernet");
    return cairn(*scratch, arguments);
  }
  static std::string refused(const std::vector<std::string>& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    return outcome.output;
  }

  static std::unique_ptr<harness::ScratchFolder> scratch;
};

std::unique_ptr<harness::ScratchFolder> SupernetCommand::scratch;

TEST_F(SupernetCommand, FindsNetworksWithinABound) {
  const Outcome table = run({"search", "cnn", "--population", "4", "--generations", "2", "--calibration", "20"});
  EXPECT_EQ(table.code, 0) << table.output;
  EXPECT_THAT(table.output, HasSubstr("FLOPs"));
  EXPECT_THAT(table.output, HasSubstr("2,2:"));
  const Outcome all = run({"search", "cnn", "--flops", "40K", "--population", "4", "--generations", "2", "--calibration", "20", "--json"});
  EXPECT_EQ(all.code, 0) << all.output;
  const size_t at = all.output.find("{\"subnets\"");
  ASSERT_NE(at, std::string::npos) << all.output;
  const base::Json json = base::parse_json(all.output.substr(at, all.output.find('\n', at) - at));
  EXPECT_GE(json["subnets"].size(), 1u);
  for (const base::Json& one : json["subnets"]) EXPECT_LE(one["flops"].get<double>(), 40e3) << one["subnet"];
}

TEST_F(SupernetCommand, WritesANetworkOfItsOwn) {
  const Outcome conv = run({"export", "cnn", "--subnet", "1,2:8,16,32", "--out", "small"});
  EXPECT_EQ(conv.code, 0) << conv.output;
  EXPECT_THAT(conv.output, HasSubstr("subnet 1,2:8,16,32"));
  EXPECT_THAT(conv.output, HasSubstr("its batch norms are calibrated on 40 samples"));
  const base::Json config = base::parse_json(scratch->text_of("small/config.json"));
  EXPECT_EQ(config["middles"], base::parse_json("[8, 16, 32]"));
  const Outcome decoder = run({"export", "decoder", "--subnet", "1:8", "--out", "one-layer", "--dtype", "bf16"});
  EXPECT_EQ(decoder.code, 0) << decoder.output;
  EXPECT_THAT(decoder.output, HasSubstr("it has no batch norms to calibrate"));
  const base::Json llama = base::parse_json(scratch->text_of("one-layer/config.json"));
  EXPECT_EQ(llama["num_hidden_layers"], 1);
  EXPECT_EQ(llama["intermediate_size"], 8);
  EXPECT_EQ(llama["architectures"][0], "LlamaForCausalLM");
  const Outcome said = cairn(*scratch, {"generate", "one-layer", "--prompt", "A", "--tokens", "3"});
  EXPECT_EQ(said.code, 0) << said.output;
}

TEST_F(SupernetCommand, RefusesWhatThereIsNot) {
  EXPECT_THAT(refused({"export", "nowhere", "--subnet", "1:8", "--out", "x"}), HasSubstr("nowhere: no run there"));
  EXPECT_THAT(refused({"export", "cnn", "--subnet", "1:8", "--out", "x"}), HasSubstr("1 depths, and the model 2 stages"));
  EXPECT_THAT(refused({"export", "cnn", "--subnet", "1,1:8,24", "--out", "x"}), HasSubstr("24 channels in stages.1.0 were never trained"));
  EXPECT_THAT(refused({"export", "decoder", "--subnet", "2:16", "--out", "x"}), HasSubstr("16 channels in layers.0 were never trained"));
  EXPECT_THAT(refused({"search", "cnn", "--flops", "1"}), HasSubstr("the smallest network takes"));
  EXPECT_THAT(refused({"search", "cnn", "--flops", "1X"}), HasSubstr("--flops 1X"));
  scratch->file("plain.toml", "data = {kind = \"spirals\"}\nmodel = {kind = \"classifier\"}\ntrain = {steps = 2, global_batch = 8}\n");
  ASSERT_EQ(cairn(*scratch, {"train", "plain.toml", "--out", "plain"}).code, 0);
  EXPECT_THAT(refused({"search", "plain"}), HasSubstr("its recipe has no [supernet]"));
}

}  // namespace
}  // namespace cairn::cli
