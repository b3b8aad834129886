//! What commands print, in a form that is the same in every run, and the parts of pages that show it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};

use russet_addr::IpNet;
use russet_model::time::parse_rfc3339;
use russet_testkit::pages::repository;

/// What differs from run to run and is shown by another name.
#[derive(Debug, Default)]
pub struct Stable {
    names: Vec<(String, String)>,
    /// Blocks of addresses, with the first three octets that stand for theirs.
    blocks: Vec<(IpNet, [u8; 3])>,
}

/// The part of a page between two marks, which a test writes.
#[derive(Debug)]
pub struct Printed {
    page: &'static str,
    begin: String,
    end: String,
    text: String,
}

/// Tests of one process write one page after the other.
static WRITING: Mutex<()> = Mutex::new(());

// === impl Stable ===

impl Stable {
    /// Shows `name` as `shown`; first the names that others begin with are given last.
    pub fn name(&mut self, name: impl Into<String>, shown: impl Into<String>) {
        self.names.push((name.into(), shown.into()));
    }

    /// Shows the addresses of a block as those of `shown`, with the same places in it.
    pub fn block(&mut self, cidr: &str, shown: [u8; 3]) {
        self.blocks.push((cidr.parse().unwrap(), shown));
    }

    /// The text with `N`, `TIME` and `MAC` in the places of what differs each time.
    pub fn of(&self, text: &str) -> String {
        let mut text = without_hashes(text);
        for (name, shown) in &self.names {
            text = text.replace(name, shown);
        }
        let lines = text.lines().filter(|line| !is_of_records(line));
        let lines: Vec<String> = lines.map(|line| self.line(line)).collect();
        aligned(&lines)
    }

    /// A command with these words, in which addresses have their other names.
    pub fn command(&self, words: &[&str]) -> String {
        words.iter().map(|word| self.address(word)).collect::<Vec<_>>().join(" ")
    }

    fn line(&self, line: &str) -> String {
        if line.starts_with("repairs ") {
            return "repairs    N since the agent's start".to_owned();
        }
        let line = without_packets(&without_operation(&without_pids(line)));
        let tokens: Vec<&str> = line.split(' ').collect();
        let token = |(at, token): (usize, &&str)| {
            let before = at.checked_sub(1).and_then(|at| tokens.get(at)).copied().unwrap_or_default();
            let after = tokens.get(at + 1).copied().unwrap_or_default();
            self.token(before, token, after)
        };
        let shown: Vec<String> = tokens.iter().enumerate().map(token).collect();
        verdict(&shown.join(" "))
    }

    /// One word of a line, with what is around it.
    fn token(&self, before: &str, token: &str, after: &str) -> String {
        let is_edge = |c: char| matches!(c, '(' | ')' | ',' | ';' | ':' | '.' | '"' | '`');
        let core = token.trim_matches(is_edge);
        let is_number = core.parse::<f64>().is_ok();
        let is_handle = before == "rule" && after.starts_with(['(', '"']);
        let counted = ["--mtu", "-s", "about"].contains(&before)
            || ["ms", "records", "encapsulated", "arrived"].contains(&after.trim_matches(is_edge))
            || is_handle;
        let shown = match core {
            "" => return token.to_owned(),
            _ if is_number && counted => "N".to_owned(),
            _ if core == env!("CARGO_PKG_VERSION") => "VERSION".to_owned(),
            _ if parse_rfc3339(core).is_some() || is_clock(core) => "TIME".to_owned(),
            _ if core.strip_prefix('x').is_some_and(is_count) => "xN".to_owned(),
            _ if is_age(core) => "Ns".to_owned(),
            _ if is_mac(core) => "MAC".to_owned(),
            _ if core.split('/').count() == 2 && core.split('/').all(is_count) => "N/N".to_owned(),
            _ => self.address(core),
        };
        token.replacen(core, &shown, 1)
    }

    /// An address of a known block, or a prefix in it, by its other name.
    fn address(&self, word: &str) -> String {
        let (address, len) = word.split_once('/').map_or((word, ""), |(address, len)| (address, len));
        let Ok(parsed) = address.parse::<Ipv4Addr>() else { return word.to_owned() };
        let block = self.blocks.iter().find(|(block, _)| block.contains(&IpAddr::V4(parsed)));
        let Some((IpNet::V4(block), [a, b, c])) = block else { return word.to_owned() };
        let place = u32::from(parsed) - u32::from(block.network());
        format!("{a}.{b}.{c}.{place}{}{len}", if len.is_empty() { "" } else { "/" })
    }
}

/// What `russet explain` says of agents' records depends on when they were written last.
fn is_of_records(line: &str) -> bool {
    line.starts_with("  note: record: ") || line.starts_with("  path: packets in tunnels ")
}

fn is_count(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_digit())
}

/// `3s`, `1m20s`, `2d1h`.
fn is_age(word: &str) -> bool {
    let mut parts = word.split_inclusive(|c: char| "dhms".contains(c));
    let is_part = |part: &str| part.ends_with(['d', 'h', 'm', 's']) && is_count(&part[..part.len() - 1]);
    parts.all(is_part)
}

/// `10:00:00`.
fn is_clock(word: &str) -> bool {
    word.split(':').count() == 3 && word.split(':').all(|part| part.len() == 2 && is_count(part))
}

fn is_mac(word: &str) -> bool {
    let is_octet = |part: &str| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
    word.split(':').count() == 6 && word.split(':').all(is_octet)
}

/// A process is named with its number, and with its command while it runs.
fn without_pids(line: &str) -> String {
    match line.split_once("(pid ").map(|(before, rest)| (before, rest.split_once(')'))) {
        Some((before, Some((_, after)))) => format!("{before}(pid N){after}"),
        _ => line.to_owned(),
    }
}

/// Which request failed first at a store that does not answer.
fn without_operation(line: &str) -> String {
    const BEFORE: [&str; 4] = ["not ready: store: ", "not ready: ", "cannot be read: ", "error: "];
    let Some(end) = line.find("store unavailable: ") else { return line.to_owned() };
    let begin = BEFORE.iter().find_map(|before| Some(line.find(before)? + before.len()));
    match begin.filter(|begin| *begin <= end) {
        Some(begin) => format!("{}REQUEST: {}", &line[..begin], &line[end..]),
        None => line.to_owned(),
    }
}

/// How many packets of a flow were denied, in a table of flows: behind what they are, and before the policies.
fn without_packets(line: &str) -> String {
    let mut cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let verdict = cells.iter().position(|cell| *cell == "denied");
    match verdict.and_then(|at| cells.get_mut(at + 5)).filter(|cell| is_count(cell)) {
        Some(packets) => *packets = "N",
        None => return line.to_owned(),
    }
    cells.join("  ")
}

/// The verdict of one end of a flow, in its column.
fn verdict(line: &str) -> String {
    let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    match cells[..] {
        [end, verdict, why] if end.starts_with("egress of ") || end.starts_with("ingress of ") => {
            format!("  {end:<32}  {verdict:<7}  {why}")
        }
        _ => line.to_owned(),
    }
}

/// The names of host ends depend on the container's id.
pub fn without_hashes(text: &str) -> String {
    let mut parts = text.split("russ").peekable();
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.chars().take_while(char::is_ascii_hexdigit).count();
        let rest = if digits == 11 { format!("01234567890{}", &part[digits..]) } else { part.to_owned() };
        shown.push_str(&format!("russ{rest}"));
    }
    shown
}

/// The columns of a table are as wide as their cells, some of which have another length now.
fn aligned(lines: &[String]) -> String {
    let is_heading = |line: &String| line.contains("  ") && !line.chars().any(|c| c.is_lowercase());
    let cells = |line: &String| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let mut text = String::new();
    let mut rest = lines;
    while let [first, after @ ..] = rest {
        if !is_heading(first) {
            text.push_str(first);
            text.push('\n');
            rest = after;
            continue;
        }
        let rows: Vec<Vec<String>> = rest.iter().take_while(|line| line.contains("  ")).map(cells).collect();
        let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max();
        for row in &rows {
            let padded =
                row.iter().enumerate().map(|(at, cell)| format!("{cell:0$}", width(at).unwrap_or(0)));
            text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        rest = &rest[rows.len()..];
    }
    text
}

// === impl Printed ===

impl Printed {
    /// The part of a page between the lines `begin` and `end`.
    pub fn new(page: &'static str, begin: &str, end: &str) -> Self {
        Self { page, begin: format!("{begin}\n"), end: format!("{end}\n"), text: String::new() }
    }

    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Compares the page, or writes it.
    #[track_caller]
    pub fn assert_in_page(&self) {
        let _guard = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let path = repository().join(self.page);
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(&self.begin).expect("the line before this part of the page");
        let (now, after) = rest.split_once(&self.end).expect("the line after this part of the page");
        let text = format!("{}\n", self.text);
        if std::env::var_os("RUSSET_WRITE_DOCS").is_some() {
            let all = [before, &self.begin, &text, &self.end, after].concat();
            std::fs::write(&path, all).unwrap();
            return;
        }
        let differs = |(new, old): (&str, &str)| (new != old).then(|| format!("- {old}\n+ {new}"));
        let differences: Vec<String> = text.lines().zip(now.lines()).filter_map(differs).take(5).collect();
        assert!(now == text, "{}: RUSSET_WRITE_DOCS=1 writes it:\n{}", self.page, differences.join("\n"));
    }
}

#[test]
fn what_differs_from_run_to_run_is_shown_the_same() {
    let mut stable = Stable::default();
    stable.name("/tmp/root", "");
    stable.block("10.244.83.64/26", [10, 244, 1]);
    for (printed, shown) in [
        ("up 1m20s)", "up Ns)"),
        ("etcd:http://10.77.0.1:2379, 0.84 ms (3s ago)", "etcd:http://10.77.0.1:2379, N ms (Ns ago)"),
        (
            "10.244.83.69 is in 10.244.83.64/26: and 10.244.9.1",
            "10.244.1.5 is in 10.244.1.0/26: and 10.244.9.1",
        ),
        ("2026-11-28T10:00:00Z  by nft (pid 77: /usr/sbin/nft x)", "TIME  by nft (pid N)"),
        ("(0e:47:7c:00:00:01 to 10.77.0.12)", "(MAC to 10.77.0.12)"),
        ("no agent runs at /tmp/root/run/x; 1 problem", "no agent runs at /run/x; 1 problem"),
        ("more than about 1248 bytes, --mtu 1248", "more than about N bytes, --mtu N"),
        (
            "! not ready: store: get /a/b: store unavailable: x",
            "! not ready: store: REQUEST: store unavailable: x",
        ),
        (
            "13:19:55  denied   ingress  shop/web  shop/db  icmp/8/0  114  policy  no rule",
            "TIME  denied  ingress  shop/web  shop/db  icmp/8/0  N  policy  no rule",
        ),
        (
            "a has sent 12 encapsulated packets in 20s; 7 arrived at b",
            "a has sent N encapsulated packets in Ns; N arrived at b",
        ),
        ("18 records in 65536 bytes, clean", "N records in 65536 bytes, clean"),
        (
            "in4: drop  rule 82 \"no policy\" (counter), rule 1 of profile x",
            "in4: drop  rule N \"no policy\" (counter), rule 1 of profile x",
        ),
        ("-> shop/db icmp/8/0 x114  no rule", "-> shop/db icmp/8/0 xN  no rule"),
        ("eth0 of shop/web is 1450 russ0123456789a", "eth0 of shop/web is 1450 russ01234567890"),
    ] {
        assert_eq!(stable.of(printed), format!("{shown}\n"));
    }
    let command = stable.command(&["capture", "--host", "10.244.83.69", "--duration", "1s"]);
    assert_eq!(command, "capture --host 10.244.1.5 --duration 1s");
    let verdict = stable.of("  ingress of 10.244.83.69                    ALLOWED  it is no pod\n");
    assert_eq!(verdict, "  ingress of 10.244.1.5             ALLOWED  it is no pod\n");
    let records = "  note: record: node b said 4s ago: x\n  path: packets in tunnels since y\n  path: z\n";
    assert_eq!(stable.of(records), "  path: z\n");
    let table = "NODE  RTT      LOST\na     0.45 ms  0/17\nnb    -        17/17\n\nend\n";
    assert_eq!(stable.of(table), "NODE  RTT   LOST\na     N ms  N/N\nnb    -     N/N\n\nend\n");
}
