#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::comm {

// Compresses float messages. A codec is stateless: the bytes depend on the floats alone and are identical on every machine. It is
// idempotent on finite values: decode(encode(y)) == y for y = decode(encode(x)).
//
// Elements form blocks of `block()`, from the first one on; the last may be shorter. Blocks are coded independently and in order, so a
// message may be cut at any multiple of `block()`: the codes of the pieces concatenate to the code of the whole. Buffers must not overlap;
// codes need no alignment.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;
  virtual int64_t block() const = 0;
  virtual int64_t encoded_bytes(int64_t count) const = 0;

  virtual void encode(const float* in, int64_t count, std::byte* out) const = 0;
  virtual void decode(const std::byte* in, int64_t count, float* out) const = 0;
  virtual void decode_add(const std::byte* in, int64_t count, float* out) const = 0;  // out[i] += decoded[i]
};

// The codec of this name. An unknown name is refused, with the nearest known one.
//
//   name      bytes/element  largest error of an element x in a block with largest magnitude m (both above 2^-110)
//   fp32      4              none
//   bf16      2              |x| 2^-8
//   fp16      2              |x| 2^-11, or 2^-25 where |x| < 2^-14; from 65520 on infinite
//   fp8       1 + 1/128      |x| 2^-4, or m 2^-17 if that is more: e4m3, a power of two per block of 128
//   fp8_e5m2  1 + 1/128      |x| 2^-3, or m 2^-31 if that is more: e5m2, a power of two per block of 128
//   int8      1 + 1/64       m / 253.9: -127 .. 127 and a float scale per block of 256; a block with m < 2^-119 is zero
//   e3m0      1/2 + 1/64     0.42 |x|, or m 2^-6.5 if that is more: a sign, and m (as bf16) times a power of two from 2^-6 to 1, or zero;
//                            blocks of 128; a block with m < 2^-110 is zero
//
// All round to nearest, ties to even; e3m0 in the logarithm. Non-finite values stay as they are, except: infinity becomes nan in fp8 (e4m3
// has no infinity), and one non-finite value makes its whole block nan in int8 and e3m0. In bf16 and fp8, values above 3.1e38 may round to
// infinity.
std::unique_ptr<const Codec> make_codec(std::string_view name);
std::vector<std::string> codec_names();
// A codec in a message header: its index in the list, from 1. The reverse returns "codec 9" for an unknown number.
uint8_t codec_number(std::string_view name);
std::string codec_name(uint8_t number);

}  // namespace cairn::comm
