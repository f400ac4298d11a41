// Codes that are made on a GPU are the bytes that the host makes.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/codec.h"
#include "kernels/aten.h"
#include "kernels/codec.h"

namespace cairn::sync {
namespace {

at::Tensor odd_values(int64_t count, bool odd) {
  at::Tensor values = at::empty({count}, at::kFloat);
  const base::Random random = base::Random(5).for_purpose("codes");
  float* at = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i)
    at[i] = random.normal(static_cast<uint64_t>(i)) * std::ldexp(1.0F, static_cast<int>(i / 100 % 60) - 30);
  if (!odd) return values;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> some{inf, -inf, std::nanf(""), 0.0F, -0.0F, 1e-45F, -1e-40F, 3.4e38F, 1e-36F, 65504.0F};
  for (int64_t i = 0; i < count; i += 37) at[i] = some[static_cast<size_t>(i / 37) % some.size()];
  return values;
}

TEST(CodecOnCuda, HasTheBytesOfTheHost) {
  if (!kernels::has_cuda_codec("e3m0") || !at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const std::string name : {"bf16", "fp8", "fp8_e5m2", "int8", "e3m0"}) {
    const auto codec = comm::make_codec(name);
    for (const int64_t count : {0, 1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 384, 1'000'003})
      for (const bool odd : {false, true}) {
        const at::Tensor values = odd_values(count, odd);
        std::vector<std::byte> expected(static_cast<size_t>(codec->encoded_bytes(count)));
        codec->encode(values.const_data_ptr<float>(), count, expected.data());
        const at::Tensor codes = kernels::encode_on_cuda(name, values.cuda(), codec->encoded_bytes(count));
        const at::Tensor back = codes.cpu();
        EXPECT_EQ(std::memcmp(back.const_data_ptr(), expected.data(), expected.size()), 0) << name << " " << count << " " << odd;
        at::Tensor decoded = at::empty({count}, at::kFloat);
        codec->decode(expected.data(), count, decoded.mutable_data_ptr<float>());
        const at::Tensor on_gpu = kernels::decode_on_cuda(name, codes, count).cpu();
        int64_t different = 0;
        for (int64_t i = 0; i < count; ++i) {
          const float here = decoded.const_data_ptr<float>()[i], there = on_gpu.const_data_ptr<float>()[i];
          const bool same = std::isnan(here) ? std::isnan(there) : std::bit_cast<uint32_t>(here) == std::bit_cast<uint32_t>(there);
          different += same ? 0 : 1;
        }
        EXPECT_EQ(different, 0) << name << " " << count << " " << odd;
      }
  }
}

}  // namespace
}  // namespace cairn::sync
