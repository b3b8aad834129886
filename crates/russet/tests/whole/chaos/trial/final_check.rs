//! The comparison at the end of a round: everything that exists with everything that should.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use russet_testkit::{eventually, let_pass};
use serde_json::json;

use super::files;
use super::lost_node::run_controller;
use super::runtime_thread::{Arena, remove_netns};
use super::tracked_node::{PodState, TrackedNode};
use crate::chaos::kernel;
use crate::chaos::store_records::StoreRecords;
use crate::chaos::worker::Alive;
use crate::node::TIMEOUT;

/// How long agents may take to find leaks by themselves: two checks with the trial's grace between.
const LEAK_TIMEOUT: Duration = Duration::from_secs(45);

/// What was checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    pub alive: usize,
    pub deleted: usize,
    pub forgotten: usize,
}

/// The runtimes send the DELs that they owe and CHECK their live pods; GC or the agents' own repair
/// finds the forgotten ones; then everything is compared.
pub fn check_everything(arena: &Arena, nodes: &[TrackedNode], by_gc: bool) -> CheckCounts {
    let (mut counts, mut deleted) = (CheckCounts::default(), Vec::new());
    for node in nodes {
        for pod in node.those(|state| matches!(state, PodState::Maybe | PodState::Dead)) {
            let answer = node.site.call("DEL", &pod, None).unwrap();
            arena.events.note(format_args!("final_check: DEL {}: {answer:?}", pod.container));
            assert_eq!(answer.status, 0, "DEL {}: {answer:?}", pod.container);
            let left = kernel::left_inside(&pod);
            assert!(left.is_empty(), "DEL of {} left {left:?} in it", pod.container);
            node.gone(&pod);
            deleted.push(pod);
        }
        for (alive, result) in node.alive() {
            let answer =
                node.site.call_with("CHECK", &alive.pod, json!({"prevResult": result}), None).unwrap();
            assert_eq!(answer.status, 0, "CHECK {}: {answer:?}", alive.pod.container);
            counts.alive += 1;
        }
        counts.forgotten += find_the_forgotten(arena, node, by_gc);
        // A DEL is answered before its addresses are released.
        eventually(TIMEOUT, || node.site.node.unfinished() == 0);
    }
    // Where each object is written by a request of its own, an ADD that is killed may leave a handle
    // without addresses (kubernetes.md section 4.3).
    if let Some(report) = run_controller(&nodes[0]) {
        arena.events.note(format_args!("final_check: the controller's last look: {report}"));
    }
    let faults = faults(nodes);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // Not before: a leftover interface would be deleted with its namespace.
    deleted.iter().for_each(remove_netns);
    CheckCounts { deleted: deleted.len(), ..counts }
}

fn find_the_forgotten(arena: &Arena, node: &TrackedNode, by_gc: bool) -> usize {
    let forgotten = node.those(|state| matches!(state, PodState::Forgotten));
    if by_gc {
        let valid = node.valid();
        let answer = node.site.gc(&valid.iter().collect::<Vec<_>>(), None).unwrap();
        arena.events.note(format_args!("final_check: GC with {} valid: {answer:?}", valid.len()));
        assert_eq!(answer.status, 0, "{answer:?}");
    }
    // Otherwise their namespaces would count as owners.
    forgotten.iter().for_each(remove_netns);
    let began = Instant::now();
    loop {
        let records = StoreRecords::read(&node.site).unwrap();
        let left: BTreeSet<_> = forgotten.iter().flat_map(|pod| records.addresses(&pod.container)).collect();
        if left.is_empty() {
            break;
        }
        assert!(!by_gc && began.elapsed() < LEAK_TIMEOUT, "addresses of the forgotten are held: {left:?}");
        let_pass(Duration::from_millis(100));
    }
    forgotten.iter().for_each(|pod| node.gone(pod));
    forgotten.len()
}

/// Missing and unexpected objects; checks each pod's own interface, too.
fn faults(nodes: &[TrackedNode]) -> Vec<String> {
    let alive: Vec<Vec<Alive>> =
        nodes.iter().map(|node| node.alive().into_iter().map(|(alive, _)| alive).collect()).collect();
    let mut faults = Vec::new();
    let check = nodes[0].site.node.russet_inside(&["ipam", "check"]);
    if check.status != 0 {
        faults.push(format!("ipam check: {}{}", check.stdout, check.stderr));
    }
    faults.extend(
        StoreRecords::read(&nodes[0].site).unwrap().faults(&alive.iter().flatten().collect::<Vec<_>>()),
    );
    for (node, alive) in nodes.iter().zip(&alive) {
        faults.extend(kernel::faults(&node.site, &alive.iter().collect::<Vec<_>>()));
        faults.extend(alive.iter().flat_map(kernel::faults_inside));
        faults.extend(files::unexpected(&node.site));
    }
    faults
}
