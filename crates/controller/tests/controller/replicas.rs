//! Two replicas: one leads, and the other takes over.

use std::cell::RefCell;
use std::rc::Rc;

use russet_controller::{Report, Settings};
use russet_kube::testing::Fault;

use crate::bench::{Bench, settings, until};

fn holder(bench: &Bench) -> Option<String> {
    Some(bench.lease()?["spec"]["holderIdentity"].as_str()?.to_owned())
}

#[tokio::test]
async fn one_of_two_replicas_looks_and_the_other_takes_over_when_it_is_stopped() {
    let bench = Bench::with(&["n1", "n2"]).await;
    let address = bench.pod("n1", "web-0").await;
    let looked: Rc<RefCell<Vec<&str>>> = Rc::default();
    let replica = |name: &'static str| {
        let looked = looked.clone();
        bench.run(settings(name), move |_: &Report| {
            looked.borrow_mut().push(name);
            false
        })
    };
    let second = async {
        until("the first leads", async || !looked.borrow().is_empty()).await;
        replica("b").await;
    };
    let both = async {
        tokio::select! {
            _ = replica("a") => {}
            () = async {
                until("the first looks", async || looked.borrow().len() > 10).await;
                assert!(looked.borrow().iter().all(|name| *name == "a"), "{:?}", looked.borrow());
                // Dropped here, as by a kill: it does not give the lease back.
            } => {}
        }
        assert_eq!(holder(&bench).as_deref(), Some("a"));
        bench.delete_node("n1", &["web-0"]);
        until("the second frees", async || !bench.is_allocated(address).await).await;
        assert_eq!(holder(&bench).as_deref(), Some("b"));
    };
    tokio::select! {
        () = both => {}
        () = second => {}
    }
}

#[tokio::test]
async fn a_leader_whose_lease_was_taken_stops_at_once_and_one_that_ends_gives_it_back() {
    let bench = Bench::with(&["n1"]).await;
    let mut looks = 0;
    bench
        .run(settings("a"), |_| {
            looks += 1;
            looks == 3
        })
        .await;
    assert_eq!(holder(&bench).as_deref(), Some(""), "it was given back");
    let looked: Rc<RefCell<usize>> = Rc::default();
    let count = looked.clone();
    let taken = async {
        until("it leads", async || *looked.borrow() > 3).await;
        // A lost answer is no lost lease.
        bench.server.lose_next_write(Fault::Unanswered);
        let before = *looked.borrow();
        until("it goes on", async || *looked.borrow() > before + 10).await;
        let mut lease = bench.lease().unwrap();
        lease["spec"]["holderIdentity"] = serde_json::json!("other");
        lease["spec"]["renewTime"] = serde_json::json!("2030-01-01T00:00:00.000000Z");
        bench.server.put(lease);
        let writes = || bench.writes().iter().filter(|seen| seen.body.contains("\"b\"")).count();
        let before = writes();
        until("it noticed", async || writes() > before).await;
        let looks = *looked.borrow();
        until("it takes the lease when the other is silent", async || holder(&bench).as_deref() == Some("b"))
            .await;
        assert!(*looked.borrow() <= looks + 1, "it went on looking");
    };
    tokio::select! {
        () = taken => {}
        _ = bench.run(Settings { ..settings("b") }, move |_| { *count.borrow_mut() += 1; false }) => {}
    }
}
