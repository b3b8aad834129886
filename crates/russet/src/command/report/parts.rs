//! The list of what a report has.

use std::path::{Path, PathBuf};

use super::kernel;
use super::source::{Keep, Source};
use super::{Node, own};

/// One file of the archive.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its path in the archive's directory.
    pub file: String,
    pub source: Source,
}

/// What verbs say; what needs the datastore or the agent is among them.
const VERBS: [(&str, &[&str]); 17] = [
    ("version.json", &["version", "-o", "json"]),
    ("status.json", &["status", "-o", "json"]),
    ("status.txt", &["status"]),
    ("doctor.json", &["doctor", "-o", "json"]),
    ("doctor.txt", &["doctor"]),
    ("journal.json", &["journal", "-o", "json"]),
    ("journal.txt", &["journal"]),
    ("drift.json", &["drift", "--last", "100", "-o", "json"]),
    ("owned.json", &["owned", "-o", "json"]),
    ("owned.txt", &["owned"]),
    ("flows.json", &["flows", "--last", "200", "-o", "json"]),
    ("cluster/status.json", &["status", "--cluster", "-o", "json"]),
    ("cluster/blocks.txt", &["ipam", "show", "--show-blocks"]),
    ("cluster/ippools.json", &["get", "ippools", "-o", "json"]),
    ("cluster/nodes.json", &["get", "nodes", "-o", "json"]),
    ("cluster/policies.txt", &["policy", "ls"]),
    ("cluster/addresses.txt", &["ipam", "check"]),
];

const IP: [(&str, &[&str], super::source::Compute); 5] = [
    ("kernel/links.txt", &["-d", "-s", "link"], kernel::links),
    ("kernel/addresses.txt", &["address"], kernel::addresses),
    ("kernel/routes4.txt", &["-4", "route", "show", "table", "all"], kernel::routes),
    ("kernel/rules4.txt", &["-4", "rule"], kernel::rules),
    ("kernel/neighbours.txt", &["-s", "neighbour"], kernel::neighbours),
];

/// Programs that show what no verb of Russet does.
const PROGRAMS: [(&str, &str, &[&str]); 6] = [
    ("kernel/routes6.txt", "ip", &["-6", "route", "show", "table", "all"]),
    ("kernel/rules6.txt", "ip", &["-6", "rule"]),
    ("kernel/nft.txt", "nft", &["-a", "list", "ruleset"]),
    ("kernel/iptables.txt", "iptables-save", &["-c"]),
    ("kernel/ip6tables.txt", "ip6tables-save", &["-c"]),
    ("agent/unit.txt", "systemctl", &["--no-pager", "--full", "status", "russet-agent"]),
];

/// Counters and versions of the kernel, of this process's network namespace where they have one.
const FILES: [(&str, &str); 17] = [
    ("os-release", "/etc/os-release"),
    ("kernel/version.txt", "/proc/version"),
    ("kernel/modules.txt", "/proc/modules"),
    ("kernel/loadavg.txt", "/proc/loadavg"),
    ("kernel/meminfo.txt", "/proc/meminfo"),
    ("kernel/uptime.txt", "/proc/uptime"),
    ("kernel/pressure-cpu.txt", "/proc/pressure/cpu"),
    ("kernel/dev.txt", "/proc/self/net/dev"),
    ("kernel/netstat.txt", "/proc/self/net/netstat"),
    ("kernel/snmp.txt", "/proc/self/net/snmp"),
    ("kernel/snmp6.txt", "/proc/self/net/snmp6"),
    ("kernel/sockstat.txt", "/proc/self/net/sockstat"),
    ("kernel/sockstat6.txt", "/proc/self/net/sockstat6"),
    ("kernel/softnet_stat.txt", "/proc/self/net/softnet_stat"),
    ("kernel/softirqs.txt", "/proc/softirqs"),
    ("kernel/conntrack_stat.txt", "/proc/self/net/stat/nf_conntrack"),
    ("kernel/rt_cache_stat.txt", "/proc/self/net/stat/arp_cache"),
];

/// As many lines of the journal as fit into a part.
const LOG: &[&str] = &["--no-pager", "--output=short-iso-precise", "--lines=20000", "--unit=russet-agent"];

/// All parts, the most important first: what does not fit into the archive is at its end.
pub fn all(node: &Node) -> Vec<Part> {
    let part = |file: &str, source| Part { file: file.to_owned(), source };
    let mut parts: Vec<Part> = VERBS.iter().map(|(file, words)| part(file, Source::Verb(words))).collect();
    parts.push(part(
        "settings.toml",
        Source::Own("the settings that the agent recorded", own::recorded_settings),
    ));
    parts.push(part("russet.toml", Source::Own("the settings file", own::settings_file)));
    parts.push(part("agent/readyz.txt", Source::Health("/readyz?verbose")));
    parts.push(part("agent/metrics.txt", Source::Health("/metrics")));
    parts.push(part("agent/process.txt", Source::Own("the agent's process", own::agent_process)));
    parts.push(part("agent/log.txt", log(node)));
    for (file, words, instead) in IP {
        parts.push(part(file, Source::Program("ip", words, Some(instead))));
    }
    let entries = Some(kernel::forwarding_entries as super::source::Compute);
    parts.push(part("kernel/fdb.txt", Source::Program("bridge", &["fdb"], entries)));
    parts.extend(
        PROGRAMS.iter().map(|(file, program, words)| part(file, Source::Program(program, words, None))),
    );
    parts.push(part("kernel/sysctls.txt", Source::Own("/proc/sys", kernel::sysctls)));
    parts.push(part("kernel/connections.txt", Source::Own("connection tracking", kernel::connections)));
    parts.extend(
        FILES.iter().map(|(file, path)| part(file, Source::File(PathBuf::from(path), Keep::Beginning))),
    );
    for path in &node.conflists {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        parts.push(part(&format!("networks/{}", plain(&name)), Source::File(path.clone(), Keep::Beginning)));
    }
    parts.push(part("history.jsonl", Source::File(node.paths.history_file(), Keep::End)));
    parts
}

/// The log of the agent: the file that an argument names, or systemd's journal.
fn log(node: &Node) -> Source {
    match &node.log {
        Some(path) => Source::File(path.clone(), Keep::End),
        None if Path::new("/run/systemd/journal").exists() => Source::Program("journalctl", LOG, None),
        None => Source::Own("systemd's journal", |_| {
            Err("this machine has no journal of systemd; name the agent's log with --log FILE".to_owned())
        }),
    }
}

/// A file's name, as far as any archive can have it.
fn plain(name: &str) -> String {
    const NAME_MAX_CHARS: usize = 60;
    let keep = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    name.chars().map(keep).take(NAME_MAX_CHARS).collect()
}
