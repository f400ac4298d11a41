#include "snapshot/llama2c.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"
#include "snapshot/scratch_folder.h"

namespace cairn::snapshot {
namespace {

using testing::HasSubstr;

using Header = std::array<int32_t, 7>;
constexpr Header kGood{8, 6, 2, 4, 2, 5, 9};  // dim, hidden, layers, heads, kv heads, vocab (shared), length

std::string bytes_of(const Header& header, size_t floats) {
  std::string bytes(28 + 4 * floats, '\0');
  std::memcpy(bytes.data(), header.data(), 28);
  for (size_t i = 0; i < floats; ++i) {
    const float value = static_cast<float>(std::sin(static_cast<double>(i) * 1.7));
    std::memcpy(bytes.data() + 28 + 4 * i, &value, 4);
  }
  return bytes;
}

// Floats of the file, written down from the format's own description.
size_t floats_of(const Header& h) {
  const int64_t dim = h[0], hidden = h[1], layers = h[2], head = dim / h[3], kv = head * h[4], vocab = std::abs(h[5]);
  const int64_t per_layer = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * hidden;
  return static_cast<size_t>(vocab * dim * (h[5] < 0 ? 2 : 1) + layers * per_layer + dim + h[6] * head);
}

std::string lie_of(const std::string& bytes) {
  const ScratchFolder scratch;
  std::ofstream(scratch / "m.bin", std::ios::binary) << bytes;
  try {
    read_llama2c(scratch / "m.bin");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// llama2.c's own forward pass at one token after another, in plain loops: neighbours are rotated together.
std::vector<double> logits_by_llama2c(const Header& h, const std::vector<float>& weights, const std::vector<int64_t>& tokens) {
  const size_t dim = static_cast<size_t>(h[0]), hidden = static_cast<size_t>(h[1]), layers = static_cast<size_t>(h[2]),
               heads = static_cast<size_t>(h[3]), kv_heads = static_cast<size_t>(h[4]), vocab = static_cast<size_t>(h[5]),
               head = dim / heads, kv = head * kv_heads;
  const float* at = weights.data();
  const auto take = [&at](size_t n) { return std::exchange(at, at + n); };
  const float *table = take(vocab * dim), *att = take(layers * dim), *wq = take(layers * dim * dim), *wk = take(layers * kv * dim),
              *wv = take(layers * kv * dim), *wo = take(layers * dim * dim), *ffn = take(layers * dim), *w1 = take(layers * hidden * dim),
              *w2 = take(layers * dim * hidden), *w3 = take(layers * hidden * dim), *last = take(dim);
  using Vec = std::vector<double>;
  const auto norm = [&](const Vec& x, const float* gain) {
    double squares = 0;
    for (double v : x) squares += v * v;
    Vec y(x);
    for (size_t i = 0; i < x.size(); ++i) y[i] *= gain[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    return y;
  };
  const auto times = [](const float* w, const Vec& x, size_t out) {
    Vec y(out, 0);
    for (size_t o = 0; o < out; ++o)
      for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
    return y;
  };
  std::vector<std::vector<Vec>> keys(layers), values(layers);
  Vec x;
  for (size_t position = 0; position < tokens.size(); ++position) {
    const float* row = table + static_cast<size_t>(tokens[position]) * dim;
    x.assign(row, row + dim);
    for (size_t l = 0; l < layers; ++l) {
      const Vec n = norm(x, att + l * dim);
      Vec q = times(wq + l * dim * dim, n, dim), k = times(wk + l * kv * dim, n, kv);
      const auto turn = [&](Vec& v) {
        for (size_t i = 0; i < v.size(); i += 2) {
          const double angle =
              static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i % head) / static_cast<double>(head));
          const double a = v[i], b = v[i + 1];
          v[i] = a * std::cos(angle) - b * std::sin(angle);
          v[i + 1] = a * std::sin(angle) + b * std::cos(angle);
        }
      };
      turn(q), turn(k);
      keys[l].push_back(k), values[l].push_back(times(wv + l * kv * dim, n, kv));
      Vec mixed(dim, 0);
      for (size_t hd = 0; hd < heads; ++hd) {
        const size_t from = hd / (heads / kv_heads) * head;
        Vec weight;
        double total = 0;
        for (size_t p = 0; p <= position; ++p) {
          double score = 0;
          for (size_t d = 0; d < head; ++d) score += q[hd * head + d] * keys[l][p][from + d];
          weight.push_back(std::exp(score / std::sqrt(static_cast<double>(head))));
          total += weight.back();
        }
        for (size_t p = 0; p <= position; ++p)
          for (size_t d = 0; d < head; ++d) mixed[hd * head + d] += weight[p] / total * values[l][p][from + d];
      }
      const Vec out = times(wo + l * dim * dim, mixed, dim);
      for (size_t i = 0; i < dim; ++i) x[i] += out[i];
      const Vec m = norm(x, ffn + l * dim);
      Vec gate = times(w1 + l * hidden * dim, m, hidden);
      const Vec up = times(w3 + l * hidden * dim, m, hidden);
      for (size_t i = 0; i < hidden; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      const Vec down = times(w2 + l * dim * hidden, gate, dim);
      for (size_t i = 0; i < dim; ++i) x[i] += down[i];
    }
  }
  return times(table, norm(x, last), vocab);
}

TEST(Llama2c, GivesTheLogitsOfItsOwnForwardPass) {
  const ScratchFolder scratch;
  const std::string bytes = bytes_of(kGood, floats_of(kGood));
  std::ofstream(scratch / "m.bin", std::ios::binary) << bytes;
  const Llama2c read = read_llama2c(scratch / "m.bin");
  EXPECT_TRUE(read.shape.tied);
  EXPECT_EQ(read.shape.length, 9);
  const auto decoder = model::make_decoder(read.shape);
  const model::FlatWeights weights(decoder->layout(), at::empty({decoder->elements()}));
  for (const mesh::NamedTensor& into : weights.layout().views(weights.flat()))
    for (const mesh::NamedTensor& from : read.parameters)
      if (from.name == into.name) into.tensor.copy_(from.tensor);
  model::Buffers buffers = decoder->make_buffers(at::kFloat);
  const mesh::Axes alone;
  model::Values values;
  values.put("tokens", at::tensor({3, 1, 4, 0, 2}, at::kLong).view({1, -1}));
  at::NoGradGuard no_grad;
  for (const auto& block : decoder->blocks()) block->forward(values, nullptr, {.weights = weights, .buffers = buffers, .axes = alone});
  std::vector<float> raw(floats_of(kGood));
  std::memcpy(raw.data(), bytes.data() + 28, raw.size() * 4);
  const std::vector<double> expected = logits_by_llama2c(kGood, raw, {3, 1, 4, 0, 2});
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(values.get("logits")[0][4][static_cast<int64_t>(i)].item<float>(), expected[i], 1e-4 * std::abs(expected[i]) + 1e-4);
}

TEST(Llama2c, ReadsAHeadOfItsOwnWhereTheVocabularyIsNegative) {
  const ScratchFolder scratch;
  Header header = kGood;
  header[5] = -5;
  std::ofstream(scratch / "m.bin", std::ios::binary) << bytes_of(header, floats_of(header));
  const Llama2c read = read_llama2c(scratch / "m.bin");
  EXPECT_FALSE(read.shape.tied);
  EXPECT_EQ(read.parameters.back().name, "lm_head.weight");
  const size_t first = floats_of(header) - 40;  // the last 5 x 8
  EXPECT_EQ(read.parameters.back().tensor[0][0].item<float>(), static_cast<float>(std::sin(static_cast<double>(first) * 1.7)));
}

TEST(Llama2c, RefusesFilesThatLie) {
  EXPECT_THAT(lie_of("abc"), HasSubstr("3 bytes is too short"));
  EXPECT_THAT(lie_of(bytes_of(kGood, floats_of(kGood) - 1)), HasSubstr("its header speaks of"));
  EXPECT_THAT(lie_of(bytes_of(kGood, floats_of(kGood) + 1)), HasSubstr("its header speaks of"));
  const auto with = [](size_t at, int32_t value) {
    Header header = kGood;
    header[at] = value;
    return lie_of(bytes_of(header, 10));
  };
  EXPECT_THAT(with(0, 0), HasSubstr("dim = 0 in its header"));
  EXPECT_THAT(with(2, -1), HasSubstr("n_layers = -1"));
  EXPECT_THAT(with(5, std::numeric_limits<int32_t>::min()), HasSubstr("vocab_size = -2147483648"));
  EXPECT_THAT(with(3, 3), HasSubstr("cannot work"));
  EXPECT_THAT(with(6, 1 << 30), HasSubstr("seq_len"));
}

}  // namespace
}  // namespace cairn::snapshot
