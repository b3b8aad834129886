//! The throughput of each way as a picture: `cargo xtask bench overlay --plot` after a run, `--plot-from FILE` from the report of an earlier one.
//!
//! The picture is made of the report for programs, so that both make the same. It carries its own colours for light and dark, and its text is text.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::bench::overlay::findings;
use crate::bench::overlay::{
    AGENT, AGENT_OPEN, BARE, FAST, FAST_OPEN, FAST_POLICY, FAST_ROUTED, FAST_ROUTED_BIG, FAST_SAME, FLANNELD,
    FLANNELD_OPEN, ROUTED, STREAM, UDP, UDP_FAST, UDP_NAIVE, UDP_SIZED, VXLAN, VXLAN_CALICO, VXLAN_FLANNEL,
    VXLAN_METADATA, VXLAN_RULES,
};
use crate::error::{Error, Result};

/// The file, if `--plot` names none.
pub const FILE: &str = "docs/images/overlay.svg";
/// The most ways that are drawn: a report of this benchmark has fewer.
const BARS_MAX: usize = 32;
/// The largest multiple of the bare nodes: what is more cannot have been measured.
const TIMES_MAX: f64 = 10.0;
/// The longest text that is taken from a report: it has to fit beside its bar, or below all of them.
const TEXT_MAX: usize = 100;

/// Sizes, in pixels.
const WIDTH: f64 = 780.0;
const TOP: f64 = 62.0;
const ROW: f64 = 30.0;
const BAR: f64 = 18.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 720.0;
const BELOW: f64 = 82.0;
/// The distance of the lines of the scale, as a multiple of the bare nodes.
const STEP: f64 = 0.25;

const TITLE: &str = "TCP throughput of one stream on one core, as a multiple of bare nodes";

/// Colours: first those on a light page, then those on a dark one.
const STYLE: &str = "\
.paper{fill:#fff}.ink{fill:#1f2328}.soft{fill:#59636e}.line{stroke:#d1d9e0}.other{fill:#8c959f}.ours{fill:#1f6feb}\
.mark{stroke:#1f2328;stroke-width:2.5;fill:none}.missed{stroke-dasharray:3 2.5}\
@media(prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}.line{stroke:#3d444d}\
.other{fill:#6e7681}.ours{fill:#4493f8}.mark{stroke:#f0f6fc}}";

/// What the picture says of each way; those of other names stand for themselves.
const LABELS: [(&str, &str); 21] = [
    (BARE, "node to node, without pods"),
    (ROUTED, "routes, no tunnel"),
    (FAST_ROUTED, "routes, fast path"),
    (VXLAN, "VXLAN, no netfilter"),
    (VXLAN_RULES, "VXLAN, connections tracked"),
    (AGENT_OPEN, "agent, without guards"),
    (AGENT, "VXLAN, agent with guards"),
    (FAST, "VXLAN, agent, fast path"),
    (FAST_OPEN, "the same without guards"),
    (FAST_POLICY, "with a network policy"),
    (FAST_SAME, "pods of one node"),
    (FAST_ROUTED_BIG, "the same with BIG TCP"),
    (FLANNELD_OPEN, "flanneld, without guards"),
    (FLANNELD, "flanneld with guards"),
    (VXLAN_FLANNEL, "as flannel wires it"),
    (VXLAN_CALICO, "as Calico wires it"),
    (VXLAN_METADATA, "BPF, like Cilium's"),
    (UDP, "Russet's userspace backend"),
    (UDP_FAST, "the same, fast path"),
    (UDP_SIZED, "smaller packets"),
    (UDP_NAIVE, "one packet a system call"),
];

/// Ways that are no code of ours, and are drawn in another colour.
const OTHERS: [&str; 5] = [BARE, VXLAN_FLANNEL, VXLAN_CALICO, VXLAN_METADATA, UDP_NAIVE];

/// All bars, and what is said below them.
#[derive(Debug, PartialEq)]
pub struct Plot {
    bars: Vec<Bar>,
    run: String,
}

#[derive(Debug, PartialEq)]
struct Bar {
    way: String,
    times_bare: f64,
    /// What its goals ask for, as multiples of the bare nodes too.
    goals: Vec<f64>,
}

/// Writes the picture of a report, and beside it, as JSON, what of the report it was made from.
pub fn write(report: &Value, file: &Path) -> Result<()> {
    let svg = Plot::of(report)?.svg();
    let figures = file.with_extension("json");
    for (path, text) in [(file, svg), (&figures, format!("{:#}\n", drawn(report)))] {
        std::fs::write(path, text).map_err(Error::io(format!("write {}", path.display())))?;
        eprintln!("{}", path.display());
    }
    Ok(())
}

/// Draws the picture of an earlier report, which `-o json` or `--plot` wrote.
pub fn redraw(from: &Path, file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(from).map_err(Error::io(format!("read {}", from.display())))?;
    let report = serde_json::from_str(&text)
        .map_err(|error| Error::Found(format!("{}: no report of `-o json`: {error}", from.display())))?;
    let svg = Plot::of(&report)?.svg();
    std::fs::write(file, svg).map_err(Error::io(format!("write {}", file.display())))?;
    eprintln!("{}", file.display());
    Ok(())
}

/// The part of a report that is drawn, in the form of a report.
fn drawn(report: &Value) -> Value {
    let rows: Vec<Value> = streams(report)
        .map(|row| json!({ "test": STREAM, "impl": row["impl"], "times_bare": row["times_bare"] }))
        .collect();
    json!({ "bench": "overlay", "rows": rows, "notes": [report["notes"][0]] })
}

fn streams(report: &Value) -> impl Iterator<Item = &Value> {
    report["rows"].as_array().into_iter().flatten().filter(|row| row["test"] == STREAM)
}

// === impl Plot ===

impl Plot {
    /// The ways of a report that were measured, with the goals of those.
    fn of(report: &Value) -> Result<Self> {
        let measured: Vec<(&str, f64)> = streams(report)
            .filter_map(|row| Some((row["impl"].as_str()?, row["times_bare"].as_f64()?)))
            .collect();
        if !measured.iter().any(|(way, _)| *way == BARE) {
            let why = "bars are multiples of it: run the benchmark with --impl bare, too";
            return Err(Error::Found(format!("the report has no {STREAM} of {BARE}; {why}")));
        }
        if measured.len() > BARS_MAX {
            return Err(Error::Found(format!(
                "the report has {} ways, more than {BARS_MAX}",
                measured.len()
            )));
        }
        let value = |wanted: &str| measured.iter().find(|(way, _)| *way == wanted).map(|(_, times)| *times);
        let bar = |(way, times_bare): &(&str, f64)| {
            if !(0.0..=TIMES_MAX).contains(times_bare) {
                return Err(Error::Found(format!(
                    "{way}: {times_bare} is not between 0 and {TIMES_MAX} of {BARE}"
                )));
            }
            let goals = findings::throughput_goals(way);
            let goals = goals.filter_map(|(times, against)| Some(times * value(against)?)).collect();
            Ok(Bar { way: short(way), times_bare: *times_bare, goals })
        };
        let bars = measured.iter().map(bar).collect::<Result<_>>()?;
        Ok(Self { bars, run: short(report["notes"][0].as_str().unwrap_or_default()) })
    }

    /// The picture.
    fn svg(&self) -> String {
        let height = TOP + ROW * self.bars.len() as f64 + BELOW;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"img\" aria-labelledby=\"overlay-title overlay-desc\" font-family=\"system-ui,sans-serif\" font-size=\"13\">\n\
             <title id=\"overlay-title\">{TITLE}</title>\n<desc id=\"overlay-desc\">{}</desc>\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n",
            escaped(&self.sentence())
        );
        text(&mut svg, (12.0, 26.0), "ink", "font-size=\"15\" font-weight=\"600\"", TITLE);
        self.scale(&mut svg);
        for (place, bar) in self.bars.iter().enumerate() {
            self.bar(&mut svg, TOP + ROW * place as f64, bar);
        }
        self.legend(&mut svg, TOP + ROW * self.bars.len() as f64);
        svg + "</svg>\n"
    }

    /// All of it in words, for a reader who hears the picture.
    fn sentence(&self) -> String {
        let bar = |bar: &Bar| {
            let goal =
                |goal: &f64| format!(", goal {goal:.2} {}", if bar.meets(*goal) { "met" } else { "missed" });
            let goals: String = bar.goals.iter().map(goal).collect();
            format!("{} ({}) {:.2}{goals}", bar.way, label(&bar.way), bar.times_bare)
        };
        self.bars.iter().map(bar).collect::<Vec<_>>().join("; ")
    }

    /// The multiple of the bare nodes at the right end, a line of the scale.
    fn most(&self) -> f64 {
        let all = self.bars.iter().flat_map(|bar| bar.goals.iter().copied().chain([bar.times_bare]));
        (all.fold(1.0, f64::max) / STEP).ceil() * STEP
    }

    fn x(&self, times: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * times / self.most()
    }

    fn scale(&self, svg: &mut String) {
        let bottom = TOP + ROW * self.bars.len() as f64;
        let lines = (self.most() / STEP).round() as u32;
        // A picture with one bar that is many times another's would be full of lines.
        let every = lines.div_ceil(8).max(1);
        for line in (0..=lines).step_by(every as usize) {
            let times = f64::from(line) * STEP;
            let x = self.x(times);
            let _ = writeln!(svg, "<path class=\"line\" d=\"M{x:.1} {:.1}V{bottom:.1}\"/>", TOP - 6.0);
            text(
                svg,
                (x, TOP - 12.0),
                "soft",
                "text-anchor=\"middle\" font-size=\"11\"",
                &format!("{times:.2}"),
            );
        }
    }

    fn bar(&self, svg: &mut String, top: f64, bar: &Bar) {
        let (y, width) = (top + (ROW - BAR) / 2.0, self.x(bar.times_bare) - LEFT);
        let baseline = y + 13.5;
        text(svg, (12.0, baseline), "ink", "font-weight=\"600\"", &bar.way);
        text(svg, (138.0, baseline), "soft", "", label(&bar.way));
        let class = if OTHERS.contains(&bar.way.as_str()) { "other" } else { "ours" };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>"
        );
        for goal in &bar.goals {
            let (x, class) = (self.x(*goal), if bar.meets(*goal) { "mark" } else { "mark missed" });
            let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{x:.1} {:.1}v{}\"/>", y - 4.0, BAR + 8.0);
        }
        text(svg, (RIGHT + 12.0, baseline), "ink", "", &format!("{:.2}", bar.times_bare));
    }

    fn legend(&self, svg: &mut String, top: f64) {
        let y = top + 26.0;
        for (x, class, what) in
            [(18.0, "mark", "a goal that is met"), (168.0, "mark missed", "a goal that is missed")]
        {
            let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{x} {:.1}v16\"/>", y - 12.0);
            text(svg, (x + 10.0, y), "soft", "", what);
        }
        for (x, class, what) in [(340.0, "ours", "Russet"), (420.0, "other", "to compare with")] {
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{:.1}\" width=\"12\" height=\"12\"/>",
                y - 10.0
            );
            text(svg, (x + 18.0, y), "soft", "", what);
        }
        let from = match self.run.as_str() {
            "" => "cargo xtask bench overlay".to_owned(),
            run => format!("cargo xtask bench overlay: {run}"),
        };
        text(svg, (12.0, y + 28.0), "soft", "font-size=\"11\"", &from);
    }
}

// === impl Bar ===

impl Bar {
    fn meets(&self, goal: f64) -> bool {
        self.times_bare >= goal
    }
}

fn label(way: &str) -> &'static str {
    LABELS.iter().find(|(name, _)| *name == way).map_or("", |(_, label)| label)
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, attributes: &str, text: &str) {
    let space = if attributes.is_empty() { "" } else { " " };
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{space}{attributes}>{}</text>",
        escaped(text)
    );
}

/// Text of a report, without what a picture cannot show.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts;

    fn report(rows: &[(&str, f64)]) -> Value {
        let row = |(way, times): &(&str, f64)| json!({ "test": STREAM, "impl": way, "times_bare": times });
        let mut all: Vec<Value> = rows.iter().map(row).collect();
        all.push(json!({ "test": "rr1c", "impl": "routed", "times_bare": 9.0 }));
        json!({ "bench": "overlay", "rows": all, "notes": ["3 rounds, seed 7", "t1c: ..."] })
    }

    #[test]
    fn a_bar_has_the_goals_of_its_way_as_multiples_of_bare() {
        let plot = Plot::of(&report(&[(BARE, 1.0), (FAST, 0.84), (VXLAN_FLANNEL, 0.5)])).unwrap();
        let names: Vec<&str> = plot.bars.iter().map(|bar| bar.way.as_str()).collect();
        assert_eq!(names, [BARE, FAST, VXLAN_FLANNEL], "other tests are not drawn");
        assert_eq!(plot.bars[1].goals, [0.72, 1.65 * 0.5]);
        assert!(plot.bars[1].meets(0.72) && !plot.bars[1].meets(0.85));
        assert_eq!(plot.run, "3 rounds, seed 7");
        assert!(
            plot.sentence().contains("fast (VXLAN, agent, fast path) 0.84, goal 0.72 met, goal 0.82 met")
        );
        // A goal against what was not measured has no place.
        let plot = Plot::of(&report(&[(BARE, 1.0), (AGENT, 0.6)])).unwrap();
        assert_eq!(plot.bars[1].goals, [] as [f64; 0]);
    }

    #[test]
    fn bars_and_marks_have_their_places_on_the_scale() {
        let plot = Plot::of(&report(&[(BARE, 1.0), (ROUTED, 0.5)])).unwrap();
        let svg = plot.svg();
        // 390 pixels are one bare.
        assert!(svg.contains("<rect class=\"ours\" x=\"330\" y=\"98.0\" width=\"195.0\""), "{svg}");
        assert!(svg.contains("<path class=\"mark missed\" d=\"M610.8 94.0v26\"/>"), "{svg}");
        let wide = Plot::of(&report(&[(BARE, 1.0), (ROUTED, 2.1)])).unwrap();
        assert_eq!(wide.most(), 2.25);
        assert!((wide.x(2.25) - RIGHT).abs() < 1e-9);
    }

    #[test]
    fn text_of_a_report_is_escaped_and_bounded() {
        let long = "a".repeat(1000);
        let mut report = report(&[(BARE, 1.0), ("<b>\"&\u{7}", 0.5), (&long, 0.1)]);
        report["notes"][0] = json!("</svg><script>");
        let svg = Plot::of(&report).unwrap().svg();
        assert!(svg.contains("&lt;b&gt;&quot;&amp;<") && svg.contains("&lt;/svg&gt;&lt;script&gt;"), "{svg}");
        assert!(!svg.contains("<script") && !svg.contains(&"a".repeat(TEXT_MAX + 1)));
    }

    #[test]
    fn a_picture_is_small_has_text_for_those_who_hear_it_and_both_schemes() {
        let all: Vec<(&str, f64)> = crate::bench::overlay::WAYS.iter().map(|way| (*way, 0.777)).collect();
        let svg = Plot::of(&report(&all)).unwrap().svg();
        assert!(svg.len() < 20_000, "{}", svg.len());
        for part in ["role=\"img\"", "<title id=", "<desc id=", "prefers-color-scheme:dark", ">0.78</text>"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        // Nothing is loaded from elsewhere.
        assert_eq!(svg.matches("http").count(), 1, "the namespace alone");
    }

    #[test]
    fn a_report_without_bare_nodes_or_with_impossible_values_is_refused() {
        let error = |rows: &[(&str, f64)]| Plot::of(&report(rows)).unwrap_err().to_string();
        assert!(error(&[(FAST, 0.8)]).contains("--impl bare"));
        assert!(error(&[(BARE, 1.0), (FAST, -1.0)]).contains("fast: -1 is not between 0 and 10"));
        assert!(error(&[(BARE, 1.0), (FAST, 1e300)]).contains("not between"));
        assert!(error(&[(BARE, 1.0); 40]).contains("more than 32"));
        assert!(Plot::of(&json!([])).is_err());
    }

    #[test]
    fn what_is_written_beside_a_picture_makes_the_same_picture() {
        let report = report(&[(BARE, 1.0), (FAST, 0.84)]);
        assert_eq!(Plot::of(&drawn(&report)).unwrap(), Plot::of(&report).unwrap());
        let dir = artifacts::target_dir().join(format!("plot-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (file, again) = (dir.join("a.svg"), dir.join("b.svg"));
        write(&report, &file).unwrap();
        redraw(&dir.join("a.json"), &again).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(&again).unwrap());
        assert!(redraw(&file, &again).unwrap_err().to_string().contains("no report of `-o json`"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_picture_in_docs_is_that_of_the_figures_beside_it() {
        let file = artifacts::workspace().join(FILE);
        let figures = std::fs::read_to_string(file.with_extension("json")).unwrap();
        let svg = Plot::of(&serde_json::from_str(&figures).unwrap()).unwrap().svg();
        let hint = "cargo xtask bench overlay --plot-from docs/images/overlay.json";
        assert_eq!(std::fs::read_to_string(&file).unwrap(), svg, "{hint}");
    }
}
