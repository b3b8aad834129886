//! The questions about a fault, what their answers have to say, and how a page shows them.

use std::process::{Command, Stdio};

use russet_linux::{NetNs, process};
use russet_testkit::{Process, eventually, require_tool, run};

use super::cluster::{Cluster, json_of};
use super::page;
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};
use crate::printed::{Printed, Stable};

/// A fault that is there now, and what is asked about it.
pub struct Fault<'a> {
    pub title: &'a str,
    /// How it was prepared, as a paragraph of the page.
    pub prepared: &'a str,
    /// Where everything is asked.
    pub node: &'a TestNode,
    /// The pod that is captured, and the two ends for `russet explain`; shown as they are here.
    pub pod: &'a str,
    pub ends: [&'a str; 2],
    /// The address that the other end has, from and to which packets are captured.
    pub other: &'a str,
    /// From where to where pings go while packets are captured.
    pub traffic: (&'a TestPod, &'a str),
    /// What commands say; those that are not listed see nothing wrong.
    pub expected: Vec<Expected>,
    /// Whether pings are seen at the host end, inside of the tunnel and outside of it.
    pub seen: [bool; 3],
    /// Files of a report, and what is in them.
    pub reported: &'a [(&'a str, &'a str)],
}

/// What one command has to say.
pub struct Expected {
    verb: Verb,
    status: i32,
    /// Parts of the lines that name the fault.
    says: &'static [&'static str],
    /// Whether the page has everything that the command prints.
    is_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Plain(&'static [&'static str]),
    Explain,
    /// While pings go from one end to the other.
    Trace,
    /// The page of `russet ui`, as text.
    Page,
}

pub const STATUS: Verb = Verb::Plain(&["status"]);
pub const CLUSTER: Verb = Verb::Plain(&["status", "--cluster"]);
pub const DRIFT: Verb = Verb::Plain(&["drift"]);
pub const MAP: Verb = Verb::Plain(&["map"]);
pub const FLOWS: Verb = Verb::Plain(&["flows", "--denied"]);
pub const EXPLAIN: Verb = Verb::Explain;
pub const TRACE: Verb = Verb::Trace;
pub const TOP: Verb = Verb::Plain(&["top", "--once"]);
pub const PAGE: Verb = Verb::Page;
pub const JOURNAL: Verb = Verb::Plain(&["journal"]);
pub const DOCTOR: Verb = Verb::Plain(&["doctor"]);
/// The order on the page.
const ORDER: [Verb; 11] = [STATUS, CLUSTER, EXPLAIN, TRACE, DRIFT, MAP, FLOWS, TOP, PAGE, JOURNAL, DOCTOR];
/// What these answer comes from records that agents write some 20 s later.
const LATE: [Verb; 2] = [CLUSTER, MAP];
/// The exit code.
const PROBLEMS: i32 = 3;
/// What the map says as long as it shows no problem.
const NO_LINK: &str = " 0 unreachable\n";

/// What a command says that has nothing to say of the fault.
const NOTHING: &str = "nothing";
/// The places where packets of a pod are captured.
const PLACES: [&str; 3] = ["at the host end", "inside of the tunnel", "outside of the tunnel"];

// === impl Expected ===

impl Expected {
    /// It sees nothing wrong.
    fn quiet(verb: Verb) -> Self {
        Self { verb, status: 0, says: &[], is_whole: false }
    }

    /// It exits with a code, and has lines with these parts.
    pub fn says(verb: Verb, status: i32, says: &'static [&'static str]) -> Self {
        Self { verb, status, says, is_whole: false }
    }

    /// The page has all of it.
    pub fn whole(self) -> Self {
        Self { is_whole: true, ..self }
    }

    fn is_met(&self, (status, text): &(i32, String)) -> bool {
        let is_quiet = match self.verb {
            MAP => text.contains(NO_LINK),
            FLOWS => text.is_empty(),
            TRACE => text.contains(", 0 dropped\n"),
            PAGE => text.contains("No problems.\n"),
            JOURNAL => !text.contains("UNFINISHED"),
            _ => true,
        };
        *status == self.status
            && self.says.iter().all(|part| text.contains(part))
            && self.has_all(text)
            && (!self.says.is_empty() || is_quiet)
    }

    /// Whether each problem that is counted is one of the lines: those of the fault before are gone.
    fn has_all(&self, text: &str) -> bool {
        let count = self.says.len();
        match self.verb {
            STATUS | CLUSTER | TOP if self.status == PROBLEMS => text.contains(&format!(", {count} problem")),
            DOCTOR if self.status == PROBLEMS => text.contains(&format!("\n{count} finding")),
            _ => true,
        }
    }

    /// What the page has below the table: all of it, or of a trace the first packet that it says this of.
    fn shown(&self, text: &str) -> String {
        let lines: Vec<&str> = text.lines().collect();
        let Some(end) = lines.iter().position(|line| self.verb == TRACE && line.contains(self.says[0]))
        else {
            return text.to_owned();
        };
        let begin = lines[..end].iter().rposition(|line| line.starts_with("TIME  ")).expect("its first line");
        lines[begin..=end].iter().map(|line| format!("{line}\n")).collect()
    }

    /// The lines that name the fault, for a cell of a table.
    fn cell(&self, text: &str) -> String {
        let line = |part: &&str| {
            let line = text.lines().find(|line| line.contains(*part)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
        };
        let mut lines: Vec<String> = self.says.iter().map(line).collect();
        lines.dedup();
        if lines.is_empty() { NOTHING.to_owned() } else { lines.join("<br>") }
    }
}

// === impl Verb ===

impl Verb {
    fn words<'a>(self, fault: &Fault<'a>) -> Vec<&'a str> {
        match self {
            Self::Plain(words) => words.to_vec(),
            Self::Explain => vec!["explain", fault.ends[0], fault.ends[1], "icmp"],
            Self::Trace => {
                vec!["trace", fault.ends[0], fault.ends[1], "--proto", "icmp", "--for", "2s"]
            }
            Self::Page => vec!["ui"],
        }
    }
}

// === impl Fault ===

impl Fault<'_> {
    /// Waits until every command says what it has to, and writes that into the page.
    pub fn ask(&self, stable: &Stable, page: &mut Printed) {
        println!("=== {}", self.title);
        let others = ORDER.into_iter().filter(|verb| self.expected.iter().all(|it| it.verb != *verb));
        let others: Vec<Expected> = others.map(Expected::quiet).collect();
        let mut all: Vec<&Expected> = self.expected.iter().chain(&others).collect();
        assert_eq!(all.len(), ORDER.len(), "{}: each command is asked once", self.title);
        // Agents write their records while the others are asked.
        all.sort_by_key(|it| LATE.contains(&it.verb));
        let mut answers: Vec<(&Expected, String)> =
            all.iter().map(|it| (*it, self.answer(it, stable))).collect();
        let captured = self.capture(stable);
        let reported = self.report();
        page.push(&format!(
            "\n### {}\n\n{}\n\n| command | exit code | says |\n|---|---|---|\n",
            self.title, self.prepared
        ));
        let mut whole = String::new();
        answers.sort_by_key(|(it, _)| ORDER.iter().position(|verb| *verb == it.verb));
        for (it, mut text) in answers {
            if it.is_whole {
                // All of them name the fault now: what is printed has its last form.
                text = self.answer(it, stable);
            }
            let command = format!("russet {}", stable.command(&it.verb.words(self)));
            page.push(&format!("| `{command}` | {} | {} |\n", it.status, it.cell(&text)));
            if it.is_whole {
                whole.push_str(&format!("\n```\n$ {command}\n{}```\n", it.shown(&text)));
            }
        }
        page.push(&captured);
        page.push(&reported);
        page.push(&whole);
    }

    /// What a command prints once it says what it has to.
    fn answer(&self, expected: &Expected, stable: &Stable) -> String {
        let words = expected.verb.words(self);
        let mut last = String::new();
        let mut found = String::new();
        eventually(TIMEOUT, || {
            let Answer { status, stdout, stderr } = self.said(expected.verb, &words);
            let text = stable.of(&format!("{stdout}{stderr}"));
            if last != text {
                println!("--- russet {}: {status}\n{text}", words.join(" "));
                last.clone_from(&text);
            }
            let answer = (status, text);
            let is_met = expected.is_met(&answer);
            found = answer.1;
            is_met
        });
        found
    }

    fn said(&self, verb: Verb, words: &[&str]) -> Answer {
        let _pings = (verb == TRACE).then(|| self.pings());
        match verb {
            PAGE => page::of(self.node).unwrap_or_else(|| self.node.russet_inside(words)),
            _ => self.node.russet_inside(words),
        }
    }

    /// Pings, until it is dropped.
    fn pings(&self) -> Process {
        let netns = NetNs::open_named(&self.traffic.0.netns_name).unwrap();
        let mut ping = Command::new(require_tool("ping"));
        ping.args(["-n", "-i", "0.1", self.traffic.1]).stdin(Stdio::null());
        ping.stdout(Stdio::null()).stderr(Stdio::null());
        Process::start(process::in_netns(&mut ping, &netns).unwrap())
    }

    /// Captures pings, until they are seen where they have to be and nowhere else.
    fn capture(&self, stable: &Stable) -> String {
        let _pings = self.pings();
        let file = self.node.path("capture.pcapng");
        let words = ["capture", self.pod, "--host", self.other, "--duration", "1s"];
        let more = ["--force", "-o", "json", "--file", file.to_str().unwrap()];
        eventually(TIMEOUT, || {
            let answer = self.node.russet_inside(&[&words[..], &more].concat());
            assert_eq!(answer.status, 0, "{answer:?}");
            let summary = json_of(&answer);
            let places: Vec<bool> =
                summary["interfaces"].as_array().unwrap().iter().map(|it| it["written"] != 0).collect();
            println!("capture: {places:?}");
            places == self.seen
        });
        let places = |is_seen: bool| {
            let all = PLACES.iter().zip(self.seen).filter(|(_, seen)| *seen == is_seen);
            all.map(|(place, _)| *place).collect::<Vec<_>>().join(", ")
        };
        let text = match (places(true), places(false)) {
            (seen, none) if none.is_empty() => format!("seen {seen}"),
            (seen, none) if seen.is_empty() => format!("not seen {none}"),
            (seen, none) => format!("seen {seen}; not seen {none}"),
        };
        format!("| `russet {}` | 0 | {text} |\n", stable.command(&words))
    }

    /// Makes a report, and looks into it.
    fn report(&self) -> String {
        let (file, to) = (self.node.path("report.tar.gz"), self.node.path("unpacked"));
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir(&to).unwrap();
        let file = file.to_str().unwrap();
        let answer = self.node.russet_inside(&["report", "--force", "--file", file]);
        assert_eq!(answer.status, 0, "{answer:?}");
        run("tar", &["-xzf", file, "-C", to.to_str().unwrap()]);
        for (part, says) in self.reported {
            let text = std::fs::read_to_string(to.join("russet-report").join(part)).unwrap();
            assert!(text.contains(says), "{part} without {says}: {text}\n{answer:?}");
        }
        let mut names: Vec<String> = self.reported.iter().map(|(part, _)| format!("`{part}`")).collect();
        names.dedup();
        let text = match names.len() {
            0 => NOTHING.to_owned(),
            _ => format!("has it in {}", names.join(", ")),
        };
        format!("| `russet report` | 0 | {text} |\n")
    }
}

impl Cluster {
    /// A fault on the way from `shop/web` to `shop/db`, asked on the node of `shop/web`.
    pub fn between<'a>(&'a self, title: &'a str, prepared: &'a str, expected: Vec<Expected>) -> Fault<'a> {
        Fault {
            title,
            prepared,
            node: &self.a,
            pod: "shop/web",
            ends: ["shop/web", "shop/db"],
            other: &self.db_address,
            traffic: (&self.web, &self.db_address),
            expected,
            seen: [true, true, true],
            reported: &[],
        }
    }

    /// A fault at the end of `shop/db`, where packets do not arrive, asked on its node.
    pub fn at_db<'a>(&'a self, title: &'a str, prepared: &'a str, expected: Vec<Expected>) -> Fault<'a> {
        Fault {
            node: &self.b,
            pod: "shop/db",
            other: &self.web_address,
            seen: [false, true, true],
            ..self.between(title, prepared, expected)
        }
    }

    /// A fault on the way from `shop/web` to an address, asked on the node of `shop/web`.
    pub fn to<'a>(
        &'a self,
        address: &'a str,
        title: &'a str,
        prepared: &'a str,
        expected: Vec<Expected>,
    ) -> Fault<'a> {
        let ends = ["shop/web", address];
        Fault {
            ends,
            other: address,
            traffic: (&self.web, address),
            ..self.between(title, prepared, expected)
        }
    }
}
