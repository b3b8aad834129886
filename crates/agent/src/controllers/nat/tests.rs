use std::sync::atomic::{AtomicU32, Ordering};

use russet_attach::Owner;
use russet_testkit::{in_new_netns, run};

use super::*;

fn table() -> String {
    run("nft", &["-s", "list", "table", "inet", "russet-cni"])
}

fn owner(container: &str) -> Owner {
    Owner::new(&format!("net/{container}/eth0").parse().unwrap())
}

/// A change by one of our own requests.
fn masquerade(container: &str, address: &str) {
    nat::masquerade(&mut Nft::open().unwrap(), &owner(container), &[address.parse().unwrap()]).unwrap();
}

#[test]
fn a_failure_to_open_is_reported_and_retried_and_a_kernel_without_nf_tables_has_no_drift() {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let open = || {
        OPENED.fetch_add(1, Ordering::Relaxed);
        let source = std::io::Error::from_raw_os_error(24);
        Err(NetlinkError::Io { operation: "open a netfilter socket".to_owned(), source })
    };
    let mut broken = Nat::of_kernel(Some(Kernel { open, changes: nat::changes }));
    let before = OPENED.load(Ordering::Relaxed);
    let report = broken.reconcile().unwrap();
    let error = report.errors[0].to_string();
    assert!(report.failed == 1 && error.contains("open a netfilter socket"), "{report:?}");
    assert!(broken.differences().is_err());
    assert_eq!(OPENED.load(Ordering::Relaxed), before + 2);
    let mut without = Nat::of_kernel(None);
    assert_eq!(without.differences(), Ok(Vec::new()));
    assert!(without.reconcile().unwrap().is_quiet());
}

#[test]
fn no_comparison_succeeds_while_our_own_requests_change_the_table() {
    let mut in_progress = Nat::of_kernel(Some(Kernel { open: Nft::open, changes: || None }));
    assert!(in_progress.differences().unwrap_err().contains("requests of ours"));
    assert!(in_progress.reconcile().is_none());
}

#[test]
#[ignore = "kernel: root and nft"]
fn endless_foreign_commits_are_reported_as_a_failure() {
    in_new_netns(|| {
        // Not by a request, which another test would count.
        run("nft", &["add table inet russet-cni; add table ip noise; add chain ip noise c"]);
        // Each call commits once as another program, so that the count is always one commit late.
        let changes = || {
            run("nft", &["add rule ip noise c counter"]);
            Some(7)
        };
        let mut nat = Nat::of_kernel(Some(Kernel { open: Nft::open, changes }));
        run("nft", &["delete table inet russet-cni"]);
        let report = nat.reconcile().expect("no request of ours is in progress");
        assert!(report.failed == 1 && report.changed.is_empty(), "{report:?}");
        assert_eq!(report.what.len(), 1, "{report:?}");
    });
}

/// One test for all, because our changes are counted for the whole process, not by namespace.
#[test]
#[ignore = "kernel: root and nft"]
fn the_table_is_restored_to_what_our_requests_left_without_any_event() {
    in_new_netns(|| {
        let mut nat = Nat::open();
        masquerade("c1", "10.1.0.5/24");
        // No event announced it: the snapshot is taken when it is needed.
        assert_eq!(nat.differences(), Ok(Vec::new()));
        let one = table();
        for vandal in ["flush ruleset", "delete table inet russet-cni"] {
            run("nft", &[vandal]);
            assert_eq!(nat.differences().unwrap().len(), 1, "{vandal}");
            let report = nat.reconcile().unwrap();
            assert!(report.failed == 0 && report.changed == [("pod_nat", 1)].into(), "{report:?}");
            assert_eq!(table(), one);
        }
        assert!(nat.reconcile().unwrap().is_quiet());
        masquerade("c2", "10.1.0.6/24");
        assert!(nat.reconcile().unwrap().is_quiet(), "it is ours");
        let two = table();
        assert!(two != one && two.contains("10.1.0.6"));
        run("nft", &["flush ruleset"]);
        assert_eq!(nat.reconcile().unwrap().changed, [("pod_nat", 1)].into());
        assert_eq!(table(), two);
        nat::unmasquerade(&mut Nft::open().unwrap(), &owner("c2")).unwrap();
        assert!(nat.reconcile().unwrap().is_quiet());
        assert!(!table().contains("10.1.0.6"));
    });
}
