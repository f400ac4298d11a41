// Snapshots that several ranks write together.
#include "snapshot/rank_part.h"

#include <fstream>
#include <random>

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "mesh/local_shard.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;

struct Whole {
  std::string name;
  at::Tensor value;
};

// A run's state, of odd sizes.
std::vector<Whole> whole_state() {
  return {{"embed", at::randn({37, 6})},
          {"fused", at::randn({5, 18})},
          {"norm", at::randn({7})},
          {"scale", at::randn({})},
          {"kernel", at::randn({4, 3, 5, 2})}};
}

// Cuts [0, size) into `parts` intervals, each rank's list, at random.
std::vector<std::vector<mesh::Interval>> random_split(int64_t size, int parts, std::mt19937& random) {
  std::vector<int64_t> borders{0, size};
  for (int i = 1; i < parts; ++i) borders.push_back(std::uniform_int_distribution<int64_t>(0, size)(random));
  std::sort(borders.begin(), borders.end());
  std::vector<std::vector<mesh::Interval>> split(static_cast<size_t>(parts));
  for (int i = 0; i < parts; ++i)
    split[static_cast<size_t>(i)].push_back({borders[static_cast<size_t>(i)], borders[static_cast<size_t>(i) + 1]});
  return split;
}

// Fragments that have all of a tensor, for `tp` x `shards` ranks: split along one dim, then each local tensor cut flat.
std::vector<mesh::Fragment> random_fragments(const at::Tensor& value, int tp, int shards, std::mt19937& random) {
  std::vector<mesh::Fragment> fragments;
  const int64_t dims = value.dim();
  const auto dim = dims == 0 ? -1 : std::uniform_int_distribution<int64_t>(0, dims - 1)(random);
  const auto split = dims == 0 ? std::vector<std::vector<mesh::Interval>>{} : random_split(value.size(dim), tp, random);
  for (int t = 0; t < tp; ++t) {
    mesh::LocalShard shard;
    int64_t elements = 1;
    for (int64_t d = 0; d < dims; ++d) {
      shard.dims.push_back(d == dim ? split[static_cast<size_t>(t)] : std::vector<mesh::Interval>{{0, value.size(d)}});
      elements *= shard.dims.back().front().length();
    }
    for (int s = 0; s < shards; ++s) {
      const mesh::Interval part = mesh::even_part(elements, shards, s);
      const bool has = dims > 0 || t == 0;  // a scalar has one owner
      fragments.push_back({shard, has ? part : mesh::Interval{0, 0}});
    }
  }
  return fragments;
}

at::Tensor elements_of(const at::Tensor& whole, const mesh::Fragment& fragment) {
  return mesh::cut_out(whole, fragment.local_shard)
      .reshape({-1})
      .narrow(0, fragment.elements.begin, fragment.elements.length())
      .clone();
}

// The parts of all ranks of a random layout.
std::vector<RankPart> random_parts(const std::vector<Whole>& state, int tp, int shards, std::mt19937& random) {
  std::vector<RankPart> parts(static_cast<size_t>(tp * shards));
  std::vector<TensorEntry> entries;
  for (const Whole& one : state) entries.push_back({.name = one.name, .dtype = SafetensorsDtype::f32, .shape = one.value.sizes().vec()});
  for (size_t r = 0; r < parts.size(); ++r) {
    parts[r].rank = static_cast<int>(r);
    parts[r].writes_headers = r == 0;
    parts[r].shared["model"].tensors = entries;
  }
  for (size_t i = 0; i < state.size(); ++i) {
    const std::vector<mesh::Fragment> weights = random_fragments(state[i].value, tp, shards, random),
                                      moments = random_fragments(state[i].value, tp, shards, random);
    for (size_t r = 0; r < parts.size(); ++r) {
      if (weights[r].elements.length() > 0)
        parts[r].shared["model"].parts.push_back({i, weights[r], elements_of(state[i].value, weights[r])});
      if (moments[r].elements.length() > 0)
        parts[r].own.push_back(
            {"optimizer", state[i].name, state[i].value.sizes().vec(), moments[r], elements_of(state[i].value * 2, moments[r])});
    }
  }
  return parts;
}

Vote write_all(const std::filesystem::path& folder, const RankPart& part, const base::Disk& disk) {
  PartWriter writer(folder, part, disk);
  for (const WriteBlock& block : writer.blocks()) {
    const at::Tensor host = block.data.contiguous();
    writer.write(block, {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  return writer.finish();
}

std::string save_parts(const std::string& run, int64_t step, const std::vector<RankPart>& parts,
                       const base::Disk& disk = base::real_disk()) {
  StagingFolder staging(run, step, 0, disk);
  std::vector<Vote> votes;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part)  // in any order
    votes.push_back(parse_vote(format_vote(write_all(staging.path(), *part, disk)), "vote"));
  return commit_parts(run, staging, {.step = step, .tensors = {}, .texts = {{"training/state.json", "{}"}}, .version = "1"}, votes, {},
                      disk);
}

void expect_state(const OpenSnapshot& found, const std::vector<Whole>& state, const std::string& what) {
  for (const auto& [section, factor] : {std::pair{"model", 1}, std::pair{"optimizer", 2}}) {
    mesh::NamedTensors into;
    for (const Whole& one : state) into.push_back({one.name, at::empty_like(one.value)});
    found.load_into(section, into);
    for (size_t i = 0; i < state.size(); ++i)
      EXPECT_TRUE(at::equal(into[i].tensor, state[i].value * factor)) << what << ": " << section << " " << state[i].name;
  }
}

TEST(RankParts, GiveTheWholeStateWhateverTheLayout) {
  const harness::ScratchFolder scratch;
  scratch.file("recipe.toml", "");
  std::mt19937 random(5);
  const std::vector<Whole> state = whole_state();
  int64_t step = 0;
  for (const int tp : {1, 2, 3})
    for (const int shards : {1, 2, 5}) {
      const std::string path = save_parts(scratch.path().string(), ++step, random_parts(state, tp, shards, random));
      const OpenSnapshot found = open(path);
      EXPECT_THAT(found.sections(), testing::ElementsAre("model", "optimizer"));
      expect_state(found, state, std::to_string(tp) + " x " + std::to_string(shards));
    }
}

// Where damage lies is named, whatever it hits.
TEST(RankParts, FindAByteThatWasChanged) {
  const harness::ScratchFolder scratch;
  scratch.file("recipe.toml", "");
  std::mt19937 random(6);
  const std::vector<Whole> state = whole_state();
  const std::string path = save_parts(scratch.path().string(), 1, random_parts(state, 2, 2, random));
  for (const char* name : {"model.safetensors", "training/rank-00000.safetensors", "training/rank-00003.safetensors"}) {
    const std::filesystem::path file = std::filesystem::path(path) / name;
    const std::string before = base::read_file(file, 1 << 20);
    for (size_t at = 0; at < before.size(); at += 37) {
      std::string changed = before;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      std::ofstream(file, std::ios::binary) << changed;
      try {
        open(path);
        ADD_FAILURE() << name << ": byte " << at;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
        EXPECT_THAT(error.what(), HasSubstr(name));
      }
    }
    std::ofstream(file, std::ios::binary) << before;
  }
  expect_state(open(path), state, "mended");
}

TEST(RankParts, RefuseRanksThatDoNotAgree) {
  const harness::ScratchFolder scratch;
  scratch.file("recipe.toml", "");
  std::mt19937 random(7);
  std::vector<RankPart> parts = random_parts(whole_state(), 1, 2, random);
  parts[1].shared["model"].parts.pop_back();  // nobody writes that part
  EXPECT_THROW(save_parts(scratch.path().string(), 1, parts), Error);
  EXPECT_TRUE(list(scratch.path().string()).empty());
}

}  // namespace
}  // namespace cairn::snapshot
