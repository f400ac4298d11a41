// `cairn bench codecs`: what one core makes of floats and back, by codec, against a copy of the same floats. In turn, after a warm-up. To
// add moves half as much again as to copy.
#include <cstring>
#include <time.h>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "comm/codec.h"
#include "kernels/aten.h"
#include "kernels/codec.h"
#include "study/benches.h"

namespace cairn::study {
namespace {

constexpr int64_t kElements = int64_t{16} << 20;  // 64 MiB of floats: nothing of it stays in a cache
constexpr int kRounds = 15;

// GB of floats in a second of this thread: what else the machine does meanwhile is not counted.
template <typename Work>
double rate(const Work& work) {
  const auto now_s = [] {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double begun = now_s();
  work();
  return 4e-9 * static_cast<double>(kElements) / (now_s() - begun);
}

// On a GPU, against a copy there.
void add_gpu_rows(std::vector<BenchRow>& rows, const BenchOptions& options, base::Log& log) {
  if (!kernels::has_cuda_codec("e3m0") || !at::hasCUDA()) {
    log.info("no GPU here: codecs on one are not measured");
    return;
  }
  constexpr int64_t kOnGpu = int64_t{256} << 20;
  constexpr int kTimes = 20;
  const at::Tensor values = at::full({kOnGpu}, 1e-3, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA)).normal_();
  const auto gpu_rate = [&](const auto& work) {
    const auto settle = [](const at::Tensor& made) { (void)made.narrow(0, 0, 1).cpu(); };  // waits for the GPU
    settle(work());
    const base::RealClock clock;
    at::Tensor last;
    for (int i = 0; i < kTimes; ++i) last = work();
    settle(last);
    return 4e-9 * static_cast<double>(kOnGpu) * kTimes / base::seconds(clock.now());
  };
  for (const std::string& name : comm::codec_names()) {
    if (!kernels::has_cuda_codec(name) || (!options.only.empty() && options.only != name)) continue;
    const int64_t bytes = comm::make_codec(name)->encoded_bytes(kOnGpu);
    const at::Tensor codes = kernels::encode_on_cuda(name, values, bytes);
    std::vector<double> copied, encoded, decoded;
    for (int round = 0; round < kRounds; ++round) {
      copied.push_back(gpu_rate([&] { return values.clone(); }));
      encoded.push_back(gpu_rate([&] { return kernels::encode_on_cuda(name, values, bytes); }));
      decoded.push_back(gpu_rate([&] { return kernels::decode_on_cuda(name, codes, kOnGpu); }));
    }
    rows.push_back(compare(name + " encode on the GPU", encoded, copied, "GB/s", Better::higher, 1));
    rows.push_back(compare(name + " decode on the GPU", decoded, copied, "GB/s", Better::higher, 1));
  }
}

}  // namespace

std::vector<BenchRow> bench_codecs(const BenchOptions& options, base::Log& log) {
  const base::Random random = base::Random(1).for_purpose("bench codecs");
  std::vector<float> values(kElements), back(kElements);
  for (int64_t i = 0; i < kElements; ++i) values[static_cast<size_t>(i)] = 1e-3F * random.normal(static_cast<uint64_t>(i));
  std::vector<BenchRow> rows;
  for (const std::string& name : comm::codec_names()) {
    if (!options.only.empty() && options.only != name) continue;
    const auto codec = comm::make_codec(name);
    std::vector<std::byte> code(static_cast<size_t>(codec->encoded_bytes(kElements)));
    std::vector<double> copied, encoded, decoded, added;
    for (int round = -1; round < kRounds; ++round) {
      const double rates[] = {rate([&] { std::memcpy(back.data(), values.data(), 4 * kElements); }),
                              rate([&] { codec->encode(values.data(), kElements, code.data()); }),
                              rate([&] { codec->decode(code.data(), kElements, back.data()); }),
                              rate([&] { codec->decode_add(code.data(), kElements, back.data()); })};
      if (round < 0) continue;
      copied.push_back(rates[0]);
      encoded.push_back(rates[1]);
      decoded.push_back(rates[2]);
      added.push_back(rates[3]);
    }
    log.info("{}: {} rounds of {} floats", name, kRounds, kElements);
    const double goal = name == "fp16" ? 0.2 : 0.3;  // which no rule uses unless told to
    rows.push_back(compare(name + " encode", encoded, copied, "GB/s", Better::higher, goal));
    rows.push_back(compare(name + " decode", decoded, copied, "GB/s", Better::higher, goal));
    rows.push_back(compare(name + " decode and add", added, copied, "GB/s", Better::higher, goal - 0.05));
  }
  add_gpu_rows(rows, options, log);
  return rows;
}

}  // namespace cairn::study
