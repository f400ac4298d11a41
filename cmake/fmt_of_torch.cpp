// The compiled half of the fmt whose headers the torch wheel carries (the wheel exports none). Header-only fmt would cost every
// file that formats anything three seconds more.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
template auto locale_ref::get<std::locale>() const -> std::locale;

namespace detail {

template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<wchar_t>;
template auto decimal_point_impl(locale_ref) -> char;
template auto decimal_point_impl(locale_ref) -> wchar_t;

}  // namespace detail
FMT_END_NAMESPACE
