#pragma once
#include <cstdint>

// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3; SC 2011). A block cipher used as a generator:
// counter (c0, c1, c2, c3) and key (k0, k1) give four random 32-bit words; different counters give independent words. One of ten rounds:
//   (h0, l0) = 0xD2511F53 c0,  (h1, l1) = 0xCD9E8D57 c2      64-bit products, high and low word
//   (c0, c1, c2, c3) = (h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0)
//   (k0, k1) += (0x9E3779B9, 0xBB67AE85)
// Plain arithmetic without a library call, so that CUDA kernels that include this file are bitwise identical to the CPU.
#ifdef __CUDACC__
#define CAIRN_HOST_DEVICE __host__ __device__
#else
#define CAIRN_HOST_DEVICE
#endif

namespace cairn::base {

struct Words4 {
  uint32_t word[4];
  friend bool operator==(const Words4&, const Words4&) = default;
};

// Sixteen random bytes: a function of counter and key alone.
CAIRN_HOST_DEVICE constexpr Words4 philox(Words4 counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57} * c2;
    const uint32_t next0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    const uint32_t next2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(product1);
    c3 = static_cast<uint32_t>(product0);
    c0 = next0;
    c2 = next2;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// Words 4 * block to 4 * block + 3 of base::Random::bits32, for the key and stream of a Random.
CAIRN_HOST_DEVICE constexpr Words4 random_words(uint64_t key, uint64_t stream, uint64_t block) {
  return philox({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(stream),
                  static_cast<uint32_t>(stream >> 32)}},
                static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

}  // namespace cairn::base
