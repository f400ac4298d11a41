#include "train/report/style.h"

namespace cairn::train {

const char* const kReportStyle =
    R"css(
:root{color-scheme:light dark;--paper:#fbfaf8;--card:#fff;--ink:#1d1c1a;--soft:#6b6862;--faint:#827e76;--rule:#e7e4de;--grid:#efece7;
--loss:#2f5d8a;--raw:#9db8d2;--held:#c2562d;--speed:#3b7a57;--memory:#7a5ea8;--rate:#a8762a;--norm:#5b6470;--accent:#2f5d8a;
--shadow:0 1px 2px rgba(40,34,24,.05),0 4px 16px rgba(40,34,24,.04)}
@media (prefers-color-scheme:dark){:root{--paper:#151514;--card:#1d1d1b;--ink:#ebe8e2;--soft:#a5a199;--faint:#8d8981;--rule:#302f2c;
--grid:#292826;
--loss:#7fb2e5;--raw:#3f5a75;--held:#ef8e62;--speed:#74c297;--memory:#b39ae0;--rate:#dcae62;--norm:#a9b3bf;--accent:#7fb2e5;
--shadow:none}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Liberation Sans",Arial,sans-serif;
font-feature-settings:"kern","liga";-webkit-font-smoothing:antialiased}
main{max-width:1080px;margin:0 auto;padding:56px 32px 72px}
header{display:flex;gap:18px;align-items:center;margin-bottom:36px}
header svg{width:46px;height:46px;flex:none;color:var(--soft)}
h1{font-size:30px;line-height:1.2;letter-spacing:-.018em;font-weight:650;margin:0;overflow-wrap:anywhere}
.kicker{margin:0 0 2px;color:var(--soft);font-size:14px}
h2{font-size:20px;letter-spacing:-.01em;font-weight:620;margin:56px 0 18px}
h3{font-size:15px;font-weight:600;margin:0}
.cards{display:grid;grid-template-columns:repeat(6,1fr);margin:0 0 28px;border:1px solid var(--rule);border-radius:14px;
background:var(--card);box-shadow:var(--shadow);overflow:hidden}
.cards div{padding:18px 18px 16px;box-shadow:1px 1px 0 var(--rule)}
.cards dt{font-size:13px;color:var(--soft)}
.cards dd{margin:0}
.cards .value{font-size:25px;line-height:1.3;letter-spacing:-.02em;font-weight:600;font-variant-numeric:tabular-nums;white-space:nowrap}
.cards .value small{font-size:.58em;font-weight:500;letter-spacing:0;color:var(--soft);margin-left:.25em}
.cards .more{font-size:12.5px;color:var(--faint);font-variant-numeric:tabular-nums}
.plots{display:grid;grid-template-columns:1fr 1fr;gap:20px}
.plot{margin:0;padding:18px 20px 14px;border:1px solid var(--rule);border-radius:14px;background:var(--card);box-shadow:var(--shadow);
min-width:0}
.plot.tall{grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 10px;margin-bottom:16px}
.note{font-size:13px;color:var(--faint)}
.keys{margin-left:auto;display:flex;gap:16px;font-size:13px;color:var(--soft)}
.key::before{content:"";display:inline-block;width:16px;height:3px;border-radius:2px;background:currentColor;margin-right:7px;
vertical-align:middle}
.key.spot::before{width:8px;height:8px;border-radius:50%}
.key.raw::before{background:var(--raw)}.key.loss::before{background:var(--loss)}.key.held::before{background:var(--held)}
.key.speed::before{background:var(--speed)}.key.memory::before{background:var(--memory)}
.frame{padding:0 6px 26px 54px}
.area{position:relative;height:170px}
.tall .area{height:330px}
.area svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible;display:block}
.area path{fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round}
path.grid{stroke:var(--grid);stroke-width:1;stroke-linecap:butt}
path.line{stroke:currentColor;stroke-width:1.75}
path.raw{color:var(--raw);stroke-width:1;opacity:.75}path.loss{color:var(--loss);stroke-width:2.25}path.held{color:var(--held)}
path.speed{color:var(--speed)}
path.memory{color:var(--memory)}path.rate{color:var(--rate)}path.norm{color:var(--norm);stroke-width:1.25}
path.faint{opacity:.32;stroke-width:1}
path.dot{stroke:currentColor;stroke-width:8}path.lone{stroke-width:7;opacity:1}
path.rim{stroke:var(--card);stroke-width:11}
.area .y,.area .x{position:absolute;font-size:12px;line-height:1;color:var(--faint);font-variant-numeric:tabular-nums;
white-space:nowrap}
.area .y{right:calc(100% + 10px);transform:translateY(-50%)}
.area .x{top:calc(100% + 12px);transform:translateX(-50%)}
.area .x.first{transform:none}.area .x.last{transform:translateX(-100%)}
.needle{position:absolute;top:0;bottom:0;width:1px;background:var(--faint);opacity:.6;pointer-events:none}
.tip{position:absolute;top:6px;padding:7px 11px;border-radius:8px;background:var(--ink);color:var(--paper);font-size:12.5px;
line-height:1.5;font-variant-numeric:tabular-nums;white-space:nowrap;pointer-events:none;z-index:2}
.tip div:first-child{opacity:.65}
.sample{margin:0 0 18px;padding:4px 0 4px 24px;border-left:3px solid var(--rule);
font:17.5px/1.65 Charter,"Bitstream Charter","Iowan Old Style",Georgia,"Liberation Serif",serif;max-width:46em;white-space:pre-wrap;
overflow-wrap:anywhere}
.sample b{font-weight:700;color:var(--accent)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:15px}
th{font-weight:500;color:var(--soft);font-size:13px;text-align:left;padding:0 12px 8px 0;border-bottom:1px solid var(--rule)}
td{padding:9px 12px 9px 0;border-bottom:1px solid var(--rule)}
td.share,th.share{padding-left:20px}
tr.sum td{font-weight:600;border-bottom:0}
.number{text-align:right}
td.share{width:34%;padding-right:0}
th:last-child{padding-right:0}
.track{height:7px;border-radius:4px;background:var(--grid);overflow:hidden}.track i{display:block;height:100%;border-radius:4px;
background:var(--accent)}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(400px,100%),1fr));gap:0 40px;margin:0}
.facts div{display:flex;gap:14px;padding:8px 0;border-bottom:1px solid var(--rule)}
.facts dt{color:var(--soft);flex:0 0 118px}.facts dd{margin:0;min-width:0;overflow-wrap:anywhere}
details{margin-top:56px;border:1px solid var(--rule);border-radius:14px;background:var(--card);box-shadow:var(--shadow)}
summary{cursor:pointer;padding:15px 20px;font-weight:600;border-radius:14px}
summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
pre{margin:0;padding:4px 20px 20px;overflow-x:auto;font:13.5px/1.65 ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace;
tab-size:2}
pre i{font-style:normal;color:var(--faint)}pre b{font-weight:600;color:var(--accent)}
.plain{color:var(--soft);max-width:46em;margin:0}
footer{margin-top:56px;color:var(--faint);font-size:13px}
@media (max-width:900px){.cards{grid-template-columns:repeat(3,1fr)}}
@media (max-width:640px){main{padding:32px 18px 48px}h1{font-size:24px}header{margin-bottom:26px;gap:14px}header svg{width:38px;
height:38px}h2{margin-top:44px}
.cards{grid-template-columns:repeat(2,1fr)}.cards div{padding:14px}.cards .value{font-size:22px}.plots{grid-template-columns:1fr;
gap:14px}.plot{padding:16px 14px 12px}.tall .area{height:240px}
.keys{margin-left:0;width:100%;margin-top:4px}.frame{padding-left:48px}.sample{padding-left:16px;font-size:16.5px}
td.share,th.share{display:none}}
@media print{body{background:#fff}main{padding:0}.plot,.cards,details{break-inside:avoid;box-shadow:none}}
)css";

const char* const kReportScript = R"js(
for (const plot of document.querySelectorAll(".plot")) {
  const area = plot.querySelector(".area"), rows = JSON.parse(plot.querySelector("script").textContent);
  const names = [...plot.querySelectorAll(".key")].map(key => key.textContent);
  if (!rows.length) continue;
  const needle = document.createElement("div"), tip = document.createElement("div");
  needle.className = "needle";
  tip.className = "tip";
  const show = visible => { needle.hidden = tip.hidden = !visible; };
  const follow = event => {
    const box = area.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * 100;
    const row = rows.reduce((best, other) => Math.abs(other[0] - at) < Math.abs(best[0] - at) ? other : best);
    const lines = ["step " + row[1].toLocaleString(), ...names.map((name, i) => name + "  " + row[i + 2])];
    tip.replaceChildren(...lines.map(text => Object.assign(document.createElement("div"), {textContent: text})));
    needle.style.left = row[0] + "%";
    tip.style.left = row[0] <= 50 ? "calc(" + row[0] + "% + 12px)" : "auto";
    tip.style.right = row[0] > 50 ? "calc(" + (100 - row[0]) + "% + 12px)" : "auto";
    show(true);
  };
  show(false);
  area.append(needle, tip);
  area.addEventListener("pointermove", follow);
  area.addEventListener("pointerdown", follow);
  area.addEventListener("pointerleave", () => show(false));
}
)js";

const char* const kReportMark =
    "<svg viewBox=\"0 0 48 48\" aria-hidden=\"true\" fill=\"currentColor\"><path d=\"M5 40.5c0-3.6 7-6 18.500-6S43 36.600 43 40.300s-6.500 "
    "4.700-19 4.700S5 44.400 5 40.500z\"/>"
    "<path opacity=\".82\" d=\"M10.500 28.800c.2-3.300 6-5.300 14-5.100 8.300.2 13.700 2.400 13.500 5.600-.2 3.100-5.800 4.300-13.900 "
    "4.200-8.300-.1-13.800-1.600-13.600-4.700z\"/>"
    "<path opacity=\".64\" d=\"M15.500 18.300c.5-2.900 4.700-4.700 10-4.200 5.400.5 8.700 2.600 8.200 5.200-.5 2.700-4.300 3.600-9.600 "
    "3.300-5.400-.3-9-1.700-8.600-4.300z\"/>"
    "<path opacity=\".46\" d=\"M19.800 8.600c.7-2.600 3.300-4.300 6.200-3.700 3 .6 4.600 2.700 4 5-.6 2.200-3 2.900-6 "
    "2.600-3.100-.3-4.800-1.700-4.200-3.900z\"/></svg>";

}  // namespace cairn::train
