// The look of a report: its style sheet, its mark, and the small script behind the tooltips.
#pragma once

namespace cairn::train {

extern const char* const kReportStyle;   // the content of <style>
extern const char* const kReportScript;  // the content of <script>; the page reads well without it
extern const char* const kReportMark;    // the cairn beside the title, as SVG

}  // namespace cairn::train
