#include "evaluate/embed.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "data/samples/document_starts.h"
#include "data/samples/packer.h"
#include "data/search/rows.h"
#include "kernels/aten.h"

namespace cairn::evaluate {
namespace {

constexpr int64_t kOpenRows = 64;
constexpr size_t kNamed = 10;

// A document in a row of a batch.
struct Segment {
  int64_t place = 0;  // among the documents that are asked for
  int64_t begin = 0, count = 0;
};

// The rows of one pass.
struct EmbedRows {
  int64_t length = 0;
  std::vector<std::vector<Segment>> rows;
};

std::vector<EmbedRows> plan_unpacked(const std::vector<std::vector<int64_t>>& tokens, const EmbedOptions& options) {
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return tokens[a].size() > tokens[b].size(); });
  std::vector<EmbedRows> passes;
  for (const size_t place : order) {
    const auto count = static_cast<int64_t>(tokens[place].size());
    const bool fits =
        !passes.empty() && (static_cast<int64_t>(passes.back().rows.size()) + 1) * passes.back().length <= options.batch_tokens;
    if (!fits) passes.push_back({.length = count, .rows = {}});
    passes.back().rows.push_back({{static_cast<int64_t>(place), 0, count}});
  }
  return passes;
}

std::vector<EmbedRows> plan_packed(const std::vector<std::vector<int64_t>>& tokens, const EmbedOptions& options) {
  int64_t length = 1;
  for (const auto& one : tokens) length = std::max(length, static_cast<int64_t>(one.size()));
  length = std::max(length, std::min(options.max_tokens, options.batch_tokens));
  data::Packer packer(length, kOpenRows);
  std::vector<std::vector<Segment>> rows;
  for (size_t place = 0; place < tokens.size(); ++place) {
    const auto count = static_cast<int64_t>(tokens[place].size());
    const auto row = static_cast<size_t>(packer.place(count));
    if (row >= rows.size()) rows.resize(row + 1);
    const int64_t begin = rows[row].empty() ? 0 : rows[row].back().begin + rows[row].back().count;
    rows[row].push_back({static_cast<int64_t>(place), begin, count});
  }
  std::vector<EmbedRows> passes;
  const auto together = static_cast<size_t>(std::max<int64_t>(1, options.batch_tokens / length));
  for (size_t first = 0; first < rows.size(); first += together) {
    passes.push_back({.length = length, .rows = {}});
    for (size_t row = first; row < std::min(rows.size(), first + together); ++row) passes.back().rows.push_back(std::move(rows[row]));
  }
  return passes;
}

void set_weights(float* weights, int64_t count, Pooling pooling) {
  const auto all = static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    switch (pooling) {
      case Pooling::weighted_mean:
        weights[i] = static_cast<float>(2.0 * static_cast<double>(i + 1) / (all * (all + 1)));
        break;
      case Pooling::mean:
        weights[i] = static_cast<float>(1 / all);
        break;
      case Pooling::last:
        weights[i] = i + 1 == count ? 1.0f : 0.0f;
        break;
    }
  }
}

mesh::Batch batch_of(const EmbedRows& pass, const std::vector<std::vector<int64_t>>& tokens, const EmbedOptions& options) {
  const auto rows = static_cast<int64_t>(pass.rows.size());
  size_t most = 1;
  for (const auto& row : pass.rows) most = std::max(most, row.size());
  const at::Tensor ids = at::zeros({rows, pass.length}, at::kLong), documents = at::full({rows, pass.length}, -1, at::kLong),
                   positions = at::zeros({rows, pass.length}, at::kLong), pool = at::zeros({rows, static_cast<int64_t>(most), pass.length});
  for (int64_t r = 0; r < rows; ++r) {
    const auto& row = pass.rows[static_cast<size_t>(r)];
    for (size_t v = 0; v < row.size(); ++v) {
      const Segment& one = row[v];
      const int64_t at = r * pass.length + one.begin;
      std::ranges::copy(tokens[static_cast<size_t>(one.place)], ids.mutable_data_ptr<int64_t>() + at);
      std::fill_n(documents.mutable_data_ptr<int64_t>() + at, one.count, one.place);
      std::iota(positions.mutable_data_ptr<int64_t>() + at, positions.mutable_data_ptr<int64_t>() + at + one.count, int64_t{0});
      set_weights(pool.mutable_data_ptr<float>() + (r * static_cast<int64_t>(most) + static_cast<int64_t>(v)) * pass.length + one.begin,
                  one.count, options.pooling);
    }
  }
  mesh::Batch batch;
  batch.ids = at::arange(rows, at::kLong);
  batch.fields["tokens"] = {ids};
  batch.fields["pool"] = {pool};
  if (options.packs) {
    batch.fields["documents"] = {documents};
    batch.fields["positions"] = {positions};
  }
  return batch;
}

[[noreturn]] void refuse_documents(std::vector<int64_t> documents, std::string_view why) {
  const size_t all = documents.size();
  if (all > kNamed) documents.resize(kNamed);
  base::fail_input("documents {}{}: {}", fmt::join(documents, ", "), all > kNamed ? fmt::format(" and {} more", all - kNamed) : "", why);
}

// Scales rows to unit length, in place. Returns the rows that cannot be.
std::vector<int64_t> scale_to_unit(const at::Tensor& vectors) {
  auto* x = vectors.mutable_data_ptr<float>();
  const int64_t dim = vectors.size(1);
  std::vector<int64_t> bad;
  for (int64_t row = 0; row < vectors.size(0); ++row) {
    const float square = data::scalar_product(x + row * dim, x + row * dim, dim);
    if (!std::isfinite(square) || square <= 0) {
      bad.push_back(row);
      continue;
    }
    const float length = std::sqrt(square);
    for (int64_t i = 0; i < dim; ++i) x[row * dim + i] /= length;
  }
  return bad;
}

}  // namespace

std::vector<int64_t> embedded_tokens(const data::Pool& pool, int64_t document, const EmbedOptions& options) {
  std::vector<int64_t> tokens;
  if (options.text == EmbeddedText::conversation) {
    pool.read(document, options.max_tokens, tokens, nullptr);
    return tokens;
  }
  std::vector<bool> targets;
  pool.read(document, pool.tokens_in(document), tokens, &targets);
  const auto first = static_cast<size_t>(std::ranges::find(targets, true) - targets.begin());
  if (options.text == EmbeddedText::prompt) {
    tokens.resize(first);
  } else if (options.text == EmbeddedText::first_turn) {
    tokens.resize(
        static_cast<size_t>(std::find(targets.begin() + static_cast<std::ptrdiff_t>(first), targets.end(), false) - targets.begin()));
  } else {
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size(); ++i)
      if (targets[i]) tokens[kept++] = tokens[i];
    tokens.resize(kept);
  }
  if (static_cast<int64_t>(tokens.size()) > options.max_tokens) tokens.resize(static_cast<size_t>(options.max_tokens));
  return tokens;
}

at::Tensor embed_documents(const data::Pool& pool, int64_t first, int64_t count, const EmbedOptions& options, at::Device device,
                           const Encode& encode) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<int64_t>> tokens;
  std::vector<int64_t> empty;
  for (int64_t document = first; document < first + count; ++document) {
    tokens.push_back(embedded_tokens(pool, document, options));
    if (tokens.back().empty()) empty.push_back(document);
  }
  if (!empty.empty())
    refuse_documents(empty, fmt::format("they have nothing that --text {} reads. Choose another --text, or leave them out.",
                                        base::enum_name<EmbeddedText>(kEmbeddedTextNames, options.text)));
  std::vector<at::Tensor> parts;  // still on the device, in the order of `places`
  std::vector<int64_t> places;
  for (const EmbedRows& pass : options.packs ? plan_packed(tokens, options) : plan_unpacked(tokens, options)) {
    mesh::Batch batch = batch_of(pass, tokens, options);
    if (device.is_cuda()) data::add_document_starts(batch);
    const at::Tensor vectors = encode(mesh::to_device(batch, device));
    if (!vectors.defined()) continue;
    std::vector<int64_t> slots;
    for (size_t r = 0; r < pass.rows.size(); ++r)
      for (size_t v = 0; v < pass.rows[r].size(); ++v) {
        slots.push_back(static_cast<int64_t>(r) * vectors.size(1) + static_cast<int64_t>(v));
        places.push_back(pass.rows[r][v].place);
      }
    const at::Tensor flat = vectors.view({-1, vectors.size(2)});
    parts.push_back(static_cast<int64_t>(slots.size()) == flat.size(0) ? flat
                                                                       : flat.index_select(0, at::tensor(slots, at::kLong).to(device)));
  }
  if (parts.empty()) return {};
  const at::Tensor found = at::cat(parts).cpu(), vectors = at::empty_like(found);
  vectors.index_copy_(0, at::tensor(places, at::kLong), found);
  if (std::vector<int64_t> bad = scale_to_unit(vectors); !bad.empty()) {
    for (int64_t& one : bad) one += first;
    refuse_documents(bad, "their vectors are not finite or zero: the model cannot be used to compare them");
  }
  return vectors;
}

}  // namespace cairn::evaluate
