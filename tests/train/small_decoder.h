#pragma once
#include <string>
#include <vector>

#include "base/recipe.h"

namespace cairn::train {

// A decoder of 3 layers and odd sizes on little text, as tests of layouts train it.
inline base::Recipe small_decoder(const std::string& family, const std::vector<std::string>& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    layers = 3
    embed = 24
    heads = 4
    kv_heads = 2
    mlp = 44
    [data]
    tokenizer = "bytes"
    length = 19
    stories_bytes = 20000
    [train]
    global_batch = 7
    [log]
    tensorboard = false
    trace = false
    samples = 0
    [snapshot]
    every = 0
    [eval]
    every = 2
    samples = 5
  )",
                                            "small decoder");
  recipe.set("model.kind=" + family);
  if (family == "gpt2") recipe.set("model.kv_heads=4");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

}  // namespace cairn::train
