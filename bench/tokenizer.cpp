// `cairn bench tokenizer`: encoding on one thread, ours and the PyPI package `tokenizers` in turn, same tokenizer.json, same texts.
#include <chrono>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "bench/peer_python.h"
#include "data/corpus/chunks.h"
#include "data/corpus/source.h"
#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "study/benches.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kRounds = 3;
constexpr int64_t kTextBytes = 4'000'000;
constexpr size_t kPartBytes = 16 << 10;  // a longer document is cut at a line's end: the peer is slow on long ones

struct Measured {
  double megabytes_per_s = 0;
  int64_t ids = 0;
  uint32_t checksum = 0;
};

std::vector<std::string> parts_of(const data::Documents& documents) {
  std::vector<std::string> parts;
  for (int64_t i = 0; i < documents.size(); ++i) {
    std::string_view rest = documents[i];
    while (!rest.empty()) {
      size_t end = rest.size() <= kPartBytes ? rest.size() : rest.rfind('\n', kPartBytes);
      if (end == std::string_view::npos || end == 0) end = rest.find('\n', 1);
      parts.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end, rest.size()));
    }
  }
  return parts;
}

Measured run_ours(const std::string& tokenizer_file, const std::vector<std::string>& texts, double megabytes) {
  const std::unique_ptr<data::Tokenizer> tokenizer = data::open_tokenizer(tokenizer_file);
  const base::RealClock clock;
  Measured m;
  std::vector<int32_t> ids;
  for (int round = 0; round < 2; ++round) {  // the first warms up
    ids.clear();
    const auto began = clock.now();
    for (const std::string& text : texts) tokenizer->encode(text, {}, ids);
    m.megabytes_per_s = megabytes / std::chrono::duration<double>(clock.now() - began).count();
  }
  m.ids = static_cast<int64_t>(ids.size());
  for (const int32_t id : ids) m.checksum = m.checksum * 31 + static_cast<uint32_t>(id);
  return m;
}

Measured run_peer(const std::string& python, const std::string& tokenizer_file, const std::string& text_file, double megabytes,
                  const BenchOptions& options) {
  const base::Json settings = {{"tokenizer", tokenizer_file}, {"text", text_file}, {"between", data::kEndOfText}, {"rounds", 2}};
  const ProcessResult ended = run_program({python, fmt::format("{}/tokenizer_peer.py", CAIRN_BENCH_FOLDER), base::compact(settings)},
                                          fmt::format("{}/peer.log", options.scratch));
  const base::Json result = base::parse_json(ended.output);
  if (ended.exit_code != 0 || !result.is_object()) base::fail_input("the peer's run failed: {}", ended.output);
  return {megabytes / result["seconds"][1].get<double>(), result["ids"].get<int64_t>(), result["checksum"].get<uint32_t>()};
}

}  // namespace

std::vector<BenchRow> bench_tokenizer(const BenchOptions& options, base::Log& log) {
  const std::string python = peer_python(options, log, "tokenizers", {"tokenizers==0.23.3"}, "about 50 MB, half a minute");
  const data::Documents documents = options.data.empty() ? data::generate_stories(1, kTextBytes) : data::read_text(options.data);
  const std::vector<std::string> texts = parts_of(documents);
  const std::string text_file = fmt::format("{}/texts.txt", options.scratch);
  const std::string tokenizer_file = fmt::format("{}/tokenizer.json", options.scratch);
  std::string joined;
  size_t bytes = 0;
  for (const std::string& text : texts) {
    if (!joined.empty()) joined += data::kEndOfText;
    joined += text;
    bytes += text.size();
  }
  base::write_atomically(text_file, joined);
  const double megabytes = static_cast<double>(bytes) / 1e6;
  std::vector<BenchRow> rows;
  const std::string_view whole = documents.text;
  for (const auto& [name, pattern] : {std::pair("gpt2", data::WordPattern::gpt2), std::pair("llama3", data::WordPattern::llama3),
                                      std::pair("qwen2", data::WordPattern::qwen2)}) {
    if (!options.only.empty() && options.only != name) continue;
    const data::BpeTraining training{.vocab = 8192, .pattern = pattern};
    base::write_atomically(tokenizer_file, data::write_tokenizer_json(data::train_bpe(std::span(&whole, 1), training)));
    std::vector<double> ours, peer;
    for (int round = 0; round < kRounds; ++round) {
      log.info("{}: round {} of {}", name, round + 1, kRounds);
      const Measured found[2] = {run_ours(tokenizer_file, texts, megabytes),
                                 run_peer(python, tokenizer_file, text_file, megabytes, options)};
      if (found[0].ids != found[1].ids || found[0].checksum != found[1].checksum)
        base::fail_input("{}: {} ids of ours and {} of the peer are not the same", name, found[0].ids, found[1].ids);
      ours.push_back(found[0].megabytes_per_s);
      peer.push_back(found[1].megabytes_per_s);
    }
    rows.push_back(compare(fmt::format("{} pattern, encode", name), ours, peer, "MB/s", Better::higher, 1.0));
  }
  if (rows.empty()) base::fail_input("--case {}: the cases are gpt2, llama3 and qwen2", options.only);
  return rows;
}

}  // namespace cairn::study
