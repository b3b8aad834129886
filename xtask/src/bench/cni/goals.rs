//! The operations of the report, and the goals for them.

use crate::bench::cni::{AGENT, AGENT_BRIDGE, AGENT_ETCD, DIRECT, FLOOR, GO_BRIDGE, GO_PTP};
use crate::bench::report::{Goal, Of, Report};

pub(super) const SINGLE: [&str; 2] = ["add", "del"];
pub(super) const AT_ONCE_30: [&str; 2] = ["add30", "del30"];
pub(super) const AT_ONCE_100: [&str; 2] = ["add100", "del100"];
pub(super) const EMPTY: [[&str; 2]; 3] =
    [["add@0", "del@0"], ["add30@0", "del30@0"], ["add100@0", "del100@0"]];
pub(super) const FILLED: [[&str; 2]; 3] =
    [["add@500", "del@500"], ["add30@500", "del30@500"], ["add100@500", "del100@500"]];
pub(super) const SLOW: [[&str; 2]; 2] = [["add@5ms", "del@5ms"], ["add30@5ms", "del30@5ms"]];
pub(super) const CALM: &str = "add@calm";
pub(super) const ROUTES: &str = "add@routes";
pub(super) const GROUP: &str = "add@group";
pub(super) const STATUS: &str = "status";
pub(super) const STATUS_SCRAPED: &str = "status@metrics";
pub(super) const VERSION: &str = "version";

/// Rows come in this order.
pub(super) const OPS: [&str; 28] = [
    SINGLE[0],
    SINGLE[1],
    AT_ONCE_30[0],
    AT_ONCE_30[1],
    AT_ONCE_100[0],
    AT_ONCE_100[1],
    EMPTY[0][0],
    FILLED[0][0],
    EMPTY[0][1],
    FILLED[0][1],
    EMPTY[1][0],
    FILLED[1][0],
    EMPTY[1][1],
    FILLED[1][1],
    EMPTY[2][0],
    FILLED[2][0],
    EMPTY[2][1],
    FILLED[2][1],
    SLOW[0][0],
    SLOW[0][1],
    SLOW[1][0],
    SLOW[1][1],
    CALM,
    ROUTES,
    GROUP,
    STATUS,
    STATUS_SCRAPED,
    VERSION,
];

const fn medians(op: &'static str, ours: &'static str, theirs: &'static str, at_most: f64) -> Goal {
    Goal { ours: Of::median(op, ours), theirs: Of::median(op, theirs), at_most }
}

/// A node with 500 pods against an empty one.
const fn grown(which: usize, verb: usize, subject: &'static str) -> Goal {
    let (full, empty) = (FILLED[which][verb], EMPTY[which][verb]);
    Goal { ours: Of::median(full, subject), theirs: Of::median(empty, subject), at_most: GROWN_AT_MOST }
}

/// Quantile 0.99 against the median.
const fn tail(op: &'static str, subject: &'static str) -> Goal {
    Goal { ours: Of::p99(op, subject), theirs: Of::median(op, subject), at_most: 3.0 }
}

const GROWN_AT_MOST: f64 = 1.5;

/// The goals, those for the agent's own `bridge` among them; bursts without an agent are not slower than the reference plugins'.
pub(super) const GOALS: &[Goal] = &[
    medians(SINGLE[0], AGENT, FLOOR, 1.5),
    medians(SINGLE[0], AGENT, GO_BRIDGE, 0.2),
    tail(SINGLE[0], AGENT),
    medians(SINGLE[1], AGENT, GO_BRIDGE, 0.05),
    tail(SINGLE[1], AGENT),
    medians(AT_ONCE_30[0], AGENT, GO_PTP, 0.3),
    medians(AT_ONCE_30[0], DIRECT, GO_BRIDGE, 1.0),
    medians(AT_ONCE_30[1], DIRECT, GO_BRIDGE, 1.0),
    medians(AT_ONCE_30[0], DIRECT, GO_PTP, 1.0),
    medians(AT_ONCE_30[1], DIRECT, GO_PTP, 1.0),
    medians(SINGLE[0], AGENT_BRIDGE, GO_BRIDGE, 0.3),
    medians(SINGLE[1], AGENT_BRIDGE, GO_BRIDGE, 0.1),
    grown(0, 0, AGENT),
    grown(0, 1, AGENT),
    grown(1, 0, AGENT),
    grown(1, 1, AGENT),
    grown(2, 0, AGENT),
    grown(2, 1, AGENT),
    grown(0, 0, AGENT_ETCD),
    grown(0, 1, AGENT_ETCD),
];

/// How much bulk work may delay an ADD, in milliseconds.
const DELAY_AT_MOST_MS: f64 = 5.0;
/// STATUS, process start included, in milliseconds.
const STATUS_AT_MOST_MS: f64 = 1.0;

/// Figures that are computed from samples.
pub(super) fn derive(report: &mut Report) {
    let calm = report.quantile_us(Of::median(CALM, AGENT_ETCD));
    for op in [ROUTES, GROUP] {
        for (quantile, limit) in [(0.5, None), (0.99, Some(DELAY_AT_MOST_MS))] {
            let busy = report.quantile_us(Of { op, subject: AGENT_ETCD, quantile });
            if let (Some(calm), Some(busy)) = (calm, busy) {
                let name = format!("{op}, p{:.0}, less the median of {CALM}", quantile * 100.0);
                report.figure(name, (busy - calm) / 1e3, "ms", limit);
            }
        }
    }
    for (quantile, limit) in [(0.5, Some(STATUS_AT_MOST_MS)), (0.99, None)] {
        if let Some(us) = report.quantile_us(Of { op: STATUS, subject: AGENT, quantile }) {
            report.figure(
                format!("STATUS with process start, p{:.0}", quantile * 100.0),
                us / 1e3,
                "ms",
                limit,
            );
        }
    }
}
