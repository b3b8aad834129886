use std::sync::atomic::{AtomicU32, Ordering};

use russet_attach::Owner;
use russet_testkit::{in_new_netns, run};

use super::*;

fn table() -> String {
    run("nft", &["-s", "list", "table", "inet", "russet-cni"])
}

fn owner(container: &str) -> Owner {
    Owner::new(&"net".parse().unwrap(), &container.parse().unwrap(), &"eth0".parse().unwrap())
}

/// A request of ours.
fn masquerade(container: &str, address: &str) {
    nat::masquerade(&mut Nft::open().unwrap(), &owner(container), &[address.parse().unwrap()]).unwrap();
}

#[test]
fn what_cannot_be_opened_is_told_and_tried_again_and_a_kernel_without_nf_tables_has_nothing_wrong() {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let open = || {
        OPENED.fetch_add(1, Ordering::Relaxed);
        let source = std::io::Error::from_raw_os_error(24);
        Err(NetlinkError::Io { operation: "open a netfilter socket".to_owned(), source })
    };
    let mut broken = Nat::of_kernel(Some(Kernel { open, changes: nat::changes }));
    let before = OPENED.load(Ordering::Relaxed);
    let (restored, succeeded) = broken.restore().unwrap();
    assert!(!succeeded && restored.errors[0].contains("open a netfilter socket"), "{restored:?}");
    assert!(broken.differences().is_err());
    assert_eq!(OPENED.load(Ordering::Relaxed), before + 2);
    let mut without = Nat::of_kernel(None);
    assert_eq!(without.differences(), Ok(Vec::new()));
    assert!(without.restore().unwrap().1);
}

#[test]
fn while_requests_of_ours_are_at_work_nobody_says_that_nothing_differs() {
    let mut blurred = Nat::of_kernel(Some(Kernel { open: Nft::open, changes: || None }));
    assert!(blurred.differences().unwrap_err().contains("requests of ours"));
    assert!(blurred.restore().is_none());
}

#[test]
#[ignore = "kernel: root and nft"]
fn where_others_commit_without_end_that_is_a_failure_and_not_ours() {
    in_new_netns(|| {
        // Not by a request, which another test would count.
        run("nft", &["add table inet russet-cni; add table ip noise; add chain ip noise c"]);
        // Whoever asks how often we have committed is late by one commit of somebody else's.
        let changes = || {
            run("nft", &["add rule ip noise c counter"]);
            Some(7)
        };
        let mut kept = Nat::of_kernel(Some(Kernel { open: Nft::open, changes }));
        run("nft", &["delete table inet russet-cni"]);
        let (restored, succeeded) = kept.restore().expect("no request of ours is at work");
        assert!(!succeeded && !restored.errors.is_empty() && restored.kinds.is_empty(), "{restored:?}");
    });
}

/// One test: what a process did to the table is counted for all of its namespaces.
#[test]
#[ignore = "kernel: root and nft"]
fn the_table_is_kept_as_requests_of_ours_left_it_whatever_was_heard_of_that() {
    in_new_netns(|| {
        let mut kept = Nat::open();
        masquerade("c1", "10.1.0.5/24");
        // Nobody told of it: the picture is taken when it is needed.
        assert_eq!(kept.differences(), Ok(Vec::new()));
        let one = table();
        for vandal in ["flush ruleset", "delete table inet russet-cni"] {
            run("nft", &[vandal]);
            assert_eq!(kept.differences().unwrap().len(), 1, "{vandal}");
            let (restored, succeeded) = kept.restore().unwrap();
            assert!(succeeded && restored.kinds == [("pod_nat", 1)], "{restored:?}");
            assert_eq!(table(), one);
        }
        let (restored, succeeded) = kept.restore().unwrap();
        assert!(restored.is_nothing() && succeeded);
        masquerade("c2", "10.1.0.6/24");
        assert!(kept.restore().unwrap().0.is_nothing(), "it is ours");
        let two = table();
        assert!(two != one && two.contains("10.1.0.6"));
        run("nft", &["flush ruleset"]);
        assert_eq!(kept.restore().unwrap().0.kinds, [("pod_nat", 1)]);
        assert_eq!(table(), two);
        nat::unmasquerade(&mut Nft::open().unwrap(), &owner("c2")).unwrap();
        assert!(kept.restore().unwrap().0.is_nothing());
        assert!(!table().contains("10.1.0.6"));
    });
}
