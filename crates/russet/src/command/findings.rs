//! What a verb that examines a node or a cluster found, and what to do about it.

use std::process::ExitCode;

use serde::Serialize;

use super::{FAILED, PROBLEMS};
use crate::output;

/// What was found, for programs.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    pub schema: u32,
    /// What was examined: `node`, `cluster`.
    pub looked_at: Vec<&'static str>,
    pub findings: Vec<Finding>,
    /// What could not be examined, and why.
    pub unknown: Vec<String>,
}

/// One problem.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Finding {
    pub kind: FindingKind,
    /// The file, the interface, the setting or the object.
    pub subject: String,
    /// What was seen, and what follows from it.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
    /// The setting of the kernel that repairs it, by its path below `/proc/sys`, and its value.
    #[serde(skip)]
    pub setting: Option<(String, &'static str)>,
    /// With `--fix`: what became of the repair, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

/// What became of a repair.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Repair {
    Done,
    Failed(String),
}

#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    Agent,
    AgentVersion,
    ApiService,
    AsymmetricRoute,
    Checksums,
    Clock,
    ConflistOrder,
    Connections,
    Drift,
    ExpiredToken,
    Firewall,
    Forwarding,
    HandleNames,
    HostLocal,
    KernelFeature,
    MixedVersions,
    Mtu,
    Neighbours,
    Operator,
    OtherNetwork,
    Overlap,
    Peer,
    PodInterface,
    ReversePath,
    Rights,
    Settings,
    Store,
    Underlay,
}

// === impl Findings ===

impl Findings {
    pub fn found(
        &mut self,
        kind: FindingKind,
        subject: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (subject, problem, remedy) = (subject.into(), problem.into(), remedy.into());
        self.findings.push(Finding { kind, subject, problem, remedy, setting: None, repair: None });
    }

    /// A problem that a setting of the kernel repairs.
    pub fn found_setting(
        &mut self,
        kind: FindingKind,
        (name, value): (&str, &'static str),
        problem: impl Into<String>,
    ) {
        let command = format!("sysctl -w {}={value}", as_argument(name));
        let remedy = format!("{command}, and the same in a file of /etc/sysctl.d for the next boot");
        self.found(kind, name, problem, remedy);
        let setting = Some((name.to_owned(), value));
        self.findings.iter_mut().last().into_iter().for_each(|it| it.setting = setting.clone());
    }

    /// Whether a finding remains that was not repaired.
    pub fn is_open(&self) -> bool {
        self.findings.iter().any(|finding| finding.repair != Some(Repair::Done))
    }

    /// 3 with findings, 1 if something could not be examined, and 0.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            _ if self.is_open() => ExitCode::from(PROBLEMS),
            Findings { unknown, .. } if !unknown.is_empty() => ExitCode::from(FAILED),
            _ => ExitCode::SUCCESS,
        }
    }

    /// For people: each finding in two lines, and in the end how many there are, or `nothing`.
    pub fn text(&self, nothing: &str) -> String {
        let mut lines = Vec::new();
        for Finding { subject, problem, remedy, repair, .. } in &self.findings {
            lines.push(format!("{}: {}", output::visible(subject), output::visible(problem)));
            lines.push(match repair {
                None => format!("  {}", output::visible(remedy)),
                Some(Repair::Done) => format!("  repaired: {}", output::visible(remedy)),
                Some(Repair::Failed(reason)) => {
                    format!("  {} (tried, and failed: {})", output::visible(remedy), output::visible(reason))
                }
            });
        }
        lines.extend(self.unknown.iter().map(|line| format!("not looked at: {}", output::visible(line))));
        let looked = listed(&self.looked_at);
        lines.push(match self.findings.len() {
            0 => format!("{nothing} (looked at: {looked})"),
            1 => format!("1 finding (looked at: {looked})"),
            count => format!("{count} findings (looked at: {looked})"),
        });
        lines.join("\n") + "\n"
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The name of a setting for `sysctl`, which takes slashes where an interface's name has dots.
fn as_argument(name: &str) -> String {
    if name.contains('.') { name.to_owned() } else { name.replace('/', ".") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_shown_with_what_to_do() {
        let mut report = Findings { looked_at: vec!["kernel", "node", "agent"], ..Findings::default() };
        assert_eq!(report.text("nothing found"), "nothing found (looked at: kernel, node and agent)\n");
        report.found_setting(FindingKind::Forwarding, ("net/ipv4/ip_forward", "1"), "it is 0");
        report.found(FindingKind::Agent, "a\u{1b}", "gone", "start it");
        report.unknown.push("the rest".to_owned());
        assert!(report.is_open());
        let text = report.text("nothing found");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "net/ipv4/ip_forward: it is 0");
        assert!(lines[1].starts_with("  sysctl -w net.ipv4.ip_forward=1, "), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!(
            &lines[4..],
            ["not looked at: the rest", "2 findings (looked at: kernel, node and agent)"]
        );
        report.findings.iter_mut().for_each(|finding| finding.repair = Some(Repair::Done));
        assert!(!report.is_open() && report.text("").contains("  repaired: start it"));
    }

    #[test]
    fn settings_of_interfaces_with_dots_keep_their_slashes() {
        assert_eq!(as_argument("net/ipv4/conf/eth0.5/rp_filter"), "net/ipv4/conf/eth0.5/rp_filter");
        assert_eq!(as_argument("net/ipv4/conf/all/rp_filter"), "net.ipv4.conf.all.rp_filter");
        assert_eq!([listed(&[]), listed(&["a"]), listed(&["a", "b"])], ["", "a", "a and b"]);
    }
}
