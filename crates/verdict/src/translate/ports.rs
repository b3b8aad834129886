//! Protocols and ports, as each API writes them.

use super::read::At;
use crate::ir::{Port, Problem, Protocol};

/// A protocol of Kubernetes' APIs; missing is TCP.
pub(super) fn kubernetes_protocol(at: &At<'_>) -> Result<Protocol, Problem> {
    match at.opt_text("protocol")?.unwrap_or("TCP") {
        "TCP" => Ok(Protocol::TCP),
        "UDP" => Ok(Protocol::UDP),
        "SCTP" => Ok(Protocol::SCTP),
        other => Err(at.problem_of("protocol", format!("{other:?} is not TCP, UDP or SCTP"))),
    }
}

/// The number of a port, which is never 0.
pub(super) fn number(at: &At<'_>) -> Result<u16, Problem> {
    at.whole(1, u16::MAX)
}

/// The name of a port.
pub(super) fn name(at: &At<'_>) -> Result<Port, Problem> {
    match at.text()? {
        text if !text.is_empty() && text.parse::<u32>().is_err() && !text.contains(':') => {
            Ok(Port::Named(text.into()))
        }
        _ => Err(at.problem("a name of a port is wanted")),
    }
}

/// Sorts ports, and merges ranges that overlap or touch.
pub(super) fn merged(mut ports: Vec<Port>) -> Vec<Port> {
    ports.sort();
    let mut merged: Vec<Port> = Vec::with_capacity(ports.len());
    for port in ports {
        match (merged.last_mut(), &port) {
            (Some(Port::Range(_, last)), Port::Range(from, to)) if *from <= last.saturating_add(1) => {
                *last = (*last).max(*to);
            }
            (Some(same), port) if same == port => {}
            _ => merged.push(port),
        }
    }
    merged
}
