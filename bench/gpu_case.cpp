#include "bench/gpu_case.h"

#include "base/did_you_mean.h"

namespace cairn::study {

int64_t GpuCase::parameters() const {
  const int64_t q = heads * head_dim, kv = kv_heads * head_dim;
  const int64_t layer = embed * (2 * q + 2 * kv) + 3 * embed * mlp + 2 * embed;
  return vocab * embed * (tied ? 1 : 2) + layers * layer + embed;
}

double GpuCase::flops() const {
  const int64_t matrices = parameters() - (2 * layers + 1) * embed - (tied ? 0 : vocab * embed);
  const double attention = 2.0 * static_cast<double>(batch * length) * static_cast<double>(length * heads * head_dim * layers);
  return 6.0 * static_cast<double>(tokens()) * static_cast<double>(matrices) + 3 * attention;
}

const std::vector<GpuCase>& gpu_cases() {
  static const std::vector<GpuCase> list{
      // name, vocab, embed, layers, heads, kv_heads, head_dim, mlp, tied, batch, length, steps, limit_s, {goals}, same_weights
      {"A", 50304, 768, 12, 12, 12, 64, 2048, true, 64, 1024, 300, 210, {1.08, 1.2, 0.8}, true},
      {"B", 128256, 2048, 16, 32, 8, 64, 8192, true, 6, 4096, 50, 240, {1.03, 1.3, 0.8}, true},
      {"C", 128256, 4096, 8, 32, 8, 128, 14336, true, 2, 8192, 50, 240, {1.02, 1.35, 0.95}, true},
      {"qwen-0.5b", 151936, 896, 24, 14, 2, 64, 4864, true, 16, 2048, 40, 180, {1, 1, 1}, false},
      {"qwen-1.5b", 151936, 1536, 28, 12, 2, 128, 8960, true, 8, 2048, 40, 180, {1, 1, 1}, false},
      {"qwen-3b", 151936, 2048, 36, 16, 2, 128, 11008, true, 8, 2048, 30, 240, {1, 1, 1}, false},
      {"qwen-7b", 152064, 3584, 28, 28, 4, 128, 18944, false, 4, 2048, 30, 240, {1, 1, 1}, false},
      {"tiny", 512, 64, 2, 4, 2, 16, 160, true, 4, 64, 30, 120, {1, 1, 1}, true}};
  return list;
}

std::vector<GpuCase> gpu_cases_named(const std::string& only) {
  std::vector<GpuCase> chosen;
  std::vector<std::string> names{"qwen"};
  for (const GpuCase& one : gpu_cases()) {
    names.push_back(one.name);
    const bool usual = one.name == "A" || one.name == "B" || one.name == "C";
    if (only == one.name || (only.empty() && usual) || (only == "qwen" && one.name.starts_with("qwen-"))) chosen.push_back(one);
  }
  if (chosen.empty()) base::fail_unknown("case", only, names);
  return chosen;
}

}  // namespace cairn::study
