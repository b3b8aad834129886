//! Datagrams between two pods of different nodes while a test breaks something.

use std::time::Duration;

use russet_testkit::{eventually, let_pass};

use crate::lab::{Lab, Pod, TIMEOUT};

/// A stream, 200 datagrams a second, each of which its receiver echoes.
pub struct Stream {
    from: Pod,
}

/// What came back.
#[derive(Debug, Clone, Copy)]
pub struct Count {
    pub sent: u64,
    pub received: u64,
    /// Since the beginning.
    pub longest_gap: Duration,
}

/// As many may be on their way at any moment on a busy machine.
const ON_THEIR_WAY: u64 = 3;

impl Stream {
    /// Begins one between the first pod and the first of another node.
    pub fn start(lab: &Lab, pods: &[Pod]) -> Self {
        let from = pods[0].clone();
        let to = pods.iter().find(|pod| pod.node != from.node).unwrap();
        lab.ask(&from, &format!("/stream?{}", to.target()));
        let stream = Self { from };
        eventually(TIMEOUT, || {
            let_pass(Duration::from_millis(100));
            stream.count(lab).received > 10
        });
        stream
    }

    pub fn count(&self, lab: &Lab) -> Count {
        let answer = lab.ask(&self.from, "/stream");
        let numbers: Vec<u64> = answer.split(' ').map(|number| number.parse().unwrap()).collect();
        Count { sent: numbers[0], received: numbers[1], longest_gap: Duration::from_micros(numbers[2]) }
    }

    /// How many datagrams have been lost since `before`.
    pub fn lost(&self, lab: &Lab, before: Count) -> u64 {
        let now = self.count(lab);
        let lost = (now.sent - before.sent).saturating_sub(now.received - before.received);
        if lost <= ON_THEIR_WAY { 0 } else { lost }
    }
}
