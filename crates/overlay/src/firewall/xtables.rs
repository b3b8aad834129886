//! Rules in the syntax of iptables: parses what `iptables-save` prints and writes what
//! `iptables-restore --noflush` reads (flannel.md section 7.1, row "current"). Pure.

use std::convert::Infallible;
use std::fmt::Write as _;

use russet_addr::Family;

use super::gate::{self, DOCKER_USER, FLANNEL_FORWARD, Gate, Kind};
use super::rules::{self, Action, KUBE_PROXY_MARK, Line, Side};
use super::{Role, Wanted};

/// A table as `iptables-save` prints it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    chains: Vec<SavedChain>,
    rules: Vec<SavedRule>,
}

#[derive(Debug, PartialEq, Eq)]
struct SavedChain {
    name: String,
    policy_drops: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct SavedRule {
    chain: String,
    /// The words behind the chain's name, quotes resolved.
    words: Vec<String>,
    /// The same as printed.
    text: String,
}

/// The rules that flannel should have in one table.
#[derive(Debug, Clone)]
pub(crate) struct Goal {
    pub(crate) table: &'static str,
    /// The built-in chain that jumps to flannel's.
    hook: &'static str,
    chain: &'static str,
    comment: &'static str,
    /// The rules of flannel's own chain; empty if there should be none.
    rules: Vec<Vec<String>>,
    /// Rules that old versions had in the built-in chain itself, with or without the comment.
    bare: Vec<Vec<String>>,
}

/// The chain of flannel's iptables mode that masquerades.
pub(crate) const FLANNEL_POSTROUTING: &str = "FLANNEL-POSTRTG";
pub(crate) const MASQUERADE_COMMENT: &str = "flanneld masq";
pub(crate) const FORWARD_COMMENT: &str = "flanneld forward";

// === impl Goal ===

impl Goal {
    /// The goals of both tables for `wanted`; rules of the earlier inputs `old` may still be there.
    pub(crate) fn both(wanted: &Wanted, family: Family, random_fully: bool, old: &[Wanted]) -> [Self; 2] {
        let masquerade = rules::masquerade(wanted, family);
        let forward = rules::forward(wanted, family);
        let random = random_fully && wanted.random_fully;
        let words = |line: &Line, comment| with_comment(words(line, random), comment);
        let bare = |of: fn(&Wanted, Family) -> Vec<Line>| {
            let every = |old: &Wanted| of(&Wanted { masquerade: true, forward: true, ..old.clone() }, family);
            let lines = old.iter().flat_map(every);
            lines.flat_map(|line| [false, true].map(|random| self::words(&line, random))).collect()
        };
        [
            Self {
                table: "nat",
                hook: "POSTROUTING",
                chain: FLANNEL_POSTROUTING,
                comment: MASQUERADE_COMMENT,
                rules: masquerade.iter().map(|line| words(line, MASQUERADE_COMMENT)).collect(),
                bare: bare(bare_masquerade),
            },
            Self {
                table: "filter",
                hook: "FORWARD",
                chain: FLANNEL_FORWARD,
                comment: FORWARD_COMMENT,
                rules: forward.iter().map(|line| words(line, FORWARD_COMMENT)).collect(),
                bare: bare(rules::forward),
            },
        ]
    }

    /// The commands that bring the table to the goal; none if it is there.
    pub(crate) fn edits(&self, saved: &Saved) -> Vec<String> {
        let mut edits = Vec::new();
        let there = saved.has_chain(self.chain);
        let jump = with_comment(vec!["-j".into(), self.chain.into()], self.comment);
        if !self.rules.is_empty() {
            let now: Vec<&Vec<String>> = saved.rules_of(self.chain).map(|rule| &rule.words).collect();
            if !there || !now.into_iter().eq(&self.rules) {
                // Declaring a chain empties it, too.
                edits.push(format!(":{} - [0:0]", self.chain));
                edits.extend(self.rules.iter().map(|words| format!("-A {} {}", self.chain, spell(words))));
            }
        }
        let mut kept = self.rules.is_empty();
        for rule in saved.rules.iter().filter(|rule| rule.jumps_to(self.chain)) {
            let right = rule.chain == self.hook && rule.words == jump;
            if right && !kept {
                kept = true;
            } else {
                edits.push(rule.deletion());
            }
        }
        if !kept {
            edits.push(format!("-A {} {}", self.hook, spell(&jump)));
        }
        edits.extend(saved.rules_of(self.hook).filter(|rule| self.is_bare(rule)).map(SavedRule::deletion));
        if there && self.rules.is_empty() {
            edits.extend([format!("-F {}", self.chain), format!("-X {}", self.chain)]);
        }
        edits
    }

    fn is_bare(&self, rule: &SavedRule) -> bool {
        let (words, comment) = rule.without_comment();
        match comment {
            Some(comment) if comment != self.comment => false,
            Some(_) => !rule.jumps_to(self.chain),
            None => self.bare.contains(&words),
        }
    }
}

/// The masquerade rules of flannel up to v0.20.1, which stood in POSTROUTING up to v0.19.
fn bare_masquerade(wanted: &Wanted, family: Family) -> Vec<Line> {
    let mut lines: Vec<Line> =
        rules::masquerade(wanted, family).into_iter().filter(|line| !line.marked).collect();
    let within = lines.iter().filter_map(|line| match (line.source, line.action) {
        (Side::In(net), Action::Masquerade) => Some(Line {
            marked: false,
            source: Side::In(net),
            destination: Side::In(net),
            action: Action::Return,
        }),
        _ => None,
    });
    let within: Vec<Line> = within.collect();
    lines.extend(within);
    lines
}

/// The commands that accept forwarded packets where FORWARD drops them, and remove the accepts
/// where it does not. With `flannel_chain`, flannel's own accepts may suffice.
pub(crate) fn accepts(
    saved: &Saved,
    wanted: &Wanted,
    family: Family,
    role: Role,
    flannel_chain: bool,
) -> Vec<String> {
    let mark = role.mark();
    let lines = rules::forward(wanted, family);
    let Ok(kinds) = gate::follow(saved.kinds("FORWARD", mark), &mut |chain| {
        Ok::<_, Infallible>(saved.kinds(chain, mark))
    });
    let gate = Gate::from_rules(&kinds, saved.policy_drops("FORWARD"));
    let passed = flannel_chain && gate.passes(&kinds, FLANNEL_FORWARD);
    let mut edits = match gate {
        Gate::Closed { before } if !passed => settle(saved, "FORWARD", &lines, before, mark),
        _ => settle(saved, "FORWARD", &[], None, mark),
    };
    if saved.has_chain(DOCKER_USER) {
        // Docker's rules drop packets that reach one of its bridges from elsewhere, even if that
        // bridge is the pods'.
        let closed = gate != Gate::Open;
        let towards_pods: Vec<Line> =
            lines.into_iter().filter(|line| closed && line.source == Side::Any).collect();
        let before = gate::before_return(&saved.kinds(DOCKER_USER, mark));
        edits.extend(settle(saved, DOCKER_USER, &towards_pods, before, mark));
    }
    edits
}

fn settle(saved: &Saved, chain: &str, lines: &[Line], before: Option<usize>, mark: &str) -> Vec<String> {
    let wanted: Vec<Vec<String>> = lines.iter().map(|line| with_comment(words(line, false), mark)).collect();
    let ours: Vec<(usize, &SavedRule)> =
        saved.rules_of(chain).enumerate().filter(|(_, rule)| rule.kind(mark) == Kind::Ours).collect();
    let same = ours.iter().map(|(_, rule)| &rule.words).eq(&wanted);
    let reached = ours.iter().all(|(index, _)| before.is_none_or(|before| *index < before));
    if same && reached {
        return Vec::new();
    }
    let mut edits: Vec<String> = ours.iter().map(|(_, rule)| rule.deletion()).collect();
    // iptables counts rules from 1, after the deletions before.
    let gone = |before: usize| ours.iter().filter(|(index, _)| *index < before).count();
    let place = before.map(|before| before - gone(before) + 1);
    edits.extend(wanted.iter().enumerate().map(|(index, words)| match place {
        Some(place) => format!("-I {chain} {} {}", place + index, spell(words)),
        None => format!("-A {chain} {}", spell(words)),
    }));
    edits
}

/// The input of `iptables-restore` for the changes of one table.
pub(crate) fn restore(table: &str, edits: &[String]) -> String {
    let mut text = format!("*{table}\n");
    // Chains are declared before any rule.
    let (declared, done): (Vec<&String>, Vec<&String>) = edits.iter().partition(|edit| edit.starts_with(':'));
    for edit in declared.into_iter().chain(done) {
        let _ = writeln!(text, "{edit}");
    }
    text.push_str("COMMIT\n");
    text
}

fn words(line: &Line, random_fully: bool) -> Vec<String> {
    let mut words = Vec::new();
    for (option, side) in [("-s", line.source), ("-d", line.destination)] {
        match side {
            // iptables leaves out what matches everything.
            Side::In(net) if net.prefix_len() > 0 => words.extend([option.to_owned(), net.to_string()]),
            Side::NotIn(net) => words.extend(["!".to_owned(), option.to_owned(), net.to_string()]),
            _ => {}
        }
    }
    if line.marked {
        words.extend(["-m", "mark", "--mark"].map(str::to_owned));
        words.push(format!("{KUBE_PROXY_MARK:#x}/{KUBE_PROXY_MARK:#x}"));
    }
    let target: &[&str] = match line.action {
        Action::Accept => &["-j", "ACCEPT"],
        Action::Return => &["-j", "RETURN"],
        Action::Masquerade if random_fully => &["-j", "MASQUERADE", "--random-fully"],
        Action::Masquerade => &["-j", "MASQUERADE"],
    };
    words.extend(target.iter().copied().map(str::to_owned));
    words
}

/// Inserts a comment before the target, where flannel has it.
fn with_comment(mut words: Vec<String>, comment: &str) -> Vec<String> {
    let target = words.iter().position(|word| word == "-j").unwrap_or(words.len());
    words.splice(target..target, ["-m", "comment", "--comment", comment].map(str::to_owned));
    words
}

/// Our words contain no quotes and no backslashes.
fn spell(words: &[String]) -> String {
    let quoted = words.iter().map(|word| match word.contains(' ') {
        true => format!("\"{word}\""),
        false => word.clone(),
    });
    quoted.collect::<Vec<String>>().join(" ")
}

// === impl Saved ===

impl Saved {
    /// Parses what `iptables-save` printed of one table; a table that was never used prints
    /// nothing.
    pub(crate) fn read(text: &str, table: &str) -> Self {
        let mut saved = Self::default();
        let inside = text.lines().skip_while(|line| line.strip_prefix('*') != Some(table)).skip(1);
        for line in inside.take_while(|line| *line != "COMMIT") {
            if let Some(declared) = line.strip_prefix(':') {
                let mut words = declared.split_ascii_whitespace();
                let Some(name) = words.next() else { continue };
                let policy_drops = words.next() == Some("DROP");
                saved.chains.push(SavedChain { name: name.to_owned(), policy_drops });
            } else if let Some((chain, text)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
            {
                let (chain, words, text) = (chain.to_owned(), split(text), text.to_owned());
                saved.rules.push(SavedRule { chain, words, text });
            }
        }
        saved
    }

    /// Whether a rule of one chain leads to another.
    pub(crate) fn leads(&self, chain: &str, target: &str) -> bool {
        self.rules_of(chain).any(|rule| rule.jumps_to(target))
    }

    /// The commands that remove the chains whose names have a prefix, and the rules of other chains that
    /// lead to them or have a comment with the other prefix.
    pub(crate) fn without(&self, chains: &str, comments: &str) -> Vec<String> {
        let own: Vec<&str> = self
            .chains
            .iter()
            .map(|chain| chain.name.as_str())
            .filter(|name| name.starts_with(chains))
            .collect();
        let others = self.rules.iter().filter(|rule| !rule.chain.starts_with(chains));
        let belongs = |rule: &&SavedRule| {
            rule.options().any(|(option, value)| match option {
                "-j" | "-g" => value.starts_with(chains),
                "--comment" => value.starts_with(comments),
                _ => false,
            })
        };
        let rules = others.filter(belongs).map(SavedRule::deletion);
        // They lead to each other: all are empty before the first goes.
        let emptied = own.iter().map(|name| format!("-F {name}"));
        rules.chain(emptied).chain(own.iter().map(|name| format!("-X {name}"))).collect()
    }

    fn has_chain(&self, name: &str) -> bool {
        self.chains.iter().any(|chain| chain.name == name)
    }

    fn policy_drops(&self, name: &str) -> bool {
        self.chains.iter().any(|chain| chain.name == name && chain.policy_drops)
    }

    fn rules_of(&self, chain: &str) -> impl Iterator<Item = &SavedRule> {
        self.rules.iter().filter(move |rule| rule.chain == chain)
    }

    fn kinds(&self, chain: &str, mark: &str) -> Vec<Kind> {
        self.rules_of(chain).map(|rule| rule.kind(mark)).collect()
    }
}

// === impl SavedRule ===

impl SavedRule {
    fn deletion(&self) -> String {
        format!("-D {} {}", self.chain, self.text)
    }

    fn jumps_to(&self, chain: &str) -> bool {
        self.options().any(|(option, value)| matches!(option, "-j" | "-g") && value == chain)
    }

    /// Each word with the one behind it.
    fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.words.iter().zip(self.words.iter().skip(1)).map(|(word, next)| (word.as_str(), next.as_str()))
    }

    /// The words without the comment, and the comment.
    fn without_comment(&self) -> (Vec<String>, Option<&str>) {
        let mut words = self.words.clone();
        let Some(at) = words.windows(3).position(|three| three == ["-m", "comment", "--comment"]) else {
            return (words, None);
        };
        words.drain(at..(at + 4).min(words.len()));
        (words, self.words.get(at + 3).map(String::as_str))
    }

    /// The effect of the rule on an arbitrary packet.
    fn kind(&self, mark: &str) -> Kind {
        let (words, comment) = self.without_comment();
        if comment == Some(mark) {
            return Kind::Ours;
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let target = words.iter().position(|word| matches!(*word, "-j" | "-g")).unwrap_or(words.len());
        match words.split_at(target) {
            // A limit only skips logging.
            (
                [] | ["-m", "limit", "--limit", _] | ["-m", "limit", "--limit", _, "--limit-burst", _],
                ["-j", "LOG" | "NFLOG", ..],
            ) => Kind::Logs,
            ([], ["-j", "ACCEPT"]) => Kind::Accepts,
            ([], ["-j", "DROP"] | ["-j", "REJECT", ..]) => Kind::Drops,
            ([], ["-j", "RETURN"]) => Kind::Returns,
            ([], ["-j", chain]) => Kind::Jumps((*chain).to_owned()),
            ([], ["-g", chain]) => Kind::Goes((*chain).to_owned()),
            _ => Kind::Other,
        }
    }
}

/// Splits at blanks. A double-quoted part is one word, in which a backslash escapes the next
/// character.
fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => word.get_or_insert_default().extend(characters.next()),
            ' ' if !quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests;
