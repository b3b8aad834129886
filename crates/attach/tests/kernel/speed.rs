//! What wiring costs, stage by stage (ARCHITECTURE.md, "Time budgets").
//!
//! `cargo test --release -p russet-attach --test kernel speed -- --include-ignored --nocapture` prints the medians.

use std::time::{Duration, Instant};

use russet_attach::{Executor, Hooks, Pending, Refusal, Removal, Step, detach, plan, reap};

use crate::bench::{attachment, detachment, namespace, on_a_node};

/// How many pods a figure is the median of.
const PODS: usize = 60;
/// Notes when each step began.
#[derive(Default)]
struct Clock(Vec<(&'static str, Instant)>);

impl Hooks for Clock {
    fn before(&mut self, step: &Step) -> Result<(), Refusal> {
        self.0.push((step.name(), Instant::now()));
        Ok(())
    }

    fn gate(&mut self, _: &Pending<'_>) -> Result<(), Refusal> {
        Ok(())
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
#[ignore = "kernel: root"]
fn sixty_pods_are_added_and_deleted_and_all_their_links_reaped() {
    for (title, v6) in [("IPv4", false), ("dual stack", true)] {
        let (adds, dels) = on_a_node(|node| {
            let (mut adds, mut dels, mut pods) = (Vec::new(), Vec::new(), Vec::new());
            for n in 1..=PODS {
                let pod = namespace(&format!("p{n}"));
                let (v4, v6s) = (format!("10.1.0.{n}"), format!("fd00::{n}"));
                let addresses = if v6 { vec![v4.as_str(), v6s.as_str()] } else { vec![v4.as_str()] };
                let wanted = attachment(&format!("c{n}"), &format!("web-{n}"), &addresses);
                let mut clock = Clock::default();
                let began = Instant::now();
                let plan = plan(&wanted).unwrap();
                Executor::new(&mut node.socket).attach_with(&plan, &pod, &mut clock).unwrap();
                clock.0.push(("end", Instant::now()));
                adds.push((began, clock.0));
                pods.push((wanted, pod));
            }
            for (wanted, pod) in &pods {
                let began = Instant::now();
                detach(&mut node.socket, &detachment(wanted, Removal::Deferred), Some(pod)).unwrap();
                dels.push(began.elapsed());
            }
            assert_eq!(reap(&mut node.socket).unwrap().count, PODS);
            (adds, dels)
        });
        let steps: Vec<String> = (0..adds[0].1.len() - 1)
            .map(|index| {
                let times = adds.iter().map(|(_, steps)| steps[index + 1].1 - steps[index].1);
                format!("{} {:?}", adds[0].1[index].0, median(times.collect()))
            })
            .collect();
        let last = |steps: &[(&str, Instant)], began: Instant| steps[steps.len() - 1].1 - began;
        let add = median(adds.iter().map(|(began, steps)| last(steps, *began)).collect());
        let del = median(dels);
        println!("{title}: ADD {add:?} ({}); deferred DEL {del:?}", steps.join(", "));
    }
}
