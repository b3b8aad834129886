//! A table whose chains, sets and priorities are another version's is replaced while packets flow.

use std::time::Instant;

use russet_testkit::run;
use russet_verdict::ir::Direction::Ingress;
use russet_verdict::table::Part;

use crate::traffic::in_a_flood_of_denied_packets;
use crate::world::*;

const TABLE: &str = "inet russet-decisions";
/// The mark of connections that were judged in the first epoch.
const FIRST: &str = "0x00010000";
/// Names of this version that the other one does not have.
const RENAMED: [(&str, &str); 6] = [
    ("judged", "passed"),
    ("forwarded", "transit"),
    ("pods", "guarded"),
    ("words-", "ends-"),
    ("held", "new"),
    ("nets", "blocks"),
];

/// The table as another version would have it, which judges the same: chains and sets have other names, and the chain of
/// the hook input is called as early as that of postrouting. Its epoch may be unknown to this version, and be the first one
/// of this version, too.
fn of_another_version(listed: &str, priority: usize, epoch: Option<usize>) -> String {
    let renamed = RENAMED.into_iter().chain(epoch.is_none().then_some(("fresh", "current")));
    let text = renamed.fold(listed.to_owned(), |text, (ours, theirs)| text.replace(ours, theirs));
    let text = text.replace(FIRST, &epoch.map_or(FIRST.to_owned(), |number| format!("0x00{number:02x}0000")));
    let at_priority = |line: &str| match line.split_once(" priority ") {
        Some((hook, rest)) if line.contains(" hook ") => {
            let (_, rest) = rest.split_once(';').unwrap();
            format!("{hook} priority {priority};{rest}\n")
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(at_priority).collect()
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn nothing_denied_passes_while_the_table_of_another_version_is_replaced() {
    // policy.md P128
    const ROUNDS: usize = 40;
    on_a_node(|| {
        let mut policies = open();
        let rule = key(Ingress, "10.9.1.2", B, Part::All);
        apply(&mut policies, &merged(isolated(Ingress, "10.9.1.2"), allowing([rule])));
        let (wanted, listed) =
            (policies.current().clone(), run("nft", &["list", "table", "inet", "russet-decisions"]));
        let server = listen(Some("a"), "10.9.1.2", 80);
        let (client, accepted) = connected(Some("b"), "10.9.1.2", &server);
        let file = tempfile::NamedTempFile::new().unwrap();
        let failed = in_a_flood_of_denied_packets(ROUNDS, |round| {
            // Each table's chains are called behind those of the one before, and it has another epoch, as this version
            // does it itself.
            let epoch = (round % 2 == 0).then_some(100 + 3 * round);
            let theirs = of_another_version(&listed, 2 * round + 1, epoch);
            std::fs::write(file.path(), format!("delete table {TABLE}\n{theirs}")).unwrap();
            run("nft", &["-f", file.path().to_str().unwrap()]);
            let mut upgraded = open();
            let report = upgraded.restore(wanted.clone(), Instant::now());
            let is_replaced = report.as_ref().is_ok_and(|it| it.structure.is_some());
            (is_replaced && open().current() == &wanted).then_some(()).ok_or(report)
        });
        assert!(failed.is_none(), "{failed:?}");
        assert!(!ruleset().contains("guarded4") && ruleset().contains("pods4"));
        // The connection that is allowed goes on.
        assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
    });
}
