// A small recipe of a study, for tests.
#pragma once
#include <string>

#include "base/recipe.h"

namespace cairn::study {

inline base::Recipe::File hdee_file(const std::string& more = "") {
  return {R"([model]
layers = 1
embed = 16
heads = 2
kv_heads = 1
mlp = 32
[data]
tokenizer = "bytes"
length = 16
[train]
global_batch = 4
[eval]
every = 0
fraction = 0.2
samples = 4
[log]
tensorboard = false
trace = false
samples = 0
[study]
mode = "steps"
compare = ["uniform"]
uniform_steps = 8
[study.size.s]
mlp = 16
[study.size.m]
[study.size.l]
mlp = 48
[study.line.easy]
size = "s"
steps = 6
domains = ["tales"]
[study.line.hard]
size = "l"
steps = 10
domains = ["sums"]
[study.domain.tales]
path = "tales.txt"
[study.domain.sums]
path = "sums.txt"
)" + more,
          "study.toml"};
}

}  // namespace cairn::study
