#include "proofs/deps_toy.h"

#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include <fmt/format.h>

#include "base/files.h"
#include "base/random.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int64_t kCells = 6, kColours = 6;

template <typename T>
void write_npy(const std::filesystem::path& path, const std::string& type, const std::string& shape, const std::vector<T>& values) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", type, shape);
  header.resize((header.size() + 10 + 64) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(header.size() & 0xff);
  text += static_cast<char>(header.size() >> 8);
  text += header;
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  base::write_atomically(path, text);
}

void write_points(const std::filesystem::path& folder, const std::string& prefix, const base::Random& random,
                  const std::vector<int64_t>& colours, int64_t count) {
  std::vector<float> values;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < count; ++i) {
    std::array<double, 3> point{};
    int64_t cell = 0;
    for (size_t d = 0; d < 3; ++d) {
      const double place = random.uniform(static_cast<uint64_t>(3 * i) + d);
      point[d] = 2 * place - 1;
      cell = cell * kCells + static_cast<int64_t>(place * kCells);
    }
    for (const double x : point) values.push_back(static_cast<float>(x));
    for (const double x : point) values.push_back(static_cast<float>(std::sin(std::numbers::pi * x)));
    for (const double x : point) values.push_back(static_cast<float>(std::cos(std::numbers::pi * x)));
    labels.push_back(colours[static_cast<size_t>(cell)]);
  }
  write_npy(folder / (prefix + "images.npy"), "<f4", fmt::format("({}, 1, 1, 9)", count), values);
  write_npy(folder / (prefix + "labels.npy"), "<i8", fmt::format("({},)", count), labels);
}

constexpr const char* kSupernetTraining = R"(
    [model]
    kind = "cnn"
    [data]
    kind = "images"
    [train]
    global_batch = 64
    [optim]
    kind = "sgd"
    momentum = 0.9
    nesterov = true
    learning_rate = 0.08
    min_lr_ratio = 0
    warmup_steps = 0
    weight_decay = 3e-5
    decay_decoupled = false
    max_grad_norm = 0
    [snapshot]
    every = 0
    last = false
    [eval]
    every = 0
    [log]
    tensorboard = false
    trace = false
  )";

}  // namespace

void write_cube_points(const std::filesystem::path& folder, uint64_t seed, int64_t points, int64_t test_points) {
  base::make_folder(folder);
  const base::Random random = base::Random(seed).for_purpose("cube");
  std::vector<int64_t> colours;
  for (uint64_t i = 0; i < static_cast<uint64_t>(kCells * kCells * kCells); ++i)
    colours.push_back(static_cast<int64_t>(random.for_name("colours").below(i, kColours)));
  write_points(folder, "", random.for_name("points"), colours, points);
  write_points(folder, "test_", random.for_name("test"), colours, test_points);
}

base::Recipe cube_recipe(const ProofOptions& options, const std::filesystem::path& folder, const Assignments& sets) {
  base::Recipe recipe = base::Recipe::parse(fmt::format("{}{}", kSupernetTraining, R"(
    [images]
    size = 1
    channels = 9
    [model.cnn]
    widths = [32, 32, 32]
    depths = [3, 3, 3]
    expand = 4
    kernel = 1
    [supernet]
    depth = [1, 2, 3]
    expand = [1, 2, 4]
  )"),
                                            "proof");
  recipe.set("data.path", folder.string(), "proof");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "--seed");
  return with(std::move(recipe), sets);
}

base::Recipe small_pictures(const ProofOptions& options, const Assignments& sets) {
  base::Recipe recipe = base::Recipe::parse(fmt::format("{}{}", kSupernetTraining, R"(
    [images]
    size = 16
    count = 4000
    held_out = 1000
    [model.cnn]
    widths = [16, 24]
    depths = [3, 3]
    expand = 4
    [supernet]
    depth = [1, 2, 3]
    expand = [1, 2, 4]
  )"),
                                            "proof");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "--seed");
  recipe.set("train.steps=24", "proof");
  if (std::filesystem::is_directory(options.data)) recipe.set("data.path", options.data, "--data");
  return with(std::move(recipe), sets);
}

}  // namespace cairn::study
