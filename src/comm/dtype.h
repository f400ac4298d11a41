#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn::comm {

// The element type of a buffer. The names are those of recipes and files.
enum class Dtype : uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

// The reduction.
enum class Reduce : uint8_t { sum, max, min };

int64_t size_of(Dtype dtype);
std::string_view name(Dtype dtype);
std::string_view name(Reduce reduce);

// out[i] = sources[0][i] op sources[1][i] op ..., always from left to right, so that the result does not depend on the order of arrival.
// bf16 and f16 are summed in float and rounded once. `out` may be one of the sources.
void combine(Reduce reduce, Dtype dtype, void* out, std::span<const void* const> sources, int64_t count);

// out[i] += in[i].
void add_into(Dtype dtype, void* out, const void* in, int64_t count);

}  // namespace cairn::comm
